"""The settings that an operator gives, by flag or by environment variable; a flag wins.

Variables begin with ``HEDDLE_AGENT_`` for the agent of a switch and with ``HEDDLE_HOST_`` for the
agent of a host.

The wiring reads the settings once, at the start. Other packages receive plain values. An invalid
setting is refused before anything is opened, and the message names both the flag and the variable.
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
    """Settings with which no agent can run; the message has one line per problem."""


def _split(separator: str | None) -> BeforeValidator:
    """Accept a list as one string, or as several strings that may each hold several items."""

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
    """Settings of every process that talks with controllers. Times are in seconds."""

    fabric: str = Field(pattern=r"^fabrics/[^/\s]+$")
    """The fabric that the process is part of, such as ``fabrics/f1``."""
    controller: Addresses
    """Addresses of controllers, ``host:port``. A name may have several addresses."""

    tls_ca: Path | None = None
    """PEM file of the authorities that must have signed the certificates of controllers."""
    tls_cert: Path | None = None
    """PEM file of the process's own certificate chain."""
    tls_key: Path | None = None
    """PEM file of the process's private key."""
    insecure: bool = False
    """Allow plain text to controllers on other hosts."""
    keepalive_seconds: float = Field(default=6.0, ge=6, le=3600)
    """Send a keepalive after this much silence on a connection. Controllers refuse shorter
    intervals."""
    keepalive_timeout_seconds: float = Field(default=4.0, ge=0.1, le=600)
    """Close a connection whose keepalive is not answered within this time."""
    backoff_seconds: float = Field(default=5.0, ge=0.2, le=600)
    """Longest pause between two attempts to reach a controller."""

    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of Prometheus metrics; 0 picks a free one, None serves no metrics."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"
    """``auto`` is console on a terminal and JSON elsewhere."""

    @field_validator("*", mode="before")
    @classmethod
    def _plain_numbers(cls, value: object, info: ValidationInfo) -> object:
        """Refuse ``_`` in numbers, because Pydantic would read ``1_000`` as a thousand."""
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
    """Settings of the agent of a host, which writes files of source ports."""

    model_config = SettingsConfigDict(env_prefix=HOST_ENV_PREFIX, frozen=True, extra="forbid")

    host: str = Field(default_factory=socket.gethostname, min_length=1)
    """The host's name in the fabric file; by default the name of this machine."""
    nic: Links = ()
    """Ids of the host's NICs, if the fabric file does not say which host a NIC belongs to."""
    directory: Path = Path("/run/heddle/ports")
    """Folder of the port files."""
    hops: int = Field(default=5, ge=1, le=16)
    """Where switches only hash: number of switches on the longest path."""
    probes_per_second: float = Field(default=1000.0, ge=1, le=100_000)
    """Rate of the probes that find out which path each source port takes."""
    recheck_seconds: float = Field(default=60.0, ge=1, le=86_400)
    """All ports are probed again within this time."""
    probe_milliseconds: float = Field(default=10.0, ge=0, le=60_000)
    """Interval of probes on each path in use and each backup. With 0 there are no such probes, and
    no QP moves to its backup."""
    hold_seconds: float = Field(default=10.0, ge=0, le=86_400)
    """QPs return to a recovered path after it has worked for this long."""

    @field_validator("directory")
    @classmethod
    def _plain_path(cls, value: Path) -> Path:
        """Require a path that needs no quotes, because environment files contain it unquoted."""
        if not value.is_absolute() or any(c.isspace() or not c.isprintable() for c in str(value)):
            raise ValueError("give an absolute path without spaces")
        return value


class Settings(ProcessSettings):
    """Settings of the agent of a switch, which keeps a session with each controller."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    switch: str = Field(min_length=1)
    """Node id of the switch."""

    fib: Literal["memory", "linux", "sonic"] = "memory"
    """What forwards packets: a table in the agent, the kernel of this network namespace, or the
    chip of a SONiC switch."""
    sonic_redis: Path = Path("/var/run/redis/redis.sock")
    """Socket of SONiC's Redis."""
    link: Links = ()
    """Links of the switch, each written ``NEIGHBOUR`` or ``NEIGHBOUR,KEY``."""
    interfaces: str | None = Field(default=None, min_length=1)
    """Use the kernel's interfaces as links: ``alias``, or the path of a JSON file of interfaces."""
    probe_milliseconds: float = Field(default=50.0, ge=0, le=10_000)
    """Interval of probes over each of the kernel's links. Three lost in a row mean that the link is
    dead. 0 sends none."""
    flap_memory_seconds: float = Field(default=300.0, ge=0, le=86_400)
    """A link of the kernel that comes back is used again after a pause. The pause doubles for each
    time the link was lost within these last seconds."""
    table_size: int = Field(default=0, ge=0, lt=2**32)
    """Entries the switch can hold; 0 is unlimited."""
    hash_seed: int | None = Field(default=None, ge=0, lt=2**64)
    """Seed of the underlay's hash; by default it is derived from the switch's id."""

    state_file: Path | None = None
    """File that stores the highest epoch, so that a restarted agent still refuses older ones."""
    peer_notices: str | None = Field(default=None, min_length=1)
    """IP address and UDP port at which this switch exchanges notices with other agents. None
    disables notices."""
    peer_keys: Path | None = None
    """File with the keys of notices; by default the controller provides them."""
    peer_addresses: Path | None = None
    """File with the addresses of the peers; by default the controller provides them."""
    traces_endpoint: str | None = Field(default=None, pattern=r"^https?://")
    """URL of an OpenTelemetry collector that receives traces of pushes, by OTLP over gRPC."""

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
    """Return a switch agent's settings: from flags, else the environment, else the defaults.

    Flags that are None or empty count as not given. Raises SettingsError for settings that cannot
    be used.
    """
    return _load(Settings, ENV_PREFIX, given)


def load_host_settings(**given: object) -> HostSettings:
    """Return a host agent's settings, in the same way as ``load_settings``."""
    return _load(HostSettings, HOST_ENV_PREFIX, given)


def _load(kind: type[Kind], prefix: str, given: Mapping[str, object]) -> Kind:
    told: dict[str, Any] = {name: value for name, value in given.items() if value not in (None, ())}
    try:
        return kind(**told)
    except ValidationError as error:
        complaints = [_complaint(details, prefix) for details in error.errors()]
        raise SettingsError("\n".join(complaints)) from None


def _complaint(details: ErrorDetails, prefix: str) -> str:
    """Describe one problem in terms of the command line, without the value, which may be secret."""
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
