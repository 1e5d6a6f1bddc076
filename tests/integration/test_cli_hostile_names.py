"""Strangers' names cannot control the operator's terminal, and their length is limited."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from heddle.v1 import demand_pb2 as pb
from heddle.v1 import fabric_pb2
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from tests.support.operating import operating
from tests.support.serving import refusal, serving, violations, wire
from tests.support.store_samples import clos, demands

ODD = "x\x1b[2J\x1b]0;t\x07\r\nFAKE \u202etxt\u2066\x9b31m\u2028\x7f"


def obeyed(text: str) -> set[str]:
    """Return the characters of a text that a terminal would obey, except line feeds."""
    return {
        one for one in text if one != "\n" and unicodedata.category(one) in {"Cc", "Cf", "Zl", "Zp"}
    }


def renamed(fabric: Fabric, odd: str) -> Fabric:
    """Return a fabric whose title is odd, and whose first NIC has an odd suffix in its id."""
    told = json.loads(
        json.dumps(fabric_document(fabric)).replace('"n0.0"', json.dumps(f"n0.0{odd}"))
    )
    told["graph"]["name"] = odd
    return parse_fabric(told, "odd")


@pytest.mark.parametrize(
    "words",
    [
        ("fabric", "list"),
        ("fabric", "show"),
        ("demand", "list"),
        ("demand", "show", "d1"),
        ("show", "routes"),
        ("show", "explain", f"f{ODD}0"),
        ("show", "explain", f"none{ODD}"),
        ("audit", "list"),
        ("job", "show", ODD),
        ("job", "delete", ODD),
        ("fabric", "switch", f"s{ODD}", "down"),
        ("show", "what-if", "--down", f"l{ODD}"),
    ],
)
async def test_a_terminal_obeys_nobodys_names(tmp_path: Path, words: tuple[str, ...]) -> None:
    """No output has a character that a terminal obeys, and no name starts a line of its own.

    This holds for tables, errors, JSON and YAML.
    """
    fabric = renamed(clos(), ODD)
    async with operating(tmp_path) as o:
        await o.s.store.put_fabric("f1", fabric, title=ODD)
        odd = demands((f"n0.0{ODD}", "n1.0"), ids=f"f{ODD}")
        await o.s.store.put_demands("f1", "d1", replace(odd, job=(ODD,), phase=(ODD,)))
        for style in ((), ("--json",), ("--yaml",)):
            done = await o.does(*style, *words)
            shown = done.out + done.err
            assert shown
            assert not obeyed(shown)
            assert not any(line.startswith("FAKE") for line in shown.splitlines())


async def test_documents_tell_names_as_they_are(tmp_path: Path) -> None:
    """Names are escaped in JSON and YAML; a reader gets them back unchanged."""
    async with operating(tmp_path) as o:
        await o.s.store.put_fabric("f1", clos(), title=ODD)
        done = await o.does("--json", "fabric", "list")
        assert [one["title"] for one in done.json] == [ODD]
        done = await o.does("--yaml", "fabric", "list")
        assert [one["title"] for one in yaml.safe_load(done.out)] == [ODD]


LONG = "n" * 200_000


@pytest.mark.parametrize(
    ("flow", "record"),
    [
        (pb.FlowDemand(flow=LONG, source="n0.0", destination="n1.0", gbps=1), "the id has 200,000"),
        (pb.FlowDemand(flow="f", source="n0.0", destination="n1.0", gbps=1, job=LONG), "job has"),
        (
            pb.FlowDemand(flow="f", source="n0.0", destination="n1.0", gbps=1, phase=LONG),
            "phase has",
        ),
        (pb.FlowDemand(flow="f", source=LONG, destination="n1.0", gbps=1), "is not in the fabric"),
    ],
)
async def test_long_names_of_flows_are_refused(
    tmp_path: Path, flow: pb.FlowDemand, record: str
) -> None:
    """The error names the record and the limit, and is short itself."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        asked = [
            pb.PutDemandsRequest(name="fabrics/f1/demands/d1", flow_count=1),
            pb.PutDemandsRequest(demands=[flow]),
        ]
        error = await refusal(s.demands.PutDemands(iter(asked)))
        (told,) = violations(error).items()
        assert told[0].startswith("flow '")
        assert record in told[1]
        assert len(error.details() or "") <= 1024


@pytest.mark.parametrize("field", ["id", "host", "zone", "key", "title"])
async def test_long_names_of_fabrics_are_refused(tmp_path: Path, field: str) -> None:
    """Files and API calls with long names are refused; fabrics stored earlier are still read."""
    document = fabric_document(clos())
    if field == "title":
        document["graph"]["name"] = LONG
    elif field == "key":
        document["edges"][0]["key"] = LONG
    else:
        document["nodes"][0][field] = LONG
        if field == "id":
            for edge in document["edges"]:
                edge["source"] = LONG if edge["source"] == "n0.0" else edge["source"]
    with pytest.raises(InputError, match="has 200,000 characters; give at most"):
        parse_fabric(document, "f.json")
    if field != "id":
        long = parse_fabric(document, "f.json", kept=True)
        async with serving(tmp_path) as s:
            error = await refusal(
                s.fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=wire(long)))
            )
            assert error.code().name == "INVALID_ARGUMENT"
            assert "200,000 characters" in (error.details() or "")
