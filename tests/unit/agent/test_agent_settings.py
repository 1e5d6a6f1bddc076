from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from heddle_agent.app import next_hops
from heddle_agent.fib import NextHop
from heddle_agent.settings import Settings, SettingsError, load_settings

AGENT = Path(sys.executable).with_name("heddle-agent")
WHO = {"fabric": "fabrics/f1", "switch": "leaf0"}
RUN = "run --fabric fabrics/f1 --switch leaf0 --link spine0"
HERE = {**WHO, "controller": ("127.0.0.1:7400",), "link": ("spine0",)}


def complaint(**given: object) -> str:
    """Return the error for settings that cannot be used."""
    with pytest.raises(SettingsError) as caught:
        load_settings(**given)
    return str(caught.value)


def test_lists_come_as_one_string_or_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commas separate controllers and spaces separate links. Options override variables."""
    settings = load_settings(
        **WHO, controller=("a:1,b:2", "c:3"), link=("spine0", "spine1,2 spine1,3")
    )
    assert settings.controller == ("a:1", "b:2", "c:3")
    assert settings.link == ("spine0", "spine1,2", "spine1,3")
    monkeypatch.setenv("HEDDLE_AGENT_CONTROLLER", "x:1, y:2")
    monkeypatch.setenv("HEDDLE_AGENT_LINK", "spine7 spine8,1")
    monkeypatch.setenv("HEDDLE_AGENT_TABLE_SIZE", "77")
    settings = load_settings(**WHO, controller=(), table_size=None)
    assert (settings.controller, settings.link) == (("x:1", "y:2"), ("spine7", "spine8,1"))
    assert settings.table_size == 77
    assert load_settings(**HERE, table_size=5).table_size == 5


def test_missing_settings_are_named_with_both_ways_to_give_them() -> None:
    """The error has a line for each setting, with its option and its variable."""
    lines = complaint(link=("spine0",)).splitlines()
    assert lines == [
        "--fabric is missing: give it, or set HEDDLE_AGENT_FABRIC",
        "--controller is missing: give it, or set HEDDLE_AGENT_CONTROLLER",
        "--switch is missing: give it, or set HEDDLE_AGENT_SWITCH",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fabric": "f1"}, '--fabric (HEDDLE_AGENT_FABRIC): write it as "fabrics/f1"'),
        ({"fabric": "fabrics/a/b"}, "--fabric"),
        ({"link": ()}, "give --link NEIGHBOUR for each"),
        ({"link": (), "fib": "linux"}, "--fib linux forwards by the kernel's interfaces"),
        ({"table_size": -1}, "--table-size (HEDDLE_AGENT_TABLE_SIZE): Input should be greater"),
        ({"metrics_port": 65536}, "--metrics-port"),
        ({"fib": "asic"}, "--fib (HEDDLE_AGENT_FIB): Input should be 'memory', 'linux' or 'sonic'"),
        ({"tls_cert": "c.pem"}, "--tls-cert and --tls-key belong together"),
        ({"tls_cert": "c.pem", "tls_key": "k.pem"}, "--tls-cert needs --tls-ca"),
        ({"keepalive_seconds": "soon"}, "--keepalive-seconds"),
        ({"table_size": "1_000"}, "--table-size (HEDDLE_AGENT_TABLE_SIZE): write the number with"),
        ({"log_level": "loud"}, "--log-level"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, object], said: str) -> None:
    """The error names the option and the variable, and says what to do."""
    assert said in complaint(**{**HERE, **given})


def test_links_are_neighbours_with_keys() -> None:
    """The key of a link is "0" unless given."""
    settings = Settings.model_validate({**HERE, "link": ["spine0", "spine1,east"]})
    assert next_hops(settings) == [NextHop("spine0", "0"), NextHop("spine1", "east")]


@pytest.mark.parametrize("bad", ["spine0,", ",1", "spine0,1,2", "leaf0", "spine1 spine1,0"])
def test_links_that_are_none_are_refused(bad: str) -> None:
    """Refused are an empty half, too many keys, the switch itself and the same link twice."""
    with pytest.raises(SettingsError, match="--link"):
        next_hops(load_settings(**{**HERE, "link": (bad,)}))


def heddle_agent(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end and return what it printed."""
    return subprocess.run(
        [AGENT, *arguments], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("run", "--fabric is missing"),
        ("run --bogus", "No such option '--bogus'"),
        ("walk", "No such command 'walk'"),
        (
            f"{RUN} --controller nowhere",
            "address 'nowhere' is not host:port",
        ),
        (
            f"{RUN} --controller 10.9.8.7:7400",
            "controller 10.9.8.7:7400 is not on this machine",
        ),
        (
            f"{RUN} --controller localhost:1 --state-file /nowhere/at/all.json",
            "state file /nowhere/at/all.json cannot be written",
        ),
        (
            f"{RUN} --controller localhost:1 --tls-ca /nowhere/ca.pem",
            "/nowhere/ca.pem cannot be read",
        ),
    ],
)
def test_errors_of_the_command_are_plain_lines_and_status_2(arguments: str, said: str) -> None:
    """There is no traceback, and nothing on standard output."""
    done = heddle_agent(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert all(line.startswith("heddle-agent: ") for line in done.stderr.splitlines())


def test_help_tells_how_to_start() -> None:
    """The help names every setting's option and has an example to copy."""
    done = heddle_agent("run", "--help")
    assert done.returncode == 0
    assert "heddle-agent run --fabric fabrics/f1 --switch leaf0" in done.stdout
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in done.stdout
