"""Each invariant is broken here on purpose, and the check finds it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rallypoint.server.core.invariants import check_job, check_touched
from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.model.job import Counts, Job
from rallypoint.server.core.model.node import Eligibility, Node, NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import Hang, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.state import State
from rallypoint.server.core.state.tally import Tally
from support.core.coordinator import Bench
from support.core.fake_agents import JOB

SPEC = JobSpec(min_nodes=2, max_nodes=2, max_restarts=1)


def sound() -> State:
    """Return a state with a running round of two nodes and a spare."""
    bench = Bench(SPEC)
    bench.run_round("a", "b")
    bench.join("z")
    return bench.state


def change_node(name: str, **facts: object) -> Callable[[State], None]:
    def change(state: State) -> None:
        node = next(node for node in state.nodes.values() if node.name == name)
        state.nodes[node.session] = replace(node, **facts)

    return change


def change_job(alter: Callable[[Job], Job]) -> Callable[[State], None]:
    def change(state: State) -> None:
        state.jobs[JOB] = alter(state.jobs[JOB])

    return change


def change_round(**facts: object) -> Callable[[State], None]:
    def alter(job: Job) -> Job:
        assert job.round is not None
        return replace(job, round=replace(job.round, **facts))

    return change_job(alter)


def swap_members(state: State) -> None:
    round = state.jobs[JOB].round
    assert round is not None
    change_round(members=round.members[::-1])(state)


def double_member(state: State) -> None:
    round = state.jobs[JOB].round
    assert round is not None
    first, second = round.members
    change_round(members=(first, replace(second, name=first.name)))(state)


def widen_round(state: State) -> None:
    round = state.jobs[JOB].round
    assert round is not None
    change_round(header=replace(round.header, world_size=3))(state)


def rename_run(state: State) -> None:
    round = state.jobs[JOB].round
    assert round is not None
    change_round(header=replace(round.header, run=7))(state)


def narrow_round(state: State) -> None:
    round = state.jobs[JOB].round
    assert round is not None
    change_round(header=replace(round.header, group_world_size=1))(state)


def move_member(state: State) -> None:
    node = next(iter(state.nodes.values()))
    assert node.assignment is not None
    change_node("a", assignment=replace(node.assignment, role="other"))(state)


def stop_for_growth(state: State) -> None:
    round = {"hang": Hang(0, 0, True), "stop_reason": RoundReason.GROWTH, "stop_ms": 1}
    change_round(**round)(state)
    change_job(lambda job: replace(job, phase=Phase.STOPPING))(state)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (change_node("z", assignment=object()), "z is half a member"),
        (change_node("a", assignment=None), "a is half a member"),
        (change_node("a", last_round=0), "a is a member and does not hold the round"),
        (change_node("z", port=0), "z is ready without a port"),
        (change_node("z", eligibility=Eligibility.CORDONED), "z and its cordon disagree"),
        (change_node("z", eligibility=Eligibility.QUARANTINED), "nothing ends the quarantine of z"),
        (change_node("z", state=NodeState.STARTED), "z runs no round"),
        (change_node("z", attached=False), "the tally is off"),
        (change_node("z", identity=Bench().agent("z", job_id="x").identity), "another job"),
        (lambda state: state.index.clear(), "the name a does not lead to its node"),
        (lambda state: state.tallies.update({JOB: Tally()}), "the tally is off"),
        (change_job(lambda job: replace(job, phase=Phase.FORMING)), "phase and round disagree"),
        (change_job(lambda job: replace(job, round=None)), "is a member"),
        (
            change_job(lambda job: replace(job, outcome=Outcome.FAILED)),
            "closed without outcome",
        ),
        (change_job(lambda job: replace(job, counts=Counts(restart_count=2))), "budget overdrawn"),
        (change_job(lambda job: replace(job, round_number=2)), "number is not the last"),
        (rename_run, "the round is of another run"),
        (narrow_round, "more members than places"),
        (widen_round, "ranks have holes"),
        (swap_members, "ranks have holes"),
        (double_member, "a node has two places"),
        (move_member, "a has another place than the round says"),
        (change_round(hang=Hang(0, 0)), "nothing ends the wait for evidence of a hang"),
        (change_round(hang=Hang(2, 1, True)), "a hang is suspected before its last progress"),
        (stop_for_growth, "a round that was stopped for something else hangs"),
    ],
)
def test_broken_state_is_found(change: Callable[[State], None], text: str) -> None:
    """Each invariant names the job and what is wrong with it; the sound state passes."""
    state = sound()
    check_job(state, JOB)

    change(state)
    with pytest.raises(BrokenInvariant) as raised:
        check_job(state, JOB)

    assert JOB == raised.value.job_id
    assert text in raised.value.text


def test_check_after_a_step_looks_at_what_it_touched() -> None:
    """Only what a step touched is checked."""
    state = sound()
    first, *_, last = state.nodes.values()
    draft = Draft(state, 0)
    draft.put_node(last)
    change_node(first.name, assignment=None)(state)
    check_touched(state, draft.delta())

    broken: Node = replace(last, port=0)
    state.nodes[last.session] = broken
    with pytest.raises(BrokenInvariant, match="z is ready without a port"):
        check_touched(state, draft.delta())


def test_check_after_a_step_looks_at_the_jobs_it_touched() -> None:
    """A job that a step changed is checked too."""
    state = sound()
    draft = Draft(state, 0)
    draft.put_job(state.jobs[JOB])
    change_job(lambda job: replace(job, counts=Counts(restart_count=2)))(state)

    with pytest.raises(BrokenInvariant, match="budget overdrawn"):
        check_touched(state, draft.delta())


def test_tallies_add_up_in_every_field() -> None:
    """The sum of two tallies covers every count."""
    ones, threes = Tally(*[1] * len(Tally._fields)), Tally(*[3] * len(Tally._fields))

    assert Tally(*[4] * len(Tally._fields)) == threes.plus(ones, 1)
    assert Tally(*[2] * len(Tally._fields)) == threes.plus(ones, -1)
