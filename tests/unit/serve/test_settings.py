from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle.text import split_address
from heddle_controller.app import main
from heddle_controller.model.errors import InputError
from heddle_controller.settings import ENV_PREFIX, Settings, load_settings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LISTEN", "STORE", "METRICS_PORT", "TLS_CERT"):
        monkeypatch.delenv(f"HEDDLE_{name}", raising=False)


def test_defaults_serve_this_host_alone() -> None:
    """By default: loopback, one SQLite file, and no plain text for other hosts."""
    settings = load_settings()
    assert (settings.listen, settings.metrics_port) == ("127.0.0.1:7400", 7401)
    assert settings.store == "sqlite:///heddle.sqlite3"
    assert not settings.insecure


def test_ports_may_be_equal_on_different_addresses() -> None:
    """Port 0 asks the system for a free one, and two addresses share no port."""
    load_settings(listen="127.0.0.1:0", metrics_port=0, web_port=0)
    load_settings(listen="10.0.0.1:7401")


def test_an_option_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment overrides the default, and None means that an option is not given."""
    monkeypatch.setenv("HEDDLE_LISTEN", "10.0.0.1:1")
    monkeypatch.setenv("HEDDLE_METRICS_PORT", "9")
    settings = load_settings(listen="127.0.0.1:2", metrics_port=None)
    assert (settings.listen, settings.metrics_port) == ("127.0.0.1:2", 9)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("HEDDLE_LISTEN", "7400", "use host:port"),
        ("HEDDLE_LISTEN", "localhost:99999", "use host:port"),
        ("HEDDLE_METRICS_PORT", "eleven", "integer"),
        ("HEDDLE_METRICS_PORT", "70000", "65535"),
        ("HEDDLE_DEBOUNCE_SECONDS", "-1", "greater than or equal to 0"),
        ("HEDDLE_SOLVE_SECONDS", "nan", "3600"),
        ("HEDDLE_ENTRY_TTL_SECONDS", "inf", "finite"),
        ("HEDDLE_CALLS_PER_SECOND", "inf", "finite"),
        ("HEDDLE_AUDIT_RECORDS", "1_000", "no '_' among them"),
        ("HEDDLE_SOLVE_SECONDS", "1_0.5", "no '_' among them"),
        ("HEDDLE_LOG_LEVEL", "loud", "'debug', 'info'"),
        ("HEDDLE_TLS_CERT", "cert.pem", "belong together"),
        ("HEDDLE_TLS_CLIENT_CA", "ca.pem", "needs tls_cert"),
        ("HEDDLE_METRICS_PORT", "7400", "listen and metrics_port are both port 7400: give each"),
        ("HEDDLE_LISTEN", "0.0.0.0:7401", "listen and metrics_port are both port 7401"),
        ("HEDDLE_WEB_PORT", "7401", "metrics_port and web_port are both port 7401"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, text: str
) -> None:
    """The error names the variable or says what to give, in one line."""
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=text) as caught:
        load_settings()
    assert "\n" not in str(caught.value)


def test_a_refused_value_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in the wrong variable does not get into a log."""
    monkeypatch.setenv("HEDDLE_METRICS_PORT", "s3cret")
    with pytest.raises(InputError) as caught:
        load_settings()
    assert "s3cret" not in str(caught.value)


def test_tls_files_come_together() -> None:
    """A certificate needs its key, and may have an authority."""
    settings = load_settings(tls_cert="c", tls_key="k", tls_client_ca="a")
    assert settings.tls_client_ca == Path("a")


@pytest.mark.parametrize(
    ("text", "parts"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:7400", ("::1", 7400)), ("h:1", ("h", 1))],
)
def test_addresses_are_split(text: str, parts: tuple[str, int]) -> None:
    """Names, IPv4, and IPv6 in brackets are split."""
    assert split_address(text) == parts


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tls_cert": "c", "tls_key": "k"}, "nobody could get in"),
        ({"token_listen": "0.0.0.0:7403", "tokens": "t"}, "to hide them"),
        ({"tls_cert": "c", "tls_key": "k", "tls_client_ca": "a", "token_listen": "x:1"}, "tokens"),
        ({"token_listen": "7403"}, "use host:port"),
        ({"calls_per_second": "-1"}, "greater than or equal to 0"),
        ({"audit_records": "10"}, "greater than or equal to 1000"),
    ],
)
def test_doors_that_make_no_sense(given: dict[str, str], text: str) -> None:
    """The controller does not start if nobody could get in or tokens could be read."""
    with pytest.raises(InputError, match=text):
        load_settings(**given)


def test_doors_that_do() -> None:
    """TLS works with certificates, with tokens, or with both."""
    pair = {"tls_cert": "c", "tls_key": "k"}
    assert load_settings(**pair, tokens="t").tls_client_ca is None
    both = load_settings(**pair, tls_client_ca="a", tokens="t", token_listen="0.0.0.0:7403")
    assert both.token_listen == "0.0.0.0:7403"


def test_help_tells_each_setting_with_its_variable_kind_and_default() -> None:
    """``--help`` says what a setting does, how to write it, and its default."""
    shown = " ".join(CliRunner().invoke(main, ["serve", "--help"]).output.split())
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')} " in shown, name
        assert f"[{ENV_PREFIX}{name.upper()}" in shown, name
    assert "--store-timeout-seconds SECONDS A Redis" in shown
    assert "HEDDLE_STORE_TIMEOUT_SECONDS; default: 1]" in shown
    assert "--objective [headroom|economy] headroom:" in shown
    assert "--tls-cert FILE Certificate" in shown
