"""From a verified certificate to a caller.

A certificate says its role by a URI among its alternative names:

    spiffe://heddle/operator/ann        spiffe://heddle/agent/f1/leaf0
    spiffe://heddle/scheduler/slurm     spiffe://heddle/reader/grafana
    spiffe://heddle/host/f1/node-17

parts percent-encoded where an id holds what a URI may not. The trust domain ("heddle") is
a setting. Certificates of another make are mapped by a file, one line a rule, the first
that fits counts:

    # field of the certificate   value       role       (agents: fabric, switch;
                                                          hosts: fabric, host)
    cn                           slurm-*     scheduler
    ou                           netops      operator
    dns                          leaf0.dc1   agent      f1  leaf0

A certificate that says no role gives none: it is verified, and may do nothing. One with
two URIs of the trust domain is refused, as SPIFFE asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote

import grpc

from heddle_controller.model.errors import InputError, Problem, refuse
from heddle_controller.serve import errors
from heddle_controller.serve.security.caller import Caller, Role

FIELDS = ("uri", "dns", "email", "cn", "ou")
ROLES = {
    role.value: role for role in (Role.OPERATOR, Role.SCHEDULER, Role.READER, Role.AGENT, Role.HOST)
}
ONE_NODE = frozenset({Role.AGENT, Role.HOST})
"""Roles that speak for one node: a fabric and the node stand behind the role."""
_NODE_PARTS = 2
_RULE_WORDS = 3
_ATTRIBUTE = re.compile(r"([A-Za-z][A-Za-z0-9.-]*)=((?:[^\\,+]|\\.)*)[,+]?", re.DOTALL)
_ESCAPE = re.compile(r"((?:\\[0-9A-Fa-f]{2})+)|\\(.)", re.DOTALL)

TWO_ROLES = errors.Refusal(
    grpc.StatusCode.UNAUTHENTICATED,
    "TWO_ROLES",
    "the certificate names two roles: ask for one that names one",
)
Names = Mapping[str, Sequence[str]]
"""What a certificate says of its holder, by one of ``FIELDS``."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the file."""

    field: str
    pattern: str
    """``*`` and ``?`` as in file names."""
    caller: Caller

    def fits(self, names: Names) -> str | None:
        """The name that the rule is for; None if the certificate has none such."""
        for name in names.get(self.field, ()):
            if fnmatchcase(name, self.pattern):
                return name
        return None


@dataclass(frozen=True, slots=True)
class Mapper:
    """How certificates become callers."""

    trust_domain: str = "heddle"
    rules: tuple[Rule, ...] = ()

    def caller(self, names: Names) -> Caller:
        """The caller; ``NOBODY`` under the best name there is, where it has no role.

        Raises:
            Refusal: it has two roles, and which of them counts would be anybody's guess.
        """
        prefix = f"spiffe://{self.trust_domain}/"
        if len({uri for uri in names.get("uri", ()) if uri.startswith(prefix)}) > 1:
            raise TWO_ROLES
        for uri in names.get("uri", ()):
            found = self._of_uri(uri)
            if found is not None:
                return found
        for rule in self.rules:
            name = rule.fits(names)
            if name is not None:
                made = rule.caller
                return Caller(made.role, f"{rule.field} {name}", made.fabric, made.speaks_for)
        return Caller(Role.NOBODY, next((n for field in FIELDS for n in names.get(field, ())), ""))

    def _of_uri(self, uri: str) -> Caller | None:
        prefix = f"spiffe://{self.trust_domain}/"
        if not uri.startswith(prefix):
            return None
        role, *parts = (unquote(part) for part in uri.removeprefix(prefix).split("/"))
        if role not in ROLES or not all(parts):
            return None
        if ROLES[role] not in ONE_NODE:
            return Caller(ROLES[role], uri) if len(parts) == 1 else None
        return Caller(ROLES[role], uri, *parts) if len(parts) == _NODE_PARTS else None


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The rules of a file.

    Raises:
        InputError: it cannot be read, or names each line that is no rule.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(str(path), "", f"cannot be read: {error}") from None
    rules, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            rules.append(_rule(words))
        except ValueError as error:
            problems.append(Problem(f"line {number}", str(error)))
    if problems:
        raise InputError(str(path), *problems)
    return tuple(rules)


def _rule(words: Sequence[str]) -> Rule:
    if len(words) < _RULE_WORDS or words[0] not in FIELDS or words[2] not in ROLES:
        msg = f"is not FIELD VALUE ROLE, with FIELD of {', '.join(FIELDS)}, ROLE of {_ROLE_WORDS}"
        raise ValueError(msg)
    field, pattern, role, *rest = words
    if len(rest) != (_NODE_PARTS if ROLES[role] in ONE_NODE else 0):
        msg = (
            "an agent's line ends in its fabric and its switch, a host's in its fabric and its"
            " name, any other in its role"
        )
        raise ValueError(msg)
    return Rule(field, pattern, Caller(ROLES[role], "", *rest))


_ROLE_WORDS = ", ".join(ROLES)


def names_of(context: Mapping[str, Iterable[bytes]]) -> Names:
    """What gRPC's auth context says of the peer's certificate, by field."""
    names = {
        field: [_text(value) for value in context.get(key, ())]
        for field, key in (
            ("uri", "peer_uri"),
            ("dns", "peer_dns"),
            ("email", "peer_email"),
            ("cn", "x509_common_name"),
        )
    }
    subjects = [_text(value) for value in context.get("x509_subject", ())]
    names["ou"] = [value for subject in subjects for value in _units(subject)]
    return names


def _units(subject: str) -> list[str]:
    """Organisational units of a subject in RFC 2253's form, in which separators are escaped."""
    return [
        _ESCAPE.sub(_unescaped, value)
        for name, value in _ATTRIBUTE.findall(subject)
        if name == "OU"
    ]


def _unescaped(found: re.Match[str]) -> str:
    if found[1]:
        return bytes.fromhex(found[1].replace("\\", "")).decode(errors="replace")
    return found[2]


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
