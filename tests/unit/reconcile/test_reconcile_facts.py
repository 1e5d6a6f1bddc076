from __future__ import annotations

from heddle_controller.reconcile.rollout.report import Account, JobProgress, job_facts
from heddle_controller.state.records import JobFacts, JobRecord, JobState
from tests.support.store_samples import job


def record(name: str = "j1", etag: str = "e1", **facts: object) -> JobRecord:
    """Return a job's record, ACCEPTED at time 1 unless ``facts`` say otherwise."""
    known = {"state": JobState.ACCEPTED, "state_time": 1.0} | facts
    return JobRecord(job(name), etag, 1.0, JobFacts(etag, **known))  # type: ignore[arg-type]


DONE = JobProgress(JobState.PROGRAMMED, "", 8, 0)
GOING = JobProgress(JobState.PLANNED, "", 8, 0)
LOST = JobProgress(JobState.DEGRADED, "1 flow without a path: f: cut off", 8, 1)


def test_a_job_on_its_way() -> None:
    """A job is PLANNED and then PROGRAMMED, each with its time.

    Its generation is that of the first plan that held it.
    """
    account = Account(generation=5, jobs=(record(),))
    first = job_facts(account, {"j1": GOING}, {}, 2.0)
    assert first == {"j1": JobFacts("e1", JobState.PLANNED, "", 8, 0, 5, 2.0)}
    later = Account(generation=6, jobs=(record(),))
    second = job_facts(later, {"j1": DONE}, first, 3.0)
    assert second == {"j1": JobFacts("e1", JobState.PROGRAMMED, "", 8, 0, 5, 3.0)}


def test_only_news_is_told() -> None:
    """Facts that were reported before or are in the record are not reported again."""
    account = Account(generation=5, jobs=(record(),))
    told = job_facts(account, {"j1": DONE}, {}, 2.0)
    assert job_facts(account, {"j1": DONE}, told, 9.0) == {}
    stored = JobRecord(job("j1"), "e1", 1.0, told["j1"])
    assert job_facts(Account(generation=7, jobs=(stored,)), {"j1": DONE}, {}, 9.0) == {}


def test_a_new_reason_keeps_the_time_of_the_state() -> None:
    """A job that stays DEGRADED for another reason keeps the time since when it is DEGRADED."""
    account = Account(generation=5, jobs=(record(state=JobState.DEGRADED, state_time=4.0),))
    (fact,) = job_facts(account, {"j1": LOST}, {}, 9.0).values()
    assert (fact.reason, fact.unrouted_count, fact.state_time) == (LOST.reason, 1, 4.0)


def test_a_new_specification_begins_anew() -> None:
    """Facts of the earlier specification say nothing of the new one."""
    told = {"j1": JobFacts("old", JobState.PROGRAMMED, "", 8, 0, 3, 2.0)}
    account = Account(generation=5, jobs=(record(etag="new"),))
    (fact,) = job_facts(account, {"j1": GOING}, told, 9.0).values()
    assert (fact.etag, fact.generation, fact.state_time) == ("new", 5, 9.0)


def test_a_job_without_flows_is_programmed() -> None:
    """The job has nothing to wait for."""
    (fact,) = job_facts(Account(generation=5, jobs=(record(),)), {}, {}, 2.0).values()
    assert (fact.state, fact.flow_count) == (JobState.PROGRAMMED, 0)


def test_trouble_is_told_to_all() -> None:
    """Jobs in the old plan have the trouble beside their progress. Others have only a reason."""
    account = Account(
        generation=5,
        jobs=(record("j1"),),
        others=(record("j2"), record("j3")),
        refused=(("j3", "no such host"),),
        trouble="out of time",
    )
    facts = job_facts(account, {"j1": LOST}, {}, 2.0)
    assert {fact.state for fact in facts.values()} == {JobState.DEGRADED}
    assert facts["j1"].reason == (
        f"{LOST.reason}; planning failed: out of time; the plan of generation 5 stays"
    )
    assert facts["j2"].reason == "not planned: out of time"
    assert facts["j3"].reason == "not planned: no such host"


def test_jobs_that_wait_for_a_plan_are_left_alone() -> None:
    """Without trouble there is nothing to report of a job that is not planned yet."""
    assert job_facts(Account(generation=5, others=(record(),)), {}, {}, 2.0) == {}
