"""What the controller believes about links while reports are lost, repeated and late."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from heddle_controller.model.fabric import State
from heddle_controller.reconcile.observations import (
    LinkEnds,
    LinkStates,
    held_down,
    link_ends,
    undecided,
    with_down,
)
from heddle_controller.reconcile.ports import AgentSession, LinkObservation, LinkReport
from heddle_controller.state.records import LinkName
from tests.support.depth import examples
from tests.support.store_samples import clos

FABRIC = clos(leaves=2, spines=2, hosts=1)
SWITCHES = ("l0", "l1", "s0", "s1")
ENDS = {
    switch: [
        link_ends(switch, other, 0)
        for other in (("s0", "s1") if switch.startswith("l") else ("l0", "l1"))
    ]
    for switch in SWITCHES
}
"""The links of each switch to other switches."""

Message = tuple[AgentSession, LinkReport]


@dataclass
class Agent:
    """One agent: what it sees, and which of its reports are under way."""

    switch: str
    instance: int = 0
    sequence: int = 0
    session: AgentSession | None = None
    sees: dict[LinkEnds, tuple[State, int]] = field(default_factory=dict)
    under_way: list[Message] = field(default_factory=list)

    def say(self, links: list[LinkEnds], *, full: bool) -> None:
        """Send a report, if there is a session."""
        if self.session is not None:
            seen = [
                LinkObservation(LinkName(*one), self.sees[one][0], 1.0, self.sees[one][1])
                for one in links
            ]
            self.under_way.append((self.session, LinkReport(tuple(seen), full)))


class Believing(RuleBasedStateMachine):
    """Agents of a fabric, and a controller that may be replaced at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.agents = {name: Agent(name) for name in SWITCHES}
        for name, agent in self.agents.items():
            agent.sees = dict.fromkeys(ENDS[name], (State.UP, 0))
        self.states = LinkStates()
        self.sessions = 0
        self.arrived: list[Message] = []
        """Reports that arrived at this controller, of sessions not yet replaced by later ones."""
        self.newest: dict[str, int] = {}
        self.planned: frozenset[LinkEnds] = frozenset()
        """Links that are down in the plan with which this controller began."""
        self.held: frozenset[LinkEnds] = frozenset()
        self.patient = True

    switches = st.sampled_from(SWITCHES)

    @rule(switch=switches, which=st.integers(0, 1), up=st.booleans())
    def turn(self, switch: str, which: int, up: bool) -> None:  # noqa: FBT001 - drawn
        """An agent sees a link fail or return."""
        agent, link = self.agents[switch], ENDS[switch][which]
        agent.sequence += 1
        agent.sees[link] = State.UP if up else State.DOWN, agent.sequence
        agent.say([link], full=False)

    @rule(switch=switches)
    def connect(self, switch: str) -> None:
        """Begin a session in place of any before. It first reports all links."""
        agent = self.agents[switch]
        self.sessions += 1
        name = str(agent.instance)
        agent.session = AgentSession(
            self.sessions, "f1", switch, name, "", frozenset(), 0, 0, 0, b""
        )
        self.newest[switch] = self.sessions
        self.states.joined(agent.session)
        agent.say(ENDS[switch], full=True)

    @rule(switch=switches, lost=st.booleans(), restarted=st.booleans())
    def leave(self, switch: str, lost: bool, restarted: bool) -> None:  # noqa: FBT001 - drawn
        """End a session, perhaps with the agent. Reports under way are lost or come late."""
        agent = self.agents[switch]
        if agent.session is not None:
            self.states.left(agent.session)
        agent.session = None
        if lost:
            agent.under_way.clear()
        if restarted:
            agent.instance, agent.sequence = agent.instance + 1, 0
            agent.sees = {link: (state, 0) for link, (state, _) in agent.sees.items()}

    @rule(switch=switches, which=st.integers(0, 3), again=st.booleans())
    def arrive(self, switch: str, which: int, again: bool) -> None:  # noqa: FBT001 - drawn
        """Let the oldest report of a session arrive; if ``again``, it arrives once more later."""
        waiting = self.agents[switch].under_way
        if not waiting:
            return
        sessions = sorted({about.id for about, _ in waiting})
        wanted = sessions[which % len(sessions)]
        at = next(n for n, (about, _) in enumerate(waiting) if about.id == wanted)
        about, report = waiting[at] if again else waiting.pop(at)
        self._take(about, report)

    def _take(self, about: AgentSession, report: LinkReport) -> None:
        before = self.states.down - set()
        changed = self.states.report(about, report, 1.0)
        assert changed is (self.states.down != before)
        if about.id >= self.newest.get(about.switch, 0):
            self.arrived.append((about, report))

    @rule(switch=switches)
    def meddle(self, switch: str) -> None:
        """An agent reports a link that does not end at its switch, which changes nothing."""
        agent = self.agents[switch]
        if agent.session is not None:
            link = next(one for name in SWITCHES for one in ENDS[name] if switch not in one)
            seen = LinkObservation(LinkName(*link), State.DOWN, 1.0, 10_000)
            assert not self.states.report(agent.session, LinkReport((seen,)), 1.0)

    @rule()
    def lose_patience(self) -> None:
        """The controller stops waiting for reports."""
        self.patient, self.held = False, frozenset()

    @rule()
    def lead_anew(self) -> None:
        """Another controller takes over, with the last plan and no session."""
        plan = with_down(FABRIC, self.believed())
        for agent in self.agents.values():
            agent.session = None
            agent.under_way.clear()
        self.states, self.arrived, self.newest = LinkStates(), [], {}
        self.planned = self.held = held_down(plan)
        self.patient = True

    def believed(self) -> frozenset[LinkEnds]:
        """Links that a plan made now would treat as down."""
        if self.patient:
            self.held = undecided(self.held, self.states.heard, FABRIC)
        return self.held | self.states.down

    def said(self, switch: str) -> dict[LinkEnds, State]:
        """The newest state of each link that an agent's last known instance has reported."""
        mine = [one for one in self.arrived if one[0].switch == switch]
        last = next((about.instance for about, _ in reversed(mine)), "")
        newest: dict[LinkEnds, tuple[int, State]] = {}
        for about, report in mine:
            if about.instance != last:
                newest.clear()
                continue
            for one in report.links:
                link = link_ends(one.link.source, one.link.target, one.link.key)
                if link not in newest or one.sequence > newest[link][0]:
                    newest[link] = one.sequence, one.state
        return {link: state for link, (_, state) in newest.items()}

    @invariant()
    def a_link_is_down_while_either_end_says_so(self) -> None:
        """A link is down while the last report of either end says so, with or without a session."""
        says = [self.said(switch) for switch in SWITCHES]
        down = {link for one in says for link, state in one.items() if state is State.DOWN}
        assert self.states.down == down

    @invariant()
    def who_has_told_all_is_known(self) -> None:
        """The agents that sent a full report in their current session are known."""
        now = {agent.session.id for agent in self.agents.values() if agent.session is not None}
        told = {about.switch for about, report in self.arrived if report.full and about.id in now}
        assert self.states.heard == told

    @invariant()
    def nothing_is_believed_up_before_it_may_be(self) -> None:
        """Links down in the last plan are up only when both ends said so or waiting has ended."""
        for link in self.planned - self.believed():
            words = [self.said(end).get(link) for end in link[:2]]
            assert State.DOWN not in words
            assert not self.patient or words == [State.UP, State.UP]

    @precondition(lambda self: all(agent.session for agent in self.agents.values()))
    @rule()
    def hear_all(self) -> None:
        """Deliver all reports while all agents are connected; the belief is then what they see."""
        for agent in self.agents.values():
            for about, report in agent.under_way:
                self._take(about, report)
            agent.under_way.clear()
        seen = {
            link
            for agent in self.agents.values()
            for link, (state, _) in agent.sees.items()
            if state is State.DOWN
        }
        assert self.believed() == seen


@pytest.mark.deep
def test_what_is_believed() -> None:
    """The belief is right at every step of random histories."""
    count = examples(40, 2000)
    run_state_machine_as_test(
        Believing, settings=settings(max_examples=count, stateful_step_count=40, deadline=None)
    )


def test_a_full_report_forgets_links_that_it_does_not_name() -> None:
    """A full report makes the controller forget this agent's word on links it does not name.

    Nothing is kept of a link that no agent names any more.
    """
    states = LinkStates()
    leaf = AgentSession(1, "f1", "l0", "i", "", frozenset(), 0, 0, 0, b"")
    spine = AgentSession(2, "f1", "s0", "i", "", frozenset(), 0, 0, 0, b"")
    one, other = (LinkObservation(LinkName("l0", s), State.DOWN, 1.0, 3) for s in ("s0", "s1"))
    assert states.report(leaf, LinkReport((one, other), full=True), 1.0)
    assert not states.report(spine, LinkReport((one,)), 2.0)
    assert states.report(leaf, LinkReport((), full=True), 3.0)
    assert states.down == {("l0", "s0", "0")}
    rows = states.seen(FABRIC)
    assert list(rows.since.values()) == [1.0]
