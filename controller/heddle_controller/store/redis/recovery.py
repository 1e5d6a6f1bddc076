"""A server that came back: is it the one we knew, or is it older?

One that is older (its disk was a second behind, a replica took over that had not heard of the
last writes, a backup was put in place, somebody emptied it) lacks writes that clients were told
were kept. What it has counts from then on: it is read anew and what is missing has to be asked
for again. How a server is set so that this does not happen is told in REPLICAS.md.

Leases of the older server are void. Epochs go on from the highest that was seen here or by any
agent, and versions from above the highest that was told of, so that nobody who compares takes
the new for the old. The secret in use is agreed on again, or a controller that starts later
would agree with nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from heddle_controller.state.errors import Unavailable
from heddle_controller.state.records import Versions
from heddle_controller.store.redis.mirror import Mirror, OlderError
from heddle_controller.store.redis.scripts import FORM, LIFT

log = structlog.stdlib.get_logger(__name__)


class Recovery:
    """What is done when the server is there again."""

    def __init__(self, mirror: Mirror, end_leases: Callable[[], None]) -> None:
        """``end_leases`` is called where the store is not the one that gave them out."""
        self._mirror = mirror
        self._link = mirror.link
        self._keys = mirror.keys
        self._end_leases = end_leases
        self.returns = 0
        """Times that the server came back older."""
        self.secrets: dict[str, bytes] = {}
        """That are in use here, by name."""
        self._told: dict[str, Versions] = {}
        """Of before the server came back older, until it is taken up again."""

    async def look_again(self) -> None:
        """See what the server has; before anybody else may use it."""
        mirror = self._mirror
        try:
            await mirror.follow(inner=True)
        except OlderError as error:
            self._be_patient(error)
            self.returns += 1
            known = {fabric: view.versions() for fabric, view in mirror.views.items()}
            self._told = known | self._told
            log.error(  # noqa: TRY400 - a finding, whose trace says nothing
                "store came back older: writes that were acknowledged are lost, ask for them again",
                store=self._link.name,
                why=str(error),
            )
            self._end_leases()
            await mirror.load(inner=True)
        if self._told:  # also where it was cut short, by the server going again
            await self._take_up(self._told)
            self._told = {}

    def _be_patient(self, error: OlderError) -> None:
        """Leave an older server alone for a while, where there may be a newer one.

        A master that died and was started again at once still counts as the master until
        the sentinels have agreed on another.
        """
        if self._link.silent_for() < self._link.patience:
            raise Unavailable(f"another master is looked for, since {error}") from error

    async def _take_up(self, told: Mapping[str, Versions]) -> None:
        await self._agree_again()
        for fabric, versions in told.items():
            key = self._keys.fabric_prefix + fabric
            least = [versions.intent + 1, versions.facts + 1]
            await self._link.call(
                lambda client, k=key, v=least: LIFT.call(client, [k], v),  # type: ignore[misc]
                inner=True,
            )
        await self._mirror.load(inner=True)

    async def _agree_again(self) -> None:
        """Give back what replicas agree on besides: the form of all this, and secrets in use."""
        keys, secrets = self._keys, self.secrets

        async def agree(client: Any) -> None:  # noqa: ANN401 - the library's types are unions
            await client.hsetnx(keys.meta, "form", FORM)
            if secrets:
                await client.hset(keys.secrets, mapping=secrets)

        await self._link.call(agree, inner=True)
