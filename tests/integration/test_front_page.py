"""The README's examples run as written; Slurm's are in ``test_slurm.py``."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path

import yaml

from heddle.client import PROGRAMMED, Client
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric, save_fabric_file
from heddle_emulator.fleet import Fleet
from tests.integration.test_cli_controller import programmed
from tests.support.kube_world import FOLDER, SPACE, kube_world, workload
from tests.support.kubectl import kubectl
from tests.support.operating import PROGRAM, Controller, controlling
from tests.support.waiting import PATIENCE

PAGE = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
QUICK = PAGE.partition("## Quick start")[2].partition("\n## ")[0]
PART = PAGE.partition("## For schedulers")[2].partition("\n## ")[0]
JOB = "llama-65b"
HOSTS = [f"h{number}" for number in range(1, 11)]
JOBS = f"- job: {JOB}\n  hosts: [h4, h1, h3, h2]\n  gpus_per_host: 8\n  parallelism: {{tp: 8}}\n"


def blocks(kind: str) -> list[str]:
    """Return the README's code blocks of this language; none has more than ten lines."""
    found = re.findall(rf"^```{kind}\n(.*?)^```", PART, re.DOTALL | re.MULTILINE)
    assert all(len(block.splitlines()) <= 10 for block in found)
    return found


def pod() -> Fabric:
    """Return hosts h1 to h10, alternately below two leaves that two spines join."""
    nodes = [{"id": leaf, "kind": "leaf"} for leaf in ("l0", "l1")]
    nodes += [{"id": spine, "kind": "spine"} for spine in ("s0", "s1")]
    ends = [(leaf, spine) for leaf in ("l0", "l1") for spine in ("s0", "s1")]
    for row, host in enumerate(HOSTS):
        nic = {"id": f"{host}-n", "kind": "nic", "host": host, "address": f"10.0.0.{row + 1}"}
        nodes.append(nic)
        ends.append((f"{host}-n", f"l{row % 2}"))
    edges = [{"source": a, "target": b, "key": 0, "gbps": 400} for a, b in ends]
    return parse_fabric({"graph": {"name": "pod"}, "nodes": nodes, "edges": edges}, "pod")


def typed(script: str, folder: Path, **environment: str) -> str:
    """Run lines in a shell; return their output, and fail if one of them fails."""
    path = f"{PROGRAM.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, "PATH": path, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def imported(folder: Path, controller: Controller) -> None:
    """Import the fabric."""
    await asyncio.to_thread(save_fabric_file, pod(), folder / "pod.json")
    done = await controller.does("fabric", "import", folder / "pod.json")
    assert done.code == 0, done.err


def test_a_plan_of_files(tmp_path: Path) -> None:
    """The lines that need no controller print the certificate that is shown below them."""
    commands, shown, *_ = re.findall(r"^```\n(.*?)^```", QUICK, re.DOTALL | re.MULTILINE)[1:]
    lines = [line for line in commands.splitlines() if "--server" not in line]
    assert [line.split()[1] for line in lines] == ["topology", "traffic", "plan"]
    *_, planned = [typed(line, tmp_path).splitlines() for line in lines]
    assert [line for line in planned if not line.startswith(("fabric", "flows", "seconds"))] == (
        shown.splitlines()
    )


async def test_the_lines_about_jobs(tmp_path: Path) -> None:
    """The lines submit a job, recommend hosts and an order, show ports, and replace a host."""
    block, *_ = (one for one in blocks("") if "job submit" in one)
    await asyncio.to_thread((tmp_path / "jobs.yaml").write_text, JOBS)
    async with controlling(tmp_path) as controller:
        await imported(tmp_path, controller)
        async with Fleet(pod(), [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            submit, *rest = block.strip().splitlines()
            variables = {"C": controller.address}
            await asyncio.to_thread(typed, submit, tmp_path, **variables)
            await programmed(controller)
            outputs = [await asyncio.to_thread(typed, line, tmp_path, **variables) for line in rest]
            place, order, ports, _ = outputs
            assert len(set(place.split()) & set(HOSTS[4:])) == len(place.split()) == 4
            assert sorted(order.split()) == ["h1", "h2", "h3", "h4"]
            assert f'"job":"{JOB}"' in ports
            shown = (await controller.does("job", "show", JOB, "--json")).json
            assert sorted(shown["spec"]["hosts"]) == ["h1", "h2", "h3", "h5"]


async def test_the_lines_of_a_program(tmp_path: Path) -> None:
    """The Python lines give a job free hosts, and it is programmed."""
    (block,) = blocks("python")
    async with controlling(tmp_path) as controller:
        await imported(tmp_path, controller)
        async with Fleet(pod(), [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            text = block.replace("127.0.0.1:7400", controller.address)
            assert text != block
            await asyncio.to_thread(exec, text, {})

            def told() -> tuple[list[str], int]:
                with Client(controller.address) as client:
                    (job,) = client.list_jobs()
                    return list(job.spec.hosts), job.state

            hosts, state = await asyncio.to_thread(told)
            assert len({pod().structure.nics_of_host[host] for host in hosts}) == len(hosts) > 1
            assert state == PROGRAMMED


def test_the_lines_of_kubernetes(tmp_path: Path) -> None:
    """The manifest exists, and a job annotated by the kubectl line is planned with its shape."""
    (block,) = (one for one in blocks("") if "kubectl" in one)
    apply, annotate = (line.partition("  #")[0].strip() for line in block.strip().splitlines())
    manifest = Path(apply.removeprefix("kubectl apply -f "))
    assert (FOLDER.parents[1] / manifest).is_file()
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    (job,) = re.findall(r"```yaml\n(apiVersion: batch.*?)```", page, re.DOTALL)
    (tmp_path / "train.yaml").write_text(re.sub(r"  annotations:\n    heddle.*\n", "", job))
    program = kubectl(tmp_path)
    local, end = annotate.split(" | ")
    assert end == "kubectl create -f -"
    made = yaml.safe_load(typed(local, tmp_path, PATH=f"{program.parent}:{os.environ['PATH']}"))
    made["metadata"] |= {"name": "train-1", "namespace": SPACE}
    its = {"apiVersion": "batch/v1", "kind": "Job", "uid": "u", "controller": True}
    with kube_world(tmp_path) as world:
        world.start()
        world.put("jobs", made)
        one = workload("w", ["n0", "n2", "n4", "n6"], None)
        one["metadata"]["ownerReferences"] = [its | {"name": "train-1"}]
        key = world.submit(one)
        assert world.ready(key).startswith("planned: ")
        planned = world.job(key)
        assert planned is not None
        assert (planned.spec.gpus_per_host, planned.spec.parallelism.tp) == (8, 8)
