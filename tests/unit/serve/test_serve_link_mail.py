"""Link reports on their way to a store that is not always there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.fabric import State
from heddle_controller.serve.agents.link_mail import LinkMail, merged
from heddle_controller.state.errors import NotFound, Unavailable
from heddle_controller.state.records import LinkName, LinkObservation, LinkReport
from tests.waiting import PATIENCE, until


def seen(link: int, sequence: int, state: State = State.DOWN) -> LinkObservation:
    """An observation of a link by number."""
    return LinkObservation(LinkName("l0", f"s{link}"), state, 1.0, sequence)


def report(*links: LinkObservation, full: bool = False) -> LinkReport:
    """Of one instance of one agent."""
    return LinkReport("l0", "i", links, full)


class Slow:
    """A store that can be away, and keeps what it is told as ``report_links`` says."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.tries = 0
        self.links: dict[LinkName, LinkObservation] = {}
        self.written: list[LinkReport] = []

    async def report_links(self, _fabric: str, told: LinkReport) -> bool:
        """See the port."""
        self.tries += 1
        error = self.error  # as it is when asked: what is under way fails all the same
        await asyncio.sleep(0)
        if error is not None:
            raise error
        self.written.append(told)
        self.links = kept(self.links, told)
        return True


def kept(
    links: dict[LinkName, LinkObservation], told: LinkReport
) -> dict[LinkName, LinkObservation]:
    """What a store holds after a report."""
    after = {} if told.full else dict(links)
    for one in told.links:
        before = links.get(one.link)
        after[one.link] = one if before is None or before.sequence < one.sequence else before
    return after


REPORTS = st.lists(
    st.tuples(st.lists(st.integers(0, 3), unique=True, max_size=4), st.booleans()), max_size=8
)


@given(REPORTS, st.lists(st.booleans(), max_size=8))
def test_merged_reports_say_what_they_said_one_by_one(
    drawn: list[tuple[list[int], bool]], together: list[bool]
) -> None:
    """However reports are merged on the way, the store ends with the same observations."""
    reports = [
        report(*(seen(link, sequence) for link in links), full=full)
        for sequence, (links, full) in enumerate(drawn, start=1)
    ]
    one_by_one: dict[LinkName, LinkObservation] = {}
    for each in reports:
        one_by_one = kept(one_by_one, each)
    grouped: dict[LinkName, LinkObservation] = {}
    waiting: LinkReport | None = None
    for each, wait in zip(reports, [*together, *[False] * len(reports)], strict=False):
        waiting = merged(waiting, each) if waiting is not None else each
        if not wait:
            grouped, waiting = kept(grouped, waiting), None
    if waiting is not None:
        grouped = kept(grouped, waiting)
    assert grouped == one_by_one


async def test_reports_wait_for_the_store() -> None:
    """While it is away the newest of each link waits; then all is written in one report."""
    store: Any = Slow()
    store.error = Unavailable("away", retry_after=0.01)
    mail = LinkMail(store, "f1")
    task = asyncio.create_task(mail.run())
    mail.put(report(seen(1, 1), seen(2, 1, State.UP), full=True))
    await until(lambda: store.tries >= 2)
    for sequence in range(2, 50):
        mail.put(report(seen(1, sequence)))
    store.error = None
    await until(lambda: store.written)
    assert {one.link.target: one.sequence for one in store.links.values()} == {"s1": 49, "s2": 1}
    assert len(store.written) == 1
    assert store.written[0].full
    mail.close()
    await asyncio.wait_for(task, PATIENCE)


async def test_the_last_word_is_written_when_the_session_is_over() -> None:
    """An agent that tells of a lost link and goes has told it."""
    store: Any = Slow()
    mail = LinkMail(store, "f1")
    mail.put(report(seen(1, 1)))
    mail.close()
    await asyncio.wait_for(mail.run(), PATIENCE)
    assert len(store.links) == 1


async def test_what_can_never_be_written_is_raised() -> None:
    """The fabric is gone: the session cannot go on."""
    store: Any = Slow()
    store.error = NotFound("fabrics/f1")
    mail = LinkMail(store, "f1")
    mail.put(replace(report(seen(1, 1)), full=True))
    with pytest.raises(NotFound):
        await asyncio.wait_for(mail.run(), PATIENCE)
