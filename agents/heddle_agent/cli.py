"""``heddle-agent``: flags to settings, errors to one line and exit status 2."""

from __future__ import annotations

import gzip
import json
import os
import socket
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import click

from heddle import text
from heddle_agent.settings import (
    ENV_PREFIX,
    HOST_ENV_PREFIX,
    SettingsError,
    load_host_settings,
    load_settings,
)

_PATH = click.Path(dir_okay=False, path_type=Path)

_RUN_HELP = """Run the agent of one switch until it is told to stop.

A switch in memory, with a controller on the same machine:

\b
heddle-agent run --fabric fabrics/f1 --switch leaf0 --controller 127.0.0.1:7400 \\
    --link spine0 --link spine1 --link nic0
"""


_HOST_HELP = """Write down which UDP source port each QP of this host has to use, job by job.

Entries in switches match the source ports of QPs; a QP that uses another follows the underlay.
For each job with flows that leave this host there are two files in --directory: JOB.json, a
map of all ports (agents/README.md describes it), and JOB.env, variables for programs that take
ports from their environment. They are replaced in one step, removed when the job ends, and stay
while no controller can be reached.

Where switches hash (forwarding: ecmp), it probes which path each source port of the host takes and
tells all controllers, which choose ports by that. It takes CAP_NET_RAW, and switches that answer.

\b
heddle-agent host --fabric fabrics/f1 --host node-17 --controller 10.0.0.1:7400 \\
    --tls-ca ca.crt --tls-cert node-17.crt --tls-key node-17.key
"""


def _process_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options of every command that talks with controllers."""
    options = [
        click.option(
            "--tls-ca", type=_PATH, help="PEM of the authorities that controllers are known by."
        ),
        click.option("--tls-cert", type=_PATH, help="PEM of the agent's own certificate."),
        click.option("--tls-key", type=_PATH, help="PEM of its private key."),
        click.option(
            "--insecure",
            is_flag=True,
            default=None,
            help="Speak plain text to controllers elsewhere.",
        ),
        click.option(
            "--keepalive-seconds", metavar="S", help="Probe silent connections.  [default: 6]"
        ),
        click.option(
            "--keepalive-timeout-seconds",
            metavar="S",
            help="Leave one that is silent on.  [default: 4]",
        ),
        click.option(
            "--backoff-seconds", metavar="S", help="Longest pause in retries.  [default: 5]"
        ),
        click.option("--log-level", metavar="debug|info|warning|error", help="[default: info]"),
        click.option(
            "--log-format",
            metavar="auto|console|json",
            help="[default: auto, console on a terminal]",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("heddle-agent"), prog_name="heddle-agent")
def cli() -> None:
    """The agent of one switch: it holds the routes, and repairs them without the controller.

    On hosts, `heddle-agent host` writes down which UDP source port each QP has to use.
    """


@cli.command(
    help=_RUN_HELP,
    epilog=f"Every flag may be given as a variable instead: --table-size is {ENV_PREFIX}TABLE_SIZE."
    " Stop it with SIGTERM or Ctrl-C.",
)
@click.option("--fabric", metavar="NAME", help='Fabric of the switch, "fabrics/f1".  [required]')
@click.option("--switch", metavar="NODE", help="Node id of the switch.  [required]")
@click.option(
    "--controller",
    multiple=True,
    metavar="HOST:PORT[,HOST:PORT]...",
    help="Controllers; any one will do. One that cannot be reached is tried again.  [required]",
)
@click.option(
    "--fib",
    metavar="memory|linux|sonic",
    help="What forwards packets: a table in the agent, the kernel, or the chip of a SONiC switch."
    "  [default: memory]",
)
@click.option(
    "--link",
    multiple=True,
    metavar="NEIGHBOUR[,KEY]",
    help="A link of the switch; repeat it for each. Parallel links differ in KEY.",
)
@click.option(
    "--interfaces",
    metavar="alias|FILE",
    help="Take the kernel's links instead: interfaces whose alias is NEIGHBOUR,KEY[,GBPS], or those"
    " in a JSON file.",
)
@click.option(
    "--probe-milliseconds",
    metavar="MS",
    help="Probe each of the kernel's links so often, to see silent loss; 0 for never."
    "  [default: 50]",
)
@click.option(
    "--flap-memory-seconds",
    metavar="S",
    help="A link that comes back waits, twice as long for each time it was lost in these seconds."
    "  [default: 300]",
)
@click.option(
    "--sonic-redis",
    type=_PATH,
    help="Socket of SONiC's Redis.  [default: /var/run/redis/redis.sock]",
)
@click.option("--table-size", metavar="N", help="Entries it can hold.  [default: 0, unlimited]")
@click.option("--hash-seed", metavar="N", help="Seed of the ECMP hash.  [default: by the switch]")
@click.option(
    "--state-file",
    type=_PATH,
    help="Keep the highest epoch here, so that a restarted agent still refuses older ones.",
)
@click.option(
    "--peer-notices",
    metavar="IP:PORT",
    help="Take and send notices of lost links here, by UDP, from agent to agent.",
)
@click.option(
    "--peer-keys",
    type=_PATH,
    help="Their keys, in hexadecimal, one a line, the first to sign with. By default the controller"
    " names them.",
)
@click.option(
    "--peer-addresses",
    type=_PATH,
    help='Whom to tell, JSON: {"spine0": "10.0.0.1:7402"}. By default the controller names them.',
)
@click.option(
    "--traces-endpoint",
    metavar="URL",
    help="Send traces of pushes to this collector of OpenTelemetry (OTLP over gRPC), such as"
    " http://127.0.0.1:4317; it takes heddle-agent[traces].",
)
@click.option("--metrics-port", metavar="PORT", help="Serve Prometheus metrics; 0 for a free port.")
@click.option("--metrics-host", metavar="HOST", help="Where.  [default: 127.0.0.1]")
@_process_options
def run(**given: object) -> None:
    """Run the agent of one switch until it is told to stop."""
    settings = load_settings(**given)
    # gRPC reads this when it is first imported; below errors it repeats what our own log says.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from heddle_agent import app  # noqa: PLC0415 - not before the line above

    app.run_switch_agent(settings)


@cli.command(
    help=_HOST_HELP,
    epilog=f"Every flag may be given as a variable instead: --host is {HOST_ENV_PREFIX}HOST."
    " Stop it with SIGTERM or Ctrl-C.",
)
@click.option("--fabric", metavar="NAME", help='Fabric of the host, "fabrics/f1".  [required]')
@click.option(
    "--host", metavar="NAME", help="The host's name in the fabric file.  [default: this machine's]"
)
@click.option(
    "--nic",
    multiple=True,
    metavar="NODE",
    help="The NICs of the host, where the fabric file names no host for them; repeat it for each."
    " It takes a reader's certificate: a host's reads by --host alone.",
)
@click.option(
    "--controller",
    multiple=True,
    metavar="HOST:PORT[,HOST:PORT]...",
    help="Controllers; any one will do. The next is asked when one goes away.  [required]",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Folder of the files.  [default: /run/heddle/ports]",
)
@click.option(
    "--hops",
    type=int,
    metavar="N",
    help="Where switches hash: switches on the longest path.  [default: 5]",
)
@click.option(
    "--probes-per-second", type=float, metavar="N", help="Probes of paths.  [default: 1000]"
)
@click.option(
    "--recheck-seconds",
    type=float,
    metavar="S",
    help="Within how long all ports are probed again.  [default: 60]",
)
@click.option(
    "--probe-milliseconds",
    type=float,
    metavar="MS",
    help="Where switches hash: probe each path in use, and each backup, so often. One that misses a"
    " probe is probed again at once; three lost in a row, and its QPs get the ports of their"
    " backups. 0 sends none.  [default: 10]",
)
@click.option(
    "--hold-seconds",
    type=float,
    metavar="S",
    help="A path that is back has to last so long before QPs return to it.  [default: 10]",
)
@click.option("--metrics-port", metavar="PORT", help="Serve Prometheus metrics; 0 for a free port.")
@click.option("--metrics-host", metavar="HOST", help="Where.  [default: 127.0.0.1]")
@_process_options
def host(**given: object) -> None:
    """Write down which UDP source port each QP of this host has to use."""
    settings = load_host_settings(**given)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from heddle_agent import app  # noqa: PLC0415 - not before the line above

    app.run_host(settings)


@cli.command()
@click.option("--source", required=True, metavar="IP", help="Address of the NIC that sends.")
@click.option(
    "--destination",
    "destinations",
    required=True,
    multiple=True,
    metavar="IP",
    help="Address of a NIC that it is to send to; repeat it for each.",
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
    help="Switches on the longest path.",
)
@click.option(
    "--rate",
    type=click.FloatRange(1, 100_000),
    default=1000.0,
    show_default=True,
    help="Probes a second.",
)
@click.option(
    "--sample",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Probe so many of the ports, and tell the others by a model of the hashes where it tells"
    " all that it was tried on; 0 probes all.",
)
@click.option(
    "--linux-seeds",
    type=_PATH,
    help="JSON: fib_multipath_hash_seed of Linux switches with fib_multipath_hash_policy=1, by the"
    " address that they answer from, or by their names in --fabric.",
)
@click.option(
    "--fabric",
    type=_PATH,
    help="fabric.json: whose addresses are, for --sample where switches answer from several.",
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
    """Find out which path each UDP source port takes, where switches hash.

    Sends RoCEv2 datagrams (UDP port 4791) from each port with rising TTL, and notes which switches
    answer that it ended there. No datagram is one that a NIC takes for its own. `heddle plan
    --port-paths` reads what is written; files of several hosts may be joined by their "pairs". It
    needs root or the capability CAP_NET_RAW, and switches that answer (ICMP time exceeded).
    """
    from heddle_agent.host.hashes import Known, names_of, sampled, seeds_of  # noqa: PLC0415 - as above
    from heddle_agent.host.trace import Pace, Tracer, traced_document  # noqa: PLC0415

    try:
        wanted = _ports(ports)
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
@click.option("--host", metavar="NAME", help="The host's name in it.  [default: this machine's]")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("/run/heddle/ports"),
    show_default=True,
    help="Folder of plan.json and plan.env, the ports to use now.",
)
@click.option(
    "--probe-milliseconds",
    type=click.FloatRange(1, 60_000),
    default=10.0,
    show_default=True,
    help="Probe each path in use, and each backup, so often. One that misses one is probed again"
    " at once; three lost in a row are a lost path.",
)
@click.option(
    "--hold-seconds",
    type=click.FloatRange(0, 86_400),
    default=10.0,
    show_default=True,
    help="A path that is back has to last so long before QPs return to it.",
)
@click.option(
    "--recheck-seconds",
    type=click.FloatRange(0.1, 86_400),
    default=60.0,
    show_default=True,
    help="In so long follow every port again, to see whether switches still hash as planned.",
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
    """Keep the QPs of this host on paths that live, where switches only hash.

    Writes which port each QP is to use now, as `heddle-agent host` does, into plan.json and
    plan.env of --directory. When the path of a port is lost, its QPs get the port of their backup;
    whoever opened them sets it (mlx5dv_modify_qp_udp_sport). No controller and no agent on a switch
    takes part. It needs root or the capability CAP_NET_RAW, and last switches that answer every
    probe (ICMP time exceeded).
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
    """JSON of a file, plain or gzip; ValueError if it cannot be had."""
    try:
        content = path.read_bytes()
        packed = content.startswith(b"\x1f\x8b")
        document: object = json.loads(gzip.decompress(content) if packed else content)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return document


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
    help="What opens a bench of the backend, by its table size: a class with __enter__ and"
    " __exit__, or a function under @contextmanager.",
)
@click.option("--case", "names", multiple=True, metavar="NAME", help="This case alone; repeat it.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a case.")
def conformance(backend: str, names: tuple[str, ...], *, as_json: bool) -> None:
    """Ask a FIB backend of your own all that an agent relies on.

    Each case programs the backend on a bench, and then sees where packets really go. A case that
    takes a capability that the backend does not claim is not asked. Modules in the working folder
    are found. Exit status: 0 if no promise is broken, 1 if one is. CONTRIBUTING.md says how to
    write a backend, with an example.
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
    """Remove what `--fib linux` has left in the kernel, of this network namespace.

    Entries, rules and routes of the agent go, and all packets follow the underlay; nobody else's
    are touched. Stop the agent first. It needs root or the capability CAP_NET_ADMIN.
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


def main() -> None:
    """Run the command; errors become one line each on standard error and exit status 2."""
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
