"""The settings that an operator gives, by flag or by environment variable; a flag wins.

Variables begin with ``HEDDLE_AGENT_`` for the agent of a switch and with ``HEDDLE_HOST_`` for the
agent of a host.

The wiring reads the settings once, at the start. Other packages receive plain values. An invalid
setting is refused before anything is opened, and the message names both the flag and the variable.

The string under each field is its help text.
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

    fabric: str = Field(pattern=r"^fabrics/[^/\s]+$", title="NAME")
    """Fabric of the switch or host, such as ``fabrics/f1``."""
    controller: Addresses = Field(title="HOST:PORT[,HOST:PORT]...")
    """All controllers. A switch's agent keeps a session with each, and retries those that are away.
    A host's agent reads ports from one, and from the next if that one goes away."""

    tls_ca: Path | None = None
    """Certificate authorities of the controllers, PEM."""
    tls_cert: Path | None = None
    """Certificate chain of the agent, PEM."""
    tls_key: Path | None = None
    """Private key of the agent, PEM."""
    insecure: bool = False
    """Allow connections without TLS to controllers on other machines."""
    keepalive_seconds: float = Field(default=6.0, ge=6, le=3600)
    """Send a keepalive after this much silence on a connection. Controllers refuse shorter
    intervals."""
    keepalive_timeout_seconds: float = Field(default=4.0, ge=0.1, le=600)
    """Close a connection whose keepalive is not answered within this time."""
    backoff_seconds: float = Field(default=5.0, ge=0.2, le=600)
    """Longest pause between two attempts to reach a controller."""

    metrics_host: str = "127.0.0.1"
    """Address of the metrics for Prometheus."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the metrics for Prometheus; 0 takes a free one. Without it there are no metrics."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged."""
    log_format: Literal["auto", "console", "json"] = "auto"
    """auto: console on a terminal, JSON elsewhere."""

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
    """Name of the host in the fabric file. Default: the name of this machine."""
    nic: Links = Field(default=(), title="NODE")
    """A NIC of the host, if the fabric file names no hosts. Repeat the option for each NIC. Needs a
    certificate with the role of a reader."""
    directory: Path = Field(default=Path("/run/heddle/ports"), title="FOLDER")
    """Folder of the files."""
    hops: int = Field(default=5, ge=1, le=16)
    """Where switches only hash: number of switches on the longest path."""
    probes_per_second: float = Field(default=1000.0, ge=1, le=100_000)
    """Where switches only hash: rate of the probes that find the path of each source port."""
    recheck_seconds: float = Field(default=60.0, ge=1, le=86_400)
    """Where switches only hash: all ports are probed again within this time."""
    probe_milliseconds: float = Field(default=10.0, ge=0, le=60_000)
    """Where switches only hash: interval of probes on each path in use and each backup. After a
    lost probe the next follows at once. After three in a row the QPs get the ports of their
    backups. 0 sends none."""
    hold_seconds: float = Field(default=10.0, ge=0, le=86_400)
    """QPs return to a path after it has worked again for this long."""

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

    switch: str = Field(min_length=1, title="NODE")
    """Id of the switch in the fabric file."""

    fib: Literal["memory", "linux", "sonic"] = "memory"
    """What forwards packets: a table in the agent, the kernel of this network namespace, or a SONiC
    switch."""
    sonic_redis: Path = Path("/var/run/redis/redis.sock")
    """Socket of SONiC's Redis."""
    link: Links = Field(default=(), title="NEIGHBOUR[,KEY]")
    """A link of the switch. Repeat the option for each link. Parallel links differ in KEY."""
    interfaces: str | None = Field(default=None, min_length=1, title="alias|FILE")
    """Use the kernel's interfaces as links: those with an alias NEIGHBOUR,KEY[,GBPS], or those in a
    JSON file."""
    probe_milliseconds: float = Field(default=50.0, ge=0, le=10_000)
    """Interval of probes over each of the kernel's links, to detect silent loss. Three lost in a
    row mean that the link is dead. 0 sends none."""
    flap_memory_seconds: float = Field(default=300.0, ge=0, le=86_400)
    """A link that comes back stays unused for a while, twice as long for each loss within this
    time."""
    table_size: int = Field(default=0, ge=0, lt=2**32)
    """How many entries the switch can hold; 0 is unlimited."""
    hash_seed: int | None = Field(default=None, ge=0, lt=2**64)
    """Seed of the ECMP hash. By default it is derived from the switch's id."""

    state_file: Path | None = None
    """Stores the highest epoch here, so that a restarted agent still refuses old leaders."""
    peer_notices: str | None = Field(default=None, min_length=1, title="IP:PORT")
    """Local address for notices of lost links between agents, over UDP."""
    peer_keys: Path | None = None
    """Keys of peer notices, hexadecimal, one per line; the first one signs. By default the
    controller provides them."""
    peer_addresses: Path | None = None
    """Addresses of peers as JSON, such as ``{"spine0": "10.0.0.1:7402"}``. By default the
    controller provides them."""
    traces_endpoint: str | None = Field(default=None, pattern=r"^https?://", title="URL")
    """Sends traces of pushes to this OpenTelemetry collector (OTLP over gRPC), such as
    ``http://127.0.0.1:4317``. Needs heddle-agent[traces]."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.link and self.interfaces is not None:
            raise ValueError("--link and --interfaces both name the links: give one of them")
        if self.fib != "memory" and self.interfaces is None:
            raise ValueError(
                f"--fib {self.fib} forwards by the kernel's interfaces: give --interfaces alias, or"
                " a file, in place of --link"
            )
        if not self.link and self.interfaces is None:
            raise ValueError(
                "a switch in memory has no links but those it is told of: give --link NEIGHBOUR"
                f" for each, or {ENV_PREFIX}LINK, or --interfaces alias to take the kernel's"
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
