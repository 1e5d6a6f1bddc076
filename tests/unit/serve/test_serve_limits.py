from __future__ import annotations

from typing import Any

import pytest

from heddle_controller.serve.interceptors.around import Method
from heddle_controller.serve.interceptors.auth import Allowance, Budget, Limits
from heddle_controller.serve.security.caller import Caller, Role, set_caller

METHOD = Method("s", "m", streams=False)


class Call:
    """The part of gRPC's context that limits use."""

    status: Any = None

    async def abort_with_status(self, status: Any) -> None:
        """Record the status and raise, as gRPC does."""
        self.status = status
        raise PermissionError


@pytest.mark.parametrize(
    ("caller", "limited"),
    [
        (Caller(Role.LOCAL, "127.0.0.1"), False),
        (Caller(Role.LOCAL, "::1"), False),
        (Caller(Role.LOCAL, "unix:/run/heddle"), False),
        (Caller(Role.LOCAL, "10.0.0.7"), True),
        (Caller(Role.OPERATOR, "127.0.0.1"), True),
        (Caller(Role.SCHEDULER, "token slurm"), True),
        (Caller(Role.NOBODY, "127.0.0.1"), True),
    ],
)
async def test_who_is_limited(caller: Caller, *, limited: bool) -> None:
    """Everybody is limited except callers in plain text on the controller's own host."""
    limits = Limits(Budget(Allowance(1.0, 1.0, 1), lambda: 0.0))
    set_caller(caller)
    call: Any = Call()

    async def rest() -> str:
        return "answer"

    assert await limits.around(METHOD, call, rest) == "answer"
    if not limited:
        assert await limits.around(METHOD, call, rest) == "answer"
        return
    with pytest.raises(PermissionError):
        await limits.around(METHOD, call, rest)
    assert call.status.code.name == "RESOURCE_EXHAUSTED"
