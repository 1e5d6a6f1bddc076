"""Probes of a scenario as streams of packets in the lab."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from heddle_controller.model.flows import FIRST_SOURCE_PORT, ROCE_PORT
from heddle_emulator.drill.lab_paths import Pathfinder, Way, with_port
from heddle_emulator.drill.scenario import EachFlow, ProbeSpec, Scenario, Variant
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.probe.handle import probe_flow
from heddle_emulator.netns.probe.spec import FULL, HEADERS, SMALL, UDP, ProbeFlow


@dataclass(frozen=True, slots=True)
class Sending:
    """One probe and its streams."""

    name: str
    flows: tuple[ProbeFlow, ...]
    offered: float
    """Mbit/s of each stream; 0 where it only asks for a way."""


def sendings(
    scenario: Scenario, variant: Variant, lab: Lab, paths: Pathfinder
) -> tuple[list[Sending], dict[str, Way]]:
    """The streams of all probes, and the ways of those that have a single one.

    Raises:
        LabError: a probe that is to be beside another cannot be.
    """
    found, ways = [], dict[str, Way]()
    for probe in scenario.probes:
        if isinstance(probe, EachFlow):
            of = next((v for v in scenario.variants if v.name == probe.variant), variant)
            found.append(Sending(probe.name, tuple(_each(probe, of, lab)), probe.mbit))
            continue
        flow = _flow(
            lab, probe, (probe.source, probe.destination), probe.source_port or FIRST_SOURCE_PORT
        )
        if probe.beside:
            flow = with_port(flow, paths.beside(flow, ways[probe.beside]))
        ways[probe.name] = paths.ways([flow])[0]
        found.append(Sending(probe.name, (flow,), probe.mbit))
    return found, ways


def _each(probe: EachFlow, variant: Variant, lab: Lab) -> Iterator[ProbeFlow]:
    """A stream for every QP, from the ports that its packets bear."""
    flows, ids = variant.flows, lab.layout.fabric.structure.nodes.ids
    ports = flows.source_ports().tolist()
    for row, port in enumerate(ports):
        nics = ids[int(flows.source[row])], ids[int(flows.destination[row])]
        for qp in range(int(flows.qps[row])):
            yield _flow(lab, probe, nics, port + qp)


def _flow(lab: Lab, probe: ProbeSpec | EachFlow, nics: tuple[str, str], port: int) -> ProbeFlow:
    size = FULL if probe.mbit else SMALL
    rate = probe.rate or probe.mbit * 1e6 / 8 / (FULL + HEADERS)
    return probe_flow(
        lab,
        nics,
        (port, ROCE_PORT),
        rate,
        name=probe.name,
        size=size,
        protocol=probe.protocol or UDP,
    )
