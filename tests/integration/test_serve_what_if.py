"""What-if questions about flows and jobs whose ids are taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.v1 import demand_pb2, placement_pb2
from heddle.v1 import plan_pb2 as pb
from heddle_controller.serve.codec import job as codec
from tests.support.serving import refusal, serving
from tests.support.store_samples import demands, job


@pytest.mark.parametrize("taken", ["f0", "j1/dp/n0.0->n1.0"])
async def test_a_supposed_flow_needs_an_id_of_its_own(tmp_path: Path, taken: str) -> None:
    """A flow with the id of a stored flow, or of a job's flow, is refused by name, not left out."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.store.put_demands("f1", "d", demands(("n0.1", "n1.1")))
        await s.store.submit_job("f1", job("j1"))
        flow = demand_pb2.FlowDemand(flow=taken, source="n0.0", destination="n1.0", gbps=400)
        request = pb.WhatIfRequest(fabric="fabrics/f1", demands=[flow])
        error = await refusal(s.plans.WhatIf(request))
        assert error.code().name == "FAILED_PRECONDITION"
        assert taken in str(error.details())
        request.demands[0].flow = "another"
        assert (await s.plans.WhatIf(request)).after.routed_count > 0


async def test_a_supposed_job_needs_ids_of_its_own(tmp_path: Path) -> None:
    """A job that a demand set has ids of is refused as it would be if it was submitted."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.store.put_demands("f1", "d", demands(("n0.1", "n1.1"), ids="j1/dp/x->"))
        spec = codec.job_to_pb(job("j1"))
        request = pb.WhatIfRequest(
            fabric="fabrics/f1", jobs=[placement_pb2.Job(name="j1", spec=spec)]
        )
        asked = s.plans.WhatIf(request)
        submitted = s.jobs.SubmitJob(
            placement_pb2.SubmitJobRequest(parent="fabrics/f1", job_id="j1", spec=spec)
        )
        errors = [await refusal(call) for call in (asked, submitted)]
        assert {error.code().name for error in errors} == {"FAILED_PRECONDITION"}
        assert errors[0].details() == errors[1].details()
