"""What an operator may set, by option or by ``HEDDLE_`` variable.

Read once, at the start, by the wiring; the rooms are handed plain values. A
setting that makes no sense is refused before anything is opened.
"""

from __future__ import annotations

import ast
import inspect
import os
import socket
from itertools import pairwise
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


class Settings(BaseSettings):
    """The settings of one controller process. Times are in seconds."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    listen: str = "127.0.0.1:7400"
    """Address of the gRPC API, ``host:port``; port 0 takes a free one."""
    store: str = DEFAULT_STORE
    """Where intent and plans are kept: ``sqlite:///path`` for one controller, or a
    Redis that several share, ``redis://host:6379``, ``rediss://host``, ``unix:///socket``,
    ``redis+sentinel://host:26379,host:26379/service``, ``redis+cluster://host:6379,host:6379``."""
    store_ca: Path | None = None
    """PEM file of the authorities whom a Redis over TLS must be of; by default the system's."""
    store_cert: Path | None = None
    """PEM file of the certificate that a Redis over TLS is shown."""
    store_key: Path | None = None
    """PEM file of its private key."""
    store_timeout_seconds: float = Field(default=1.0, ge=0.05, le=60)
    """A Redis that does not answer for so long counts as lost."""
    store_wait_replicas: int = Field(default=0, ge=0, le=100)
    """Replicas of a Redis that must have a write before it is acknowledged."""
    metrics_host: str = "127.0.0.1"
    """Address of Prometheus' metrics."""
    metrics_port: int = Field(default=7401, ge=0, le=65535)
    """Port of Prometheus' metrics; 0 takes a free one."""
    web_host: str = "127.0.0.1"
    """Address of the page for people."""
    web_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the page for people; 0 takes a free one. By default there is no such page; it needs
    ``heddle-controller[web]`` installed."""
    web_viewers: int = Field(default=200, ge=1, le=10_000)
    """Browsers that may watch the page at once; others have to ask again."""
    web_reports: Path | None = None
    """Folder of drills' reports (``heddle-emulator drill --report``) that the page shows."""
    controller_id: str = Field(default_factory=_default_controller_id, min_length=1)
    """Name of this process among its replicas and in logs."""

    insecure: bool = False
    """Serve plain text to other hosts as well."""
    tls_cert: Path | None = None
    """PEM file of the server's certificate chain."""
    tls_key: Path | None = None
    """PEM file of its private key."""
    tls_client_ca: Path | None = None
    """PEM file of the authorities whose clients are let in; without it, tokens alone are taken."""
    certificate_trust_domain: str = Field(default="heddle", min_length=1)
    """Certificates say their role by a URI, ``spiffe://TRUST_DOMAIN/ROLE/NAME``."""
    certificate_roles: Path | None = None
    """File that gives roles to certificates without such a URI."""
    revoked_certificates: Path | None = None
    """File of client certificates that were taken back, by serial or fingerprint."""
    tokens: Path | None = None
    """File of bearer tokens; see ``heddle token new``."""
    token_listen: str | None = None
    """Second address, ``host:port``, for clients with a token and no certificate."""
    max_message_bytes: int = Field(default=64 << 20, ge=1 << 16, le=1 << 30)
    """Largest message taken or sent."""
    calls_per_second: float = Field(default=1000.0, ge=0, allow_inf_nan=False)
    """Calls of one client, averaged; 0 is without limit."""
    call_burst: float = Field(default=2000.0, ge=1, allow_inf_nan=False)
    """Calls of one client at once after a pause."""
    client_streams: int = Field(default=64, ge=0)
    """Streams of one client at a time; 0 is without limit."""
    audit_records: int = Field(default=100_000, ge=1000, le=100_000_000)
    """Records of the audit trail kept; the oldest go first."""

    debounce_seconds: float = Field(default=0.02, ge=0, le=60)
    """Changes that come within so long of one another are planned together."""
    compare_after_seconds: float = Field(default=1.0, ge=0.01, le=86_400)
    """After so long without a change, a repaired plan is compared with one made anew."""
    objective: Objective = "headroom"
    """What more entries are worth: headroom parts flows and evens out links below line rate, so
    that local repair finds room, where tables have room; economy writes as few as it takes."""
    solve_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Time limit of one solver run."""
    planner_seconds: float = Field(default=60.0, gt=0, le=3600)
    """A planning process that has not answered after so long, and as long again for every 25,000
    flows, is replaced; it should be more than ``solve_seconds``."""
    planner_silence_seconds: float = Field(default=5.0, gt=0, le=600)
    """So is one that owes an answer and has neither used nor wanted a processor for so long."""
    rollout_seconds: float = Field(default=5.0, gt=0, le=3600)
    """A switch that has not acknowledged after so long holds up only its own flows."""
    drain_seconds: float = Field(default=5.0, ge=0, le=300)
    """At shutdown, calls under way may take so long."""
    counter_interval_seconds: float = Field(default=10.0, ge=0, le=3600)
    """How often agents report counters; 0 is never."""
    unannounced_share: float = Field(default=0.1, ge=0, le=1)
    """Traffic between two NICs that no job and no demand set tells of is planned too, from this
    share of the NICs' speed on; 0 is never. It is found by counters."""
    entry_ttl_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Agents withdraw entries after so long without a controller; 0 is fail-static."""
    peer_key_secret: Path | None = None
    """File of the secret that keys of notices among agents follow from, the same for all replicas;
    made if there is none. By default it is beside the store, or in it."""
    peer_key_seconds: float = Field(default=86_400.0, ge=60, le=10_000_000)
    """Agents sign notices to each other with a new key after so long."""
    agent_queue: int = Field(default=64, ge=1, le=100_000)
    """Pushes that may wait for one agent before they are coalesced into a FULL_SYNC."""

    traces_endpoint: str | None = Field(default=None, pattern=r"^https?://")
    """Send traces to this collector of OpenTelemetry, by OTLP over gRPC:
    ``http://127.0.0.1:4317``; it takes heddle-controller[traces]. Without it there are none."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """debug also logs every call."""
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
        """File of the embedded store; None for another."""
        if not self.store.startswith(SQLITE):
            return None
        return Path(self.store.removeprefix(SQLITE))

    @property
    def peer_key_secret_path(self) -> Path | None:
        """File of the secret that keys of notices follow from; None: the store has it."""
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


def load_settings(**given: object) -> Settings:
    """Settings from the options given, then the environment, then the defaults.

    Options that are None count as not given.

    Raises:
        InputError: with a problem for each setting that makes no sense.
    """
    told: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings(**told)
    except ValidationError as error:
        problems = [_problem(details) for details in error.errors()]
        raise InputError("settings", *problems) from None


def _problem(details: ErrorDetails) -> Problem:
    """One complaint of pydantic in the house's words, without the value: it may be secret."""
    name = ".".join(str(part) for part in details["loc"])
    record = f"{name} ({ENV_PREFIX}{name.upper()})" if name else ""
    return Problem(record, str(details["msg"]).removeprefix("Value error, "))


def told_of_settings() -> dict[str, str]:
    """What each setting is, by name: the words below it in this file, read only for help."""
    (settings,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(settings, ast.ClassDef)
    return {
        field.target.id: str(words.value.value)
        for field, words in pairwise(settings.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(words, ast.Expr)
        and isinstance(words.value, ast.Constant)
    }
