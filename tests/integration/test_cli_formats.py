"""How ``heddle`` takes its options and prints its output: YAML, settings files, watching."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.shell_completion import BashComplete

from heddle_controller.cli import completing
from heddle_controller.cli.main import main
from heddle_controller.state.records import JobState
from tests.integration.test_cli_job import jobs_file, tell
from tests.support.operating import Operator, heddle, operating
from tests.support.serving import told_down
from tests.support.waiting import PATIENCE

HEDDLE = Path(sys.executable).parent / "heddle"


async def planned(o: Operator) -> None:
    """Put a fabric and commit the sample plan."""
    await o.s.put_fabric()
    await o.s.commit_plan()


COMMANDS = (
    ("job", "list"),
    ("job", "reservations"),
    ("show", "plan"),
    ("show", "links"),
    ("show", "routes"),
    ("show", "explain", "j1/f0"),
    ("show", "what-if", "--drain", "l0,s1"),
    ("fabric", "list"),
    ("fabric", "show"),
    ("demand", "list"),
    ("overlay", "show"),
    ("history",),
    ("audit", "list"),
)


async def test_yaml_says_what_json_says(tmp_path: Path) -> None:
    """``--yaml`` prints the documents that ``--json`` prints, before or after the command.

    They have all numbers and words of the tables, also those that are 0 or empty.
    """
    async with operating(tmp_path) as o:
        await planned(o)
        await o.does("job", "submit", jobs_file(tmp_path))
        for words in COMMANDS:
            plain = await o.does(*words, "--json")
            told = [json.loads(line) for line in plain.out.splitlines()]
            assert told, words
            for asked in ((*words, "--yaml"), ("--yaml", *words), ("--json", *words, "--yaml")):
                done = await o.does(*asked)
                assert done.code == plain.code, done.err
                assert list(yaml.safe_load_all(done.out)) == told, asked
            assert (await o.does("--yaml", *words, "--json")).out == plain.out
        jobs = (await o.does("job", "list", "--json")).json
        assert {(one["unrouted_count"], one["reason"]) for one in jobs} == {(0, "")}
        both = await o.does("job", "list", "--yaml", "--json")
        assert (both.code, "give one of them" in both.err) == (2, True)


async def test_a_file_has_what_is_typed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Command line options come first, then variables, then the settings file.

    The file is found below ``XDG_CONFIG_HOME``, or named by an option or a variable.
    """
    folder = tmp_path / "config" / "heddle"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    async with operating(tmp_path) as o:
        await planned(o)
        server = f"127.0.0.1:{o.s.api.port}"
        (folder / "config.toml").write_text(f'server = "{server}"\nfabric = "f2"\njson = true\n')

        async def run(*words: str, **variables: str) -> Any:
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            try:
                return await asyncio.to_thread(heddle, *words)
            finally:
                for name in variables:
                    monkeypatch.delenv(name)

        missing = await run("job", "list")
        assert (missing.code, "f2" in missing.err) == (2, True)
        assert (await run("--fabric", "f1", "job", "list")).json == []
        assert (await run("job", "list", "--fabric", "f1")).json == []
        assert (await run("job", "list", HEDDLE_FABRIC="f1")).json == []
        far = await run("--fabric", "f1", "job", "list", HEDDLE_SERVER="127.0.0.1:1")
        assert (far.code, "127.0.0.1:1" in far.err) == (2, True)
        other = tmp_path / "other.toml"
        other.write_text(f'server = ["127.0.0.1:1", "{server}"]\nfabric = "f1"\ntimeout = 30\n')
        shown = await run("--config", str(other), "job", "list")
        assert (shown.code, shown.lines[0][0]) == (0, "JOB"), shown.err
        assert (await run("show", "plan", HEDDLE_CONFIG=str(other))).code == 0
        listed = await run("fabric", "list", HEDDLE_CONFIG=str(other))
        assert (listed.code, listed.lines[1][0]) == (0, "f1"), listed.err
        monkeypatch.setenv("HEDDLE_CONFIG", str(other))
        shell = BashComplete(main, {}, "heddle", "_HEDDLE_COMPLETE")
        found = shell.get_completions(["fabric"], "li")
        assert [one.value for one in found] == ["link", "list"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server = 7400 7401\n", "is no TOML"),
        ('sever = "a:1"\n', "unknown key 'sever'; did you mean server?"),
        ('config = "x"\n', "unknown key 'config'"),
        ('json = "yes"\n', "json is 'yes'; give true or false"),
        ("server = true\n", "server is True; give a value"),
        ("server = 7400\n", "config.toml: server: '7400' is not an address"),
        ("[server]\na = 1\n", "server is {'a': 1}; give a text or a number"),
        ("timeout = 'soon'\n", "config.toml: timeout: 'soon' is not a valid"),
        ("timeout = -5\n", "config.toml: timeout: -5.0 is not in the range"),
        ("timeout = 0\n", "config.toml: timeout: 0.0 is not in the range"),
        ("json = true\nyaml = true\n", "--json and --yaml: give one of them"),
        ("\udcff", "is no TOML"),
    ],
)
def test_odd_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    """A wrong settings file is refused before anything is done; the error says what is wrong."""
    file = tmp_path / "config.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    done = heddle("--config", file, "--server", "127.0.0.1:1", "job", "list")
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    gone = heddle("--config", tmp_path / "nowhere.toml", "job", "list")
    assert (gone.code, "there is no such file" in gone.err) == (2, True)


def test_a_shell_completes_commands_and_options() -> None:
    """Bash completes commands and options with its script; zsh and fish have scripts, too."""
    script = heddle("completion", "bash")
    assert script.code == 0, script.err
    for words, expected in (
        ("heddle jo", {"job"}),
        ("heddle job re", {"release", "replace", "reservations", "reserve", "resize", "resume"}),
        ("heddle show links --", {"--json", "--top", "--watch", "--yaml"}),
    ):
        count = len(words.split()) - 1
        ask = f"""{script.out}
COMP_WORDS=({words}); COMP_CWORD={count}; _heddle_completion; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
        path = f"{HEDDLE.parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", ask.replace("$1", "heddle")],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        assert expected <= set(done.stdout.split()), done
    for shell in ("zsh", "fish"):
        assert "_HEDDLE_COMPLETE" in heddle("completion", shell).out


async def test_a_shell_completes_names_of_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of jobs, fabrics, switches and links are completed; without an answer none are."""
    monkeypatch.setattr(completing, "_PATIENCE", PATIENCE)
    bash = BashComplete(main, {}, "heddle", "_HEDDLE_COMPLETE")

    async def offered(server: str, *words: str) -> list[str]:
        given = ["--server", server, *words[:-1]]
        found = await asyncio.to_thread(bash.get_completions, given, words[-1])
        return [one.value for one in found]

    async with operating(tmp_path) as o:
        await planned(o)
        await o.does("job", "submit", jobs_file(tmp_path))
        server = f"127.0.0.1:{o.s.api.port}"
        assert await offered(server, "--fabric", "") == ["f1"]
        assert await offered(server, "fabric", "delete", "f") == ["f1"]
        assert await offered(server, "job", "show", "r") == ["red"]
        assert await offered(server, "job", "suspend", "red", "b") == ["blue"]
        assert await offered(server, "drain", "s") == ["s0", "s1"]
        assert await offered(server, "show", "what-if", "--down", "l0,s") == ["l0,s0", "l0,s1"]
        assert await offered(server, "job", "show", "--fabric", "other", "r") == []
    assert await offered(server, "job", "show", "r") == []


async def test_a_list_of_jobs_is_watched(tmp_path: Path) -> None:
    """A watched list is printed again when a job changes."""
    async with operating(tmp_path) as o:
        await planned(o)
        await o.does("job", "submit", jobs_file(tmp_path), "--only", "red")
        words = ("--server", f"127.0.0.1:{o.s.api.port}", "job", "list", "--watch", "--json")
        watching = await asyncio.create_subprocess_exec(HEDDLE, *words, stdout=PIPE)
        assert watching.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                first = json.loads(await watching.stdout.readline())
                await tell(o, JobState.PROGRAMMED, "red")
                now = json.loads(await watching.stdout.readline())
        finally:
            watching.kill()
            await watching.wait()
        states = [[job["state"] for job in listed] for listed in (first, now)]
        assert states == [["JOB_STATE_ACCEPTED"], ["JOB_STATE_PROGRAMMED"]]


async def test_doctor_and_a_job_are_watched(tmp_path: Path) -> None:
    """In a pipe, ``--watch`` prints an answer when it changes, and does not repeat the rest."""
    async with operating(tmp_path) as o:
        await planned(o)
        await o.does("job", "submit", jobs_file(tmp_path), "--only", "red")
        server = ("--server", f"127.0.0.1:{o.s.api.port}")

        async def watching(*words: str) -> asyncio.subprocess.Process:
            return await asyncio.create_subprocess_exec(
                HEDDLE, *server, *words, "--watch", stdout=PIPE
            )

        async def until(process: asyncio.subprocess.Process, word: str) -> list[str]:
            assert process.stdout is not None
            lines: list[str] = []
            async with asyncio.timeout(PATIENCE):
                while word not in "".join(lines):
                    lines.append((await process.stdout.readline()).decode())
                    assert lines[-1], lines
            return lines

        both = [await watching("doctor"), await watching("job", "show", "red")]
        doctor, shown = both
        try:
            await until(doctor, "agents")
            await until(shown, "ACCEPTED")
            told_down(o.s, "l0", "s0")
            await tell(o, JobState.PROGRAMMED, "red")
            lines = await until(shown, "PROGRAMMED")
            assert [line for line in lines if line.startswith("job")] == ["job            red\n"]
            await until(doctor, "is down since")
        finally:
            for one in both:
                one.kill()
                await one.wait()
    late = heddle("doctor", "--watch", "job", "red")
    assert (late.code, "behind the last command" in late.err) == (2, True)


def test_options_are_listed_with_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``heddle config check`` lists options with their sources, and refuses unusable ones."""
    file = tmp_path / "config.toml"
    file.write_text('server = "a:1"\nfabric = "f1"\ntimeout = 5\ntls-ca = "ca.crt"\n')
    monkeypatch.setenv("HEDDLE_FABRIC", "f2")
    known = ("--config", file, "--timeout", "7", "--json", "config", "check")
    missing = heddle(*known)
    assert (missing.code, missing.out) == (2, "")
    assert f"--tls-ca {tmp_path / 'ca.crt'}: No such file" in missing.err
    file.write_text('server = "a:1"\nfabric = "f1"\ntimeout = 5\n')
    told = {one["option"]: (one["value"], one["from"]) for one in heddle(*known).json}
    assert told["--server"] == ("a:1", str(file))
    assert told["--fabric"] == ("f2", "the variable HEDDLE_FABRIC")
    assert told["--timeout"] == (7.0, "the command line")
    assert told["--tls-key"] == (None, "default")
    assert ["--timeout", "5.0", str(file)] in heddle("--config", file, "config", "check").lines
    odd = heddle("--server", "nowhere", "config", "check")
    assert (odd.code, "--server: 'nowhere' is not an address" in odd.err) == (2, True)
