"""What an operator may set, by flag or by variable; a flag wins.

Variables begin with ``HEDDLE_AGENT_`` for the agent of a switch, with ``HEDDLE_HOST_`` for that of
a host.

Read once, at the start, by the wiring; the rooms are handed plain values. A setting that makes no
sense is refused before anything is opened, and the message says how to give it either way.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

ENV_PREFIX = "HEDDLE_AGENT_"
HOST_ENV_PREFIX = "HEDDLE_HOST_"


class SettingsError(Exception):
    """Settings with which no agent can run; one line each, and what to do."""


def _split(separator: str | None) -> BeforeValidator:
    """Let a list be given as one string, or as several that may hold several."""

    def split(value: object) -> object:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple):
            return value
        return [part.strip() for text in texts for part in text.split(separator) if part.strip()]

    return BeforeValidator(split)


Addresses = Annotated[tuple[str, ...], NoDecode, _split(","), Field(min_length=1)]
Kind = TypeVar("Kind", bound="ProcessSettings")
Links = Annotated[tuple[str, ...], NoDecode, _split(None)]


class ProcessSettings(BaseSettings):
    """What every process sets that talks with controllers. Times are in seconds."""

    fabric: str = Field(pattern=r"^fabrics/[^/\s]+$")
    """The fabric it is part of, ``fabrics/f1``."""
    controller: Addresses
    """Addresses of controllers, ``host:port``; a name may have several addresses."""

    tls_ca: Path | None = None
    """PEM file of the authorities that controllers are trusted by."""
    tls_cert: Path | None = None
    """PEM file of its own certificate chain."""
    tls_key: Path | None = None
    """PEM file of its private key."""
    insecure: bool = False
    """Speak plain text to controllers on other hosts."""
    keepalive_seconds: float = Field(default=6.0, ge=6, le=3600)
    """A connection on which nothing comes back for so long is probed; controllers refuse more."""
    keepalive_timeout_seconds: float = Field(default=4.0, ge=0.1, le=600)
    """It is given up where a probe is not answered for so long: the controller hangs or is gone."""
    backoff_seconds: float = Field(default=5.0, ge=0.2, le=600)
    """Longest pause between two attempts to reach a controller."""

    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of Prometheus' metrics; 0 takes a free one, without it there are none."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"
    """auto is console on a terminal and JSON elsewhere."""

    @field_validator("*", mode="before")
    @classmethod
    def _plain_numbers(cls, value: object, info: ValidationInfo) -> object:
        """Pydantic would take ``1_000`` for a thousand."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, str) and "_" in value and {int, float} & {kind, *get_args(kind)}:
            raise ValueError("write the number with the digits 0 to 9, and no '_' among them")
        return value

    @model_validator(mode="after")
    def _tls_fits_together(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key belong together: give both or neither")
        if self.tls_cert is not None and self.tls_ca is None:
            raise ValueError("--tls-cert needs --tls-ca, to know the controller by: give it too")
        return self


class HostSettings(ProcessSettings):
    """The settings of the agent of a host, which writes down ports."""

    model_config = SettingsConfigDict(env_prefix=HOST_ENV_PREFIX, frozen=True, extra="forbid")

    host: str = Field(default_factory=socket.gethostname, min_length=1)
    """The host's name in the fabric file; by default that of this machine."""
    nic: Links = ()
    """Ids of the host's NICs, where the fabric file does not say which host NICs are of."""
    directory: Path = Path("/run/heddle/ports")
    """Folder of the files."""
    hops: int = Field(default=5, ge=1, le=16)
    """Where switches hash: how many are on the longest path."""
    probes_per_second: float = Field(default=1000.0, ge=1, le=100_000)
    """How many probes are sent a second to find out which path each port takes."""
    recheck_seconds: float = Field(default=60.0, ge=1, le=86_400)
    """Within how long all ports are probed again."""
    probe_milliseconds: float = Field(default=10.0, ge=0, le=60_000)
    """How often each path in use is probed, and each backup; 0 probes none, and no QP is moved."""
    hold_seconds: float = Field(default=10.0, ge=0, le=86_400)
    """How long a path that is back has to last before QPs return to it."""

    @field_validator("directory")
    @classmethod
    def _plain_path(cls, value: Path) -> Path:
        """The path stands in environment files, which quote nothing."""
        if not value.is_absolute() or any(c.isspace() or not c.isprintable() for c in str(value)):
            raise ValueError("give an absolute path without spaces")
        return value


class Settings(ProcessSettings):
    """The settings of the agent of a switch. There is a session with each controller."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    switch: str = Field(min_length=1)
    """Node id of the switch."""

    fib: Literal["memory", "linux", "sonic"] = "memory"
    """What forwards packets: a table in the agent, the kernel of this network namespace, or the
    chip of a SONiC switch."""
    sonic_redis: Path = Path("/var/run/redis/redis.sock")
    """Socket of SONiC's Redis."""
    link: Links = ()
    """Links of the switch, ``NEIGHBOUR`` or ``NEIGHBOUR,KEY``."""
    interfaces: str | None = Field(default=None, min_length=1)
    """Find links among the kernel's interfaces: ``alias``, or a JSON file of interfaces."""
    probe_milliseconds: float = Field(default=50.0, ge=0, le=10_000)
    """Interval of probes over each link that the kernel has; three lost in a row are a dead link.
    0 sends none."""
    flap_memory_seconds: float = Field(default=300.0, ge=0, le=86_400)
    """A link of the kernel that comes back is used after a pause that doubles with each time it was
    lost in so many seconds before."""
    table_size: int = Field(default=0, ge=0, lt=2**32)
    """Entries the switch can hold; 0 is unlimited."""
    hash_seed: int | None = Field(default=None, ge=0, lt=2**64)
    """Seed of the underlay's hash; by default it follows from the switch's name."""

    state_file: Path | None = None
    """Where the highest epoch is kept, so that a restarted agent still refuses older ones."""
    peer_notices: str | None = Field(default=None, min_length=1)
    """IP address and UDP port of this switch for notices among agents; without it, none."""
    peer_keys: Path | None = None
    """File of the keys of notices; by default the controller names them."""
    peer_addresses: Path | None = None
    """File of the agents to tell; by default the controller names them."""
    traces_endpoint: str | None = Field(default=None, pattern=r"^https?://")
    """Send traces of pushes to this collector of OpenTelemetry, by OTLP over gRPC."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.link and self.interfaces is not None:
            raise ValueError("--link and --interfaces both name the links: give one of them")
        if not self.link and self.interfaces is None:
            raise ValueError(
                "a switch in memory has no links but those it is told of: give --link NEIGHBOUR"
                f" for each, or {ENV_PREFIX}LINK, or --interfaces alias to take the kernel's"
            )
        if self.fib != "memory" and self.interfaces is None:
            raise ValueError(
                f"--fib {self.fib} forwards by the kernel's interfaces: give --interfaces alias, or"
                " a file, in place of --link"
            )
        if self.peer_notices is None and (self.peer_keys or self.peer_addresses):
            raise ValueError("--peer-keys and --peer-addresses need --peer-notices: give it too")
        return self


def load_settings(**given: object) -> Settings:
    """Settings of a switch's agent from the flags, then the environment, then the defaults.

    Flags that are None or empty count as not given. SettingsError says what cannot be used.
    """
    return _load(Settings, ENV_PREFIX, given)


def load_host_settings(**given: object) -> HostSettings:
    """Settings of a host's agent, likewise."""
    return _load(HostSettings, HOST_ENV_PREFIX, given)


def _load(kind: type[Kind], prefix: str, given: Mapping[str, object]) -> Kind:
    told: dict[str, Any] = {name: value for name, value in given.items() if value not in (None, ())}
    try:
        return kind(**told)
    except ValidationError as error:
        complaints = [_complaint(details, prefix) for details in error.errors()]
        raise SettingsError("\n".join(complaints)) from None


def _complaint(details: ErrorDetails, prefix: str) -> str:
    """One complaint in the words of the command line, without the value: it may be secret."""
    message = details["msg"].removeprefix("Value error, ")
    if not details["loc"]:
        return message
    name = str(details["loc"][0])
    flag, variable = f"--{name.replace('_', '-')}", f"{prefix}{name.upper()}"
    if details["type"] == "missing":
        return f"{flag} is missing: give it, or set {variable}"
    if name == "fabric":
        message = 'write it as "fabrics/f1"'
    return f"{flag} ({variable}): {message}"
