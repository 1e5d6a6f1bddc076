"""The options of a service on its command line, made from the class of its settings.

The class is one of pydantic-settings. A field is an option, the string under it is its help text,
and its title, if it has one, says how the value is written. This module needs neither pydantic nor
click, so that ``heddle.client`` needs none.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin


def option_keywords(settings: Any) -> Iterator[tuple[str, dict[str, Any]]]:  # noqa: ANN401 - a pydantic class
    """Yield the name of each option, and the keyword arguments of ``click.option`` for it."""
    for name, field in settings.model_fields.items():
        several = get_origin(field.annotation) is tuple
        keywords = {"is_flag": field.annotation is bool, "multiple": several, "default": None}
        yield f"--{name.replace('_', '-')}", keywords


def describe_options(options: Iterable[Any], settings: Any) -> None:  # noqa: ANN401 - click's, pydantic's
    """Set what ``--help`` shows of each option: text, variable, default, and how to write it.

    It is done only for ``--help``, so that a normal start does not wait for it.
    """
    texts, prefix = _texts(settings), settings.model_config["env_prefix"]
    for option in options:
        field = settings.model_fields.get(option.name)
        if field is not None:
            more = f"{prefix}{option.name.upper()}{_default(field)}"
            option.help = f"{texts[option.name]} [{more}]"
            option.metavar = None if option.is_flag else field.title or _kind(option.name, field)


def _texts(settings: type) -> dict[str, str]:
    """Return the help text of each field, read from the source of the class and of its bases."""
    found: dict[str, str] = {}
    for one in settings.__mro__:
        if one.__module__ == settings.__module__:
            (parsed,) = ast.parse(inspect.getsource(one)).body
            assert isinstance(parsed, ast.ClassDef)
            for field, text in pairwise(parsed.body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    assert isinstance(field.target, ast.Name)
                    assert isinstance(text.value, ast.Constant)
                    words = str(text.value.value).replace("``", "").split()
                    found.setdefault(field.target.id, " ".join(words))
    return found


def _kind(name: str, field: Any) -> str:  # noqa: ANN401 - pydantic's
    """Return how a value is written: ``SECONDS``, ``FILE``, ``[a|b]`` and so on."""
    kinds = get_args(field.annotation) or (field.annotation,)
    if isinstance(kinds[0], str):
        return f"[{'|'.join(kinds)}]"
    if Path in kinds:
        return "FILE"
    if {int, float} & set(kinds):
        unit = name.rpartition("_")[2]
        return unit.upper() if unit in {"seconds", "milliseconds"} else "NUMBER"
    return "TEXT"


def _default(field: Any) -> str:  # noqa: ANN401 - pydantic's
    """Return the default as an operator writes it; empty for a flag or a field without one."""
    if field.is_required():
        return "; required"
    if field.default_factory or field.default in (None, ()) or isinstance(field.default, bool):
        return ""
    default = field.default
    return f"; default: {default:g}" if isinstance(default, float) else f"; default: {default}"
