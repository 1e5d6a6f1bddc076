"""What an operator may set, by option or by ``HEDDLE_`` variable.

``app.py`` reads the settings once, at the start, and gives other packages plain values. A setting
that makes no sense is refused before anything is opened.

The string under each field of ``Settings`` is its help text.
"""

from __future__ import annotations

import os
import socket
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from heddle.text import split_address
from heddle_controller.model.errors import InputError, Problem
from heddle_controller.model.plan import Objective
from heddle_controller.store.redis.address import SCHEMES, parse_address

ENV_PREFIX = "HEDDLE_"
SQLITE = "sqlite:///"
DEFAULT_STORE = f"{SQLITE}heddle.sqlite3"


def _default_controller_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


_EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - to be compared with


class Settings(BaseSettings):
    """The settings of one controller process. Times are in seconds."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    listen: str = Field(default="127.0.0.1:7400", title="HOST:PORT")
    """Address of the gRPC API; port 0 takes a free port."""
    store: str = DEFAULT_STORE
    """Where intent and plans are kept. One controller uses a file, ``sqlite:///path``. Replicas
    share a Redis: ``redis://host:6379``, ``rediss://host``, ``unix:///socket``,
    ``redis+sentinel://host:26379,host:26379/service``, ``redis+cluster://host:6379,host:6379``."""
    store_ca: Path | None = None
    """Certificate authorities of a Redis that uses TLS, as PEM. Default: those of the system."""
    store_cert: Path | None = None
    """Client certificate for a Redis that uses TLS, as PEM."""
    store_key: Path | None = None
    """Private key of the client certificate for Redis, as PEM."""
    store_timeout_seconds: float = Field(default=1.0, ge=0.05, le=60)
    """A Redis that does not answer within this time counts as lost."""
    store_wait_replicas: int = Field(default=0, ge=0, le=100)
    """A write is acknowledged when this number of Redis replicas have it."""
    metrics_host: str = "127.0.0.1"
    """Address of the metrics for Prometheus."""
    metrics_port: int = Field(default=7401, ge=0, le=65535)
    """Port of the metrics for Prometheus; 0 takes a free port."""
    web_host: str = "127.0.0.1"
    """Address of the web page."""
    web_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the web page; 0 takes a free port. Without this option there is no web page. The page
    needs ``heddle-controller[web]``."""
    web_viewers: int = Field(default=200, ge=1, le=10_000)
    """Browsers that may watch the web page at the same time."""
    web_reports: Path | None = Field(default=None, title="FOLDER")
    """Folder with drill reports (``heddle-emulator drill --report``) for the web page."""
    controller_id: str = Field(default_factory=_default_controller_id, min_length=1)
    """Name of this process among its replicas and in logs. Default: host name and process id."""

    insecure: bool = False
    """Allow connections without TLS from other hosts."""
    tls_cert: Path | None = None
    """Certificate chain of the server, as PEM."""
    tls_key: Path | None = None
    """Private key of the server, as PEM."""
    tls_client_ca: Path | None = None
    """Certificate authorities of clients, as PEM. Without it, clients need a token."""
    certificate_trust_domain: str = Field(default="heddle", min_length=1)
    """A client certificate names its role in the URI ``spiffe://TRUST_DOMAIN/ROLE/NAME``."""
    certificate_roles: Path | None = None
    """File with the roles of client certificates that have no such URI."""
    revoked_certificates: Path | None = None
    """File with the serial numbers or fingerprints of revoked client certificates."""
    tokens: Path | None = None
    """File with bearer tokens; ``heddle token new`` makes them."""
    token_listen: str | None = Field(default=None, title="HOST:PORT")
    """Second address, for clients that have a token but no certificate."""
    max_message_bytes: int = Field(default=64 << 20, ge=1 << 16, le=1 << 30)
    """Size of the largest message that is received or sent."""
    calls_per_second: float = Field(default=1000.0, ge=0, allow_inf_nan=False)
    """Calls that each client may make per second, on average; 0 means no limit."""
    call_burst: float = Field(default=2000.0, ge=1, allow_inf_nan=False)
    """Calls that each client may make at once after a pause."""
    client_streams: int = Field(default=64, ge=0)
    """Streams that each client may have open at the same time; 0 means no limit."""
    audit_records: int = Field(default=100_000, ge=1000, le=100_000_000)
    """Records that the audit trail keeps; the oldest are deleted first."""

    debounce_seconds: float = Field(default=0.02, ge=0, le=60)
    """Changes within this time are planned together."""
    compare_after_seconds: float = Field(default=1.0, ge=0.01, le=86_400)
    """After this time without a change, a repaired plan is compared with a new plan."""
    objective: Objective = "headroom"
    """headroom: where tables have room, split flows and balance links that are not full, so that
    local repair finds room. economy: write as few entries as possible."""
    solve_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Time limit of one solver run."""
    planner_seconds: float = Field(default=60.0, gt=0, le=3600)
    """A planning process that has not answered after this time, plus the same time for every 25,000
    flows, is replaced. Use more than ``solve_seconds``."""
    planner_silence_seconds: float = Field(default=5.0, gt=0, le=600)
    """A planning process that owes an answer, and has neither used nor waited for a processor for
    this time, is replaced."""
    rollout_seconds: float = Field(default=5.0, gt=0, le=3600)
    """A switch that has not acknowledged after this time delays only its own flows."""
    drain_seconds: float = Field(default=5.0, ge=0, le=300)
    """Time that calls in progress have to finish at shutdown."""
    counter_interval_seconds: float = Field(default=10.0, ge=0, le=3600)
    """Interval at which agents report counters; 0 means never."""
    unannounced_share: float = Field(default=0.1, ge=0, le=1)
    """Traffic between two NICs that belongs to no job and no demand set is planned if counters show
    that it uses at least this share of the NICs' speed; 0 means never."""
    entry_ttl_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Agents withdraw their entries after this time without a controller; 0 means never."""
    peer_key_secret: Path | None = None
    """File with the secret for the keys of peer notices; the same for all replicas. It is created
    if it is missing. Default: beside the SQLite file, or in Redis."""
    peer_key_seconds: float = Field(default=86_400.0, ge=60, le=10_000_000)
    """Interval at which agents get a new key for peer notices."""
    agent_queue: int = Field(default=64, ge=1, le=100_000)
    """Pushes that may wait for one agent; more become one FULL_SYNC."""

    traces_endpoint: str | None = Field(default=None, pattern=r"^https?://")
    """OpenTelemetry collector for traces, OTLP over gRPC, such as ``http://127.0.0.1:4317``.
    Without it there are no traces. They need ``heddle-controller[traces]``."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged; debug also logs every call."""
    log_format: Literal["auto", "console", "json"] = "auto"
    """auto: console on a terminal, JSON elsewhere."""

    @field_validator("*", mode="before")
    @classmethod
    def _plain_numbers(cls, value: object, info: ValidationInfo) -> object:
        """Refuse numbers with '_', because Pydantic would read ``1_000`` as a thousand."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, str) and "_" in value and {int, float} & {kind, *get_args(kind)}:
            raise ValueError("write the number with the digits 0 to 9, and no '_' among them")
        return value

    @field_validator("listen", "token_listen")
    @classmethod
    def _listen_has_port(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value)
        return value

    @field_validator("store")
    @classmethod
    def _store_has_an_address(cls, value: str) -> str:
        if value.partition(":")[0] in SCHEMES:
            parse_address(value)
        elif not value.removeprefix(SQLITE) or not value.startswith(SQLITE):
            msg = (
                "not an address of a store: use sqlite:///path, such as sqlite:////var/lib/x.db, "
                "or a Redis', such as redis://127.0.0.1:6379"
            )
            raise ValueError(msg)
        return value

    @property
    def store_path(self) -> Path | None:
        """File of the embedded store; None if the store is a Redis."""
        if not self.store.startswith(SQLITE):
            return None
        return Path(self.store.removeprefix(SQLITE))

    @property
    def peer_key_secret_path(self) -> Path | None:
        """File with the secret for the keys of peer notices; None if the store keeps the secret."""
        path = self.store_path
        if self.peer_key_secret is not None or path is None:
            return self.peer_key_secret
        return path.with_name(f"{path.name}.peer-keys")

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            msg = "tls_cert and tls_key belong together: give both or neither"
            raise ValueError(msg)
        if (self.store_cert is None) != (self.store_key is None):
            msg = "store_cert and store_key belong together: give both or neither"
            raise ValueError(msg)
        if self.tls_client_ca is not None and self.tls_cert is None:
            msg = "tls_client_ca needs tls_cert and tls_key: give them too"
            raise ValueError(msg)
        if self.revoked_certificates is not None and self.tls_client_ca is None:
            msg = "revoked_certificates are those of clients: give tls_client_ca too"
            raise ValueError(msg)
        if self.tls_cert is not None and self.tls_client_ca is None and self.tokens is None:
            msg = "over TLS nobody could get in: give tls_client_ca, or tokens, or both"
            raise ValueError(msg)
        if self.token_listen is not None and None in (self.tls_cert, self.tokens):
            msg = "token_listen needs tokens, and tls_cert and tls_key to hide them: give them too"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        listens = ("listen", self.listen), ("token_listen", self.token_listen)
        asked = [(name, *split_address(value)) for name, value in listens if value is not None]
        asked.append(("metrics_port", self.metrics_host, self.metrics_port))
        if self.web_port is not None:
            asked.append(("web_port", self.web_host, self.web_port))
        for (one, host, port), (other, where, same) in combinations(asked, 2):
            if port == same != 0 and (host == where or {host, where} & _EVERYWHERE):
                msg = f"{one} and {other} are both port {port}: give each a port of its own"
                raise ValueError(msg)
        return self


def load_settings(**given: object) -> Settings:
    """Return the settings: from these options, else from the environment, else the defaults.

    An option that is None counts as not given.

    Raises:
        InputError: a setting makes no sense; has one problem for each.
    """
    told: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings(**told)
    except ValidationError as error:
        problems = [_problem(details) for details in error.errors()]
        raise InputError("settings", *problems) from None


def _problem(details: ErrorDetails) -> Problem:
    """Turn an error of Pydantic into a problem, without the value, which may be secret."""
    name = ".".join(str(part) for part in details["loc"])
    record = f"{name} ({ENV_PREFIX}{name.upper()})" if name else ""
    return Problem(record, str(details["msg"]).removeprefix("Value error, "))
