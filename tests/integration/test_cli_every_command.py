"""Every command of ``heddle`` prints its output as JSON and as YAML, too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from heddle_controller.cli.main import main
from heddle_controller.model.job import Collective, Group, Operation
from heddle_controller.traffic.jobs_file import load_jobs
from heddle_emulator.fleet import Fleet
from tests.integration.test_cli_controller import FABRIC, begun, programmed
from tests.support.inspecting import run_of, write_run
from tests.support.operating import Controller, controlling
from tests.support.waiting import PATIENCE

OF_OTHERS = {
    "completion": "a script",
    "slurm epilog": "nothing",
    "slurm prolog": "nothing",
    "slurm sbatch": "what sbatch prints",
}
"""Commands that print no view, and what they print instead."""
WATCHED = {
    "demand list",
    "doctor",
    "doctor job",
    "fabric show",
    "history",
    "job list",
    "job reservations",
    "job show",
    "overlay show",
    "show explain",
    "show links",
    "show plan",
    "show routes",
}
"""Commands that have ``--watch``."""
GREEN = """\
- job: green
  hosts: [l0-h0, l1-h0]
  gpus_per_host: 4
  parallelism: {dp: 8}
"""
FLOWS = "flow,src,dst,gbps,job,phase\nf0,l2-h0-n0,l3-h0-n0,10,,\n"
SESSION = """\
config check
fabric list
fabric show
fabric export
fabric import {folder}/pod.json.gz
fabric import {folder}/pod.json.gz --out -
fabric import {folder}/pod.json.gz --name wrong
fabric delete wrong
fabric watch --seconds 0.2
job submit {folder}/jobs.yaml --replace
job list
job show red
job watch --seconds 0.2
job ports red
job measure red {folder}/run --communicator 0xdp0=dp
job suspend blue
job resume blue
job delete red --wait
job order {folder}/green.yaml
job place {folder}/green.yaml
job place {folder}/anywhere.yaml --hosts 2
job reserve r1 l0-h0 l1-h0
job reservations
job submit {folder}/green.yaml --reservation r1
job resize green --remove l1-h0
job replace green l0-h0=l1-h0
job reserve r2 l0-h0
job release r2
demand put d1 {folder}/flows.csv
demand list
demand show d1
demand rates --seconds 0.2
show plan
show links
show routes
show explain {flow}
show what-if --drain l0,s1
drain l0,s1 --force
undrain l0,s1
fabric link l0,s1 up
fabric switch s1 up
plan --fabric {folder}/pod.json.gz --jobs {folder}/jobs.yaml
plan diff {generation}
plan rollback {generation}
plan release
doctor
doctor job green
overlay withdraw
overlay show
overlay restore
history
audit list
audit export
audit verify
slurm topology
slurm hostfile --folder {folder}/hostfiles
token new ci --file {folder}/tokens --role operator
token list --file {folder}/tokens
demand delete d1
"""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, with the words that call it."""

    def below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            yield name, command
            return
        if command.invoke_without_command:
            yield name, command
        context = click.Context(command)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            yield from below(f"{name} {word}".strip(), found)

    yield from below("", main)


def options(command: click.Command) -> set[str]:
    """Return the options of a command."""
    return {word for param in command.params for word in param.opts}


def test_every_view_offers_both_forms() -> None:
    """Each command that prints a view of its own has ``--json`` and ``--yaml``; no other has.

    Every command has a help text. ``SESSION`` has all commands except those in ``OF_OTHERS``.
    """
    found = dict(commands())
    for name, command in found.items():
        wanted = set() if name in OF_OTHERS else {"--json", "--yaml"}
        assert options(command) & {"--json", "--yaml"} == wanted, name
        assert ("--watch" in options(command)) == (name in WATCHED), name
        assert command.help, name
    typed = {name for name in found for line in SESSION.splitlines() if names(line, name, found)}
    assert found.keys() - typed == OF_OTHERS.keys(), "type the command in SESSION"


def names(line: str, name: str, known: dict[str, click.Command]) -> bool:
    """Return whether a line calls this command, and not one with a longer name."""
    words = line.split()
    longest = max((one for one in known if words[: len(one.split())] == one.split()), key=len)
    return longest == name


def of_json(text: str) -> Iterator[Any]:
    """Yield the JSON documents in a text, one after the other."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        document, end = decoder.raw_decode(text, at)
        at = end + len(text[end:]) - len(text[end:].lstrip())
        yield document


FORMS = {"--json": of_json, "--yaml": yaml.safe_load_all}


def measured(folder: Path) -> None:
    """Write a run of the first job, as NCCL Inspector records it."""
    job, *_ = load_jobs(folder / "jobs.yaml")
    moved = (Collective(Operation.ALL_REDUCE, Group.DP, 1 << 20),)
    write_run(folder / "run", run_of(job, moved, iterations=1), "v4.3")


async def a_flow(controller: Controller) -> str:
    """Wait for a plan that has routes; return the id of a flow of it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            done = await controller.does("show", "routes", "--json")
            if done.out:
                return str(json.loads(done.out.splitlines()[0])["flow"])
            await asyncio.sleep(0.05)


async def test_every_command_prints_documents_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of ``SESSION`` prints only documents, in turns as JSON and as YAML.

    It runs against a real controller with agents.
    """
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "l2-h0,l3-h0")
    async with controlling(tmp_path) as controller:
        await begun(tmp_path, controller)
        await asyncio.to_thread((tmp_path / "green.yaml").write_text, GREEN)
        anywhere = GREEN.replace("  hosts: [l0-h0, l1-h0]\n", "")
        await asyncio.to_thread((tmp_path / "anywhere.yaml").write_text, anywhere)
        await asyncio.to_thread((tmp_path / "flows.csv").write_text, FLOWS)
        await asyncio.to_thread(measured, tmp_path)
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            generation = await programmed(controller)
            for line, (option, documents) in zip(SESSION.splitlines(), cycle(FORMS.items())):
                flow = await a_flow(controller) if "{flow}" in line else ""
                words = line.format(folder=tmp_path, generation=generation, flow=flow).split()
                done = await controller.does(*words, option)
                assert done.code == 0 or line.startswith("doctor"), (line, done)
                told = list(documents(done.out))
                assert told or "--seconds" in words, line  # a short watch may see nothing
                assert all(isinstance(each, dict | list) for each in told), (line, done)
        assert await controller.ends() == 0
