"""``heddle-agent``: flags to settings, errors to one line and exit status 2."""

from __future__ import annotations

import gzip
import ipaddress
import json
import os
import socket
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn, TypeAlias

import click

from heddle import text
from heddle.option_help import describe_options, option_keywords
from heddle_agent.settings import (
    HostSettings,
    ProcessSettings,
    Settings,
    SettingsError,
    load_host_settings,
    load_settings,
)

_Command: TypeAlias = Callable[..., None]
_PATH = click.Path(dir_okay=False, path_type=Path)

_RUN_HELP = """Run the agent of one switch until SIGTERM, SIGHUP or Ctrl-C.

Each option can also be given by the environment variable in brackets; the option wins.

A switch in memory, with a controller on the same machine:

\b
heddle-agent run --fabric fabrics/f1 --switch leaf0 --controller 127.0.0.1:7400 \\
    --link spine0 --link spine1 --link nic0
"""


_HOST_HELP = """Keep files that say which UDP source port each QP of this host has to use.

Entries in switches match the source ports of QPs; a QP with another port follows the underlay.
Each job with flows that leave this host has three files in --directory: JOB.json with all ports,
JOB.ports with the same as lines, and JOB.env with variables for programs that read ports from
their environment (agents/README.md describes them). The agent replaces a file in one step, removes
it when the job ends, and keeps it while no controller can be reached.

Where switches only hash (forwarding: ecmp), the agent also finds out by probes which path each
source port takes, and reports it to all controllers, which then choose ports. This needs the
capability CAP_NET_RAW, and switches that answer with ICMP time exceeded.

\b
heddle-agent host --fabric fabrics/f1 --host node-17 --controller 10.0.0.1:7400 \\
    --tls-ca ca.crt --tls-cert node-17.crt --tls-key node-17.key

Each option can also be given by the environment variable in brackets; the option wins. Stop the
agent with SIGTERM, SIGHUP or Ctrl-C.
"""


class _FromSettings(click.Command):
    """A command whose options are the settings of its process."""

    settings: type[ProcessSettings]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Describe the options, then format them as ``click.Command`` does."""
        describe_options(self.params, self.settings)
        super().format_options(ctx, formatter)


class _OfSwitch(_FromSettings):
    settings = Settings


class _OfHost(_FromSettings):
    settings = HostSettings


def _with_settings(settings: type[ProcessSettings]) -> Callable[[_Command], _Command]:
    """Add an option for each setting."""

    def add(command: _Command) -> _Command:
        for option, keywords in reversed([*option_keywords(settings)]):
            command = click.option(option, **keywords)(command)
        return command

    return add


class _Commands(text.OutputGuard, click.Group):
    """The commands, which tell of a full output in one line."""


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(version("heddle-agent"), prog_name="heddle-agent")
def cli() -> None:
    """The agent of a switch: it holds the routes and repairs them without a controller.

    On hosts, `heddle-agent host` says which UDP source port each QP has to use.
    """


@cli.command(cls=_OfSwitch, help=_RUN_HELP)
@_with_settings(Settings)
def run(**given: object) -> None:
    """Run the agent of one switch until it is told to stop."""
    settings = load_settings(**given)
    from heddle_agent import app  # noqa: PLC0415 - so that --help does not wait for gRPC

    app.run_switch_agent(settings)


@cli.command(cls=_OfHost, help=_HOST_HELP)
@_with_settings(HostSettings)
def host(**given: object) -> None:
    """Keep files that say which UDP source port each QP of this host has to use."""
    settings = load_host_settings(**given)
    from heddle_agent import app  # noqa: PLC0415 - as above

    app.run_host(settings)


@cli.command()
@click.option("--source", required=True, metavar="IP", help="Address of the NIC that sends.")
@click.option(
    "--destination",
    "destinations",
    required=True,
    multiple=True,
    metavar="IP",
    help="Address of a NIC to probe. Repeat the option for each.",
)
@click.option(
    "--ports",
    default="49152-49215",
    show_default=True,
    metavar="FIRST-LAST",
    help="UDP source ports to try.",
)
@click.option(
    "--hops",
    type=click.IntRange(1, 16),
    default=5,
    show_default=True,
    help="Number of switches on the longest path.",
)
@click.option(
    "--rate",
    type=click.FloatRange(1, 100_000),
    default=1000.0,
    show_default=True,
    help="Probes per second.",
)
@click.option(
    "--sample",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Probe only this many ports, and derive the others from a model of the hashes if the model"
    " is right for all ports held back to test it. 0 probes all.",
)
@click.option(
    "--linux-seeds",
    type=_PATH,
    help="JSON: fib_multipath_hash_seed of Linux switches with fib_multipath_hash_policy=1, keyed"
    " by the address that they answer from, or by their id in --fabric.",
)
@click.option(
    "--fabric",
    type=_PATH,
    help="fabric.json: maps addresses to switches, for --sample if switches have several.",
)
@click.option("--out", type=_PATH, help="File to write.  [default: standard output]")
def probe(  # noqa: PLR0917 - click passes options by name
    source: str,
    destinations: tuple[str, ...],
    ports: str,
    hops: int,
    rate: float,
    sample: int,
    linux_seeds: Path | None,
    fabric: Path | None,
    out: Path | None,
) -> None:
    """Find out which path each UDP source port takes, where switches only hash.

    Sends UDP datagrams to the port of RoCEv2 (4791) from each port with rising TTL, and records
    which switches answer. No NIC accepts such a datagram as its own. `heddle plan --port-paths`
    reads the output; to join files of several hosts, concatenate their "pairs". Needs root or the
    capability CAP_NET_RAW, and switches that answer with ICMP time exceeded.
    """
    from heddle_agent.host.hashes import Known, names_of, sampled, seeds_of  # noqa: PLC0415 - as above
    from heddle_agent.host.trace import Pace, Tracer, traced_document  # noqa: PLC0415

    try:
        wanted = _ports(ports)
        for to in destinations:
            _check_destination(source, to)
        known = Known(
            seeds_of(_document(linux_seeds)) if linux_seeds else {},
            names_of(_document(fabric)) if fabric else {},
        )
        with Tracer(source, Pace(hops, rate)) as tracer:
            found = sampled(tracer, destinations, wanted, sample or len(wanted), known)
    except ValueError as error:
        _fail(str(error))
    traces = found.traces
    content = json.dumps({"pairs": [*traced_document(source, traces, found.modelled)]}) + "\n"
    silent = sum(not hops for hops in traces.values())
    notes = [f"no switch answered {silent} of {len(traces)} ports"] if silent else []
    for to, told in found.told.items():
        families, odds = " and ".join(told.families), 1 / told.luck
        notes.append(
            f"{to}: {len(told.hops)} of {len(wanted)} ports by a model ({families}), which told"
            f" {told.held_out} probed ones right; guesses would, once in {odds:.0f}"
        )
    for note in notes:
        click.echo(text.clean(f"heddle-agent: {note}"), err=True)  # noqa: TID251
    if out is None:
        click.echo(content, nl=False)  # noqa: TID251 - JSON spells out what is odd
        return
    try:
        out.write_text(content)
    except OSError as error:
        _fail(f"--out: {out} cannot be written: {error.strerror}")


@cli.command()
@click.option("--fabric", required=True, type=_PATH, help="fabric.json, for the addresses of NICs.")
@click.option("--plan", required=True, type=_PATH, help="plan.json of `heddle plan --port-paths`.")
@click.option(
    "--host", metavar="NAME", help="Name of the host in the fabric file.  [default: this machine's]"
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("/run/heddle/ports"),
    show_default=True,
    help="Folder of plan.json and plan.env with the ports to use now.",
)
@click.option(
    "--probe-milliseconds",
    type=click.FloatRange(1, 60_000),
    default=10.0,
    show_default=True,
    help="Interval of probes on each path in use and each backup. After a lost probe the next"
    " follows at once. After three in a row the path is lost.",
)
@click.option(
    "--hold-seconds",
    type=click.FloatRange(0, 86_400),
    default=10.0,
    show_default=True,
    help="QPs return to a recovered path after this time.",
)
@click.option(
    "--recheck-seconds",
    type=click.FloatRange(0.1, 86_400),
    default=60.0,
    show_default=True,
    help="Trace every port again within this time, to check that switches still hash as planned.",
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info"
)
def steer(  # noqa: PLR0917 - click passes options by name
    fabric: Path,
    plan: Path,
    host: str | None,
    directory: Path,
    probe_milliseconds: float,
    hold_seconds: float,
    recheck_seconds: float,
    log_level: str,
) -> None:
    """Keep the QPs of this host on working paths, where switches only hash.

    Writes the port that each QP has to use now into plan.json, plan.ports and plan.env of
    --directory, as `heddle-agent host` does. When a path is lost, its QPs get the ports of their
    backups; the program that opened them sets the port (mlx5dv_modify_qp_udp_sport). No controller
    and no agent on any switch is involved. Needs root or the capability CAP_NET_RAW, and last
    switches that answer every probe with ICMP time exceeded.
    """
    from heddle_agent import app  # noqa: PLC0415 - so that --help does not wait for gRPC
    from heddle_agent.host import PortsFolder, file_steering, routes_of  # noqa: PLC0415

    name = host or socket.gethostname()
    try:
        routes, ports = routes_of(_document(fabric), _document(plan), name)
        steering = file_steering(
            routes,
            ports,
            PortsFolder(directory, str(fabric), name),
            interval=probe_milliseconds / 1e3,
            hold=hold_seconds,
            recheck=recheck_seconds,
        )
    except ValueError as error:
        _fail(str(error))
    app.run_steering(steering, log_level)


def _document(path: Path) -> object:
    """Return the JSON content of a file, plain or gzip; ValueError if that fails."""
    try:
        content = path.read_bytes()
        packed = content.startswith(b"\x1f\x8b")
        document: object = json.loads(gzip.decompress(content) if packed else content)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return document


def _check_destination(source: str, to: str) -> None:
    """Raise ValueError unless probes can be sent from one address to the other."""
    try:
        alike = ipaddress.ip_address(source).version == ipaddress.ip_address(to).version
    except ValueError as error:
        raise ValueError(f"{error}: give addresses of NICs, not names") from None
    if not alike:
        raise ValueError(f"{source} and {to} are of two families: give addresses of one")


def _ports(told: str) -> list[int]:
    first, dash, last = told.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ValueError(f"--ports is {told!r}: write it as 49152-49215")
    low, high = int(first), int(last or first)
    if not 0 < low <= high < 1 << 16:
        raise ValueError(f"--ports is {told!r}: give ports from 1 to 65535, the lower one first")
    return [*range(low, high + 1)]


@cli.command()
@click.option(
    "--backend",
    required=True,
    metavar="MODULE:NAME",
    help="Callable that takes a table size and opens a test bench of the backend: a class with"
    " __enter__ and __exit__, or a function under @contextmanager.",
)
@click.option(
    "--case", "names", multiple=True, metavar="NAME", help="Run this case only. May be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per case.")
def conformance(backend: str, names: tuple[str, ...], *, as_json: bool) -> None:
    """Check that your own FIB backend does everything an agent relies on.

    Each case programs the backend on a test bench and then checks where packets really go. Cases
    for capabilities that the backend does not claim are left out. Modules in the working folder are
    found. The exit status is 0 if all cases hold and 1 if one does not. CONTRIBUTING.md explains
    how to write a backend, with an example.
    """
    from heddle_agent.conformance import CASES, Verdict, find_opener, run_cases  # noqa: PLC0415

    known = {case.name: case for case in CASES}
    if unknown := [name for name in names if name not in known]:
        _fail(f"there is no case {unknown[0]!r}: they are {', '.join(known)}")
    try:
        opener = find_opener(backend)
    except ValueError as error:
        _fail(f"--backend: {error}")
    count = dict.fromkeys(Verdict, 0)
    for result in run_cases(opener, [known[name] for name in names] or CASES):
        count[result.verdict] += 1
        told = {"case": result.case, "verdict": result.verdict, "why": result.why}
        line = f"{result.verdict}  {result.case}{': ' * bool(result.why)}{result.why}"
        click.echo(json.dumps(told) if as_json else text.clean(line))  # noqa: TID251
    if not as_json:
        click.echo(", ".join(f"{number} {verdict}" for verdict, number in count.items()))  # noqa: TID251
    sys.exit(1 if count[Verdict.BROKEN] else 0)


@cli.command()
def clean() -> None:
    """Remove everything that `--fib linux` has set up in the kernel of this network namespace.

    All packets then follow the underlay. Entries, rules and routes of others stay. Stop the agent
    first. Needs root or the capability CAP_NET_ADMIN.
    """
    from heddle_agent.fib import linux  # noqa: PLC0415 - so that --help does not wait for numpy

    try:
        removed = linux.clean_kernel()
    except (linux.UnavailableError, OSError) as error:
        _fail(str(error))
    click.echo(  # noqa: TID251 - numbers alone
        f"removed {removed.entries} entries, {removed.rules} rules, {removed.routes} routes,"
        f" and the setting of {removed.interfaces} interfaces"
    )
    if removed.unclear:
        names = ", ".join(removed.unclear)
        setting = f"net.ipv4.conf.{removed.unclear[0]}.ignore_routes_with_linkdown"
        note = (
            "somebody has removed the agent's notes, so ignore_routes_with_linkdown stays on at"
            f" {names}. If nobody else has set it: sysctl -w {setting}=0"
        )
        click.echo(text.clean(f"heddle-agent: {note}"), err=True)  # noqa: TID251


def main() -> None:
    """Run the command. An error becomes one line on standard error and exit status 2."""
    # gRPC reads this on first import. Our own log has its errors, and every line of that is JSON.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(text.clean_lines(error.format_message()), err=True)  # noqa: TID251
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message())
    except SettingsError as error:
        _fail(str(error))
    except click.Abort:
        sys.exit(130)


def _fail(message: str) -> NoReturn:
    for line in message.splitlines():
        click.echo(text.clean(f"heddle-agent: {line}"), err=True)  # noqa: TID251
    sys.exit(2)
