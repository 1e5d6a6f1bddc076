"""Resource names: ``fabrics/f1``, ``fabrics/f1/jobs/j1``.

One place takes them apart, so that every RPC refuses a malformed name in the
same words, naming the field it came in.
"""

from __future__ import annotations

from heddle_controller.model.errors import InputError, refuse
from heddle_controller.state.admission import NAME

ID_RULE = "1 to 63 letters, digits, '-', '_' or '.'"


def fabric_name(fabric: str) -> str:
    """``fabrics/f1``."""
    return f"fabrics/{fabric}"


def job_name(fabric: str, job: str) -> str:
    """``fabrics/f1/jobs/j1``."""
    return f"fabrics/{fabric}/jobs/{job}"


def demands_name(fabric: str, demands: str) -> str:
    """``fabrics/f1/demands/d1``."""
    return f"fabrics/{fabric}/demands/{demands}"


def reservation_name(fabric: str, reservation: str) -> str:
    """``fabrics/f1/reservations/r1``."""
    return f"fabrics/{fabric}/reservations/{reservation}"


def plan_name(fabric: str) -> str:
    """``fabrics/f1/plan``."""
    return f"fabrics/{fabric}/plan"


def overlay_name(fabric: str) -> str:
    """``fabrics/f1/overlay``."""
    return f"fabrics/{fabric}/overlay"


def parse_fabric_name(name: str, field: str) -> str:
    """``f1`` of ``fabrics/f1``.

    Raises:
        InputError: when the name has another form.
    """
    (fabric,) = _parts(name, field, "fabrics/{fabric}")
    return fabric


def parse_job_name(name: str, field: str) -> tuple[str, str]:
    """``f1`` and ``j1`` of ``fabrics/f1/jobs/j1``.

    Raises:
        InputError: when the name has another form.
    """
    fabric, job = _parts(name, field, "fabrics/{fabric}/jobs/{job}")
    return fabric, job


def parse_demands(name: str, field: str) -> tuple[str, str]:
    """``f1`` and ``d1`` of ``fabrics/f1/demands/d1``.

    Raises:
        InputError: when the name has another form.
    """
    fabric, demands = _parts(name, field, "fabrics/{fabric}/demands/{demands}")
    return fabric, demands


def parse_reservation_name(name: str, field: str) -> tuple[str, str]:
    """``f1`` and ``r1`` of ``fabrics/f1/reservations/r1``.

    Raises:
        InputError: when the name has another form.
    """
    fabric, reservation = _parts(name, field, "fabrics/{fabric}/reservations/{reservation}")
    return fabric, reservation


def parse_plan_name(name: str, field: str) -> str:
    """``f1`` of ``fabrics/f1/plan``.

    Raises:
        InputError: when the name has another form.
    """
    (fabric,) = _parts(name, field, "fabrics/{fabric}/plan")
    return fabric


def parse_overlay(name: str, field: str) -> str:
    """``f1`` of ``fabrics/f1/overlay``.

    Raises:
        InputError: when the name has another form.
    """
    (fabric,) = _parts(name, field, "fabrics/{fabric}/overlay")
    return fabric


def _parts(name: str, field: str, form: str) -> list[str]:
    """What stands in the braces of ``form``."""
    given, wanted = name.split("/"), form.split("/")
    if len(given) != len(wanted):
        raise _malformed(name, field, form)
    found = []
    for part, pattern in zip(given, wanted, strict=True):
        if pattern.startswith("{"):
            found.append(part)
        elif part != pattern:
            raise _malformed(name, field, form)
    if not all(NAME.fullmatch(part) for part in found):
        raise _malformed(name, field, form)
    return found


def _malformed(name: str, field: str, form: str) -> InputError:
    told = f"{name[:80]!r} is malformed" if name else "it is empty"
    return refuse("request", field, f"{told}: use {form}, each part {ID_RULE}")


def check_id(value: str, field: str) -> str:
    """The value, if it may be the last part of a name.

    Raises:
        InputError: naming the field and the rule.
    """
    if not NAME.fullmatch(value):
        raise refuse("request", field, f"{value[:80]!r} is not a valid id: use {ID_RULE}")
    return value
