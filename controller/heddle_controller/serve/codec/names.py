"""Resource names, such as ``fabrics/f1`` and ``fabrics/f1/jobs/j1``.

They are parsed only here, so that every RPC refuses a malformed name with the same text, which
names the field.
"""

from __future__ import annotations

from heddle.names import NAME
from heddle_controller.model.errors import refuse

ID_RULE = "1 to 63 letters, digits, '-', '_' or '.'"


class NameForm:
    """A form of names, such as ``fabrics/{fabric}/jobs/{job}``; call it to make a name."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._parts = form.split("/")

    def __call__(self, *ids: str) -> str:
        """Return the name with these ids."""
        left = iter(ids)
        return "/".join(next(left) if part.startswith("{") else part for part in self._parts)

    def parse(self, name: str, field: str) -> list[str]:
        """Return the ids in a name.

        Raises:
            InputError: the name does not have this form; ``field`` is named.
        """
        given = name.split("/")
        pairs = list(zip(given, self._parts, strict=False))
        ids = [part for part, wanted in pairs if wanted.startswith("{")]
        fixed = all(part == wanted for part, wanted in pairs if not wanted.startswith("{"))
        if len(given) != len(self._parts) or not fixed or not all(map(NAME.fullmatch, ids)):
            told = f"{name[:80]!r} is malformed" if name else "it is empty"
            raise refuse("request", field, f"{told}: use {self._form}, each part {ID_RULE}")
        return ids

    def fabric(self, name: str, field: str) -> str:
        """Return the fabric of a name that has no other id; raises as ``parse``."""
        (fabric,) = self.parse(name, field)
        return fabric


fabric_name = NameForm("fabrics/{fabric}")
job_name = NameForm("fabrics/{fabric}/jobs/{job}")
demands_name = NameForm("fabrics/{fabric}/demands/{demands}")
reservation_name = NameForm("fabrics/{fabric}/reservations/{reservation}")
plan_name = NameForm("fabrics/{fabric}/plan")
overlay_name = NameForm("fabrics/{fabric}/overlay")


def check_id(value: str, field: str) -> str:
    """Return the value, if it may be the last part of a name.

    Raises:
        InputError: it may not; names the field and the rule.
    """
    if not NAME.fullmatch(value):
        raise refuse("request", field, f"{value[:80]!r} is not a valid id: use {ID_RULE}")
    return value
