"""Both cores under faults, on a virtual clock; `run.py` runs more seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from rallypoint.server.core.model.worker import WorkerExit
from rallypoint.server.core.state.state import State
from sim.rules.liveness import LOOK_MS
from sim.rules.news import NewsIsTrue
from sim.seeds import campaign
from sim.seeds.campaign import Summary, run_seed
from sim.seeds.coverage import EVERY, EXPECTED, UNREACHABLE, find_missing
from sim.seeds.faults import DiskFault, Fault, Feature, draw_faults
from sim.seeds.scenario import OTHER_RESTARTS, NodePlan, draw_jobs
from sim.shards.faults import AppendFault, OwnerFault
from sim.world.world import World
from support.tries.commit import choose_seeds

OWNERS = {"owners": "1"}
FEW = choose_seeds("cores", 75)
MANY = choose_seeds("more cores", 300, after=25)
FEW_OWNERS = choose_seeds("owners", 9)
MANY_OWNERS = choose_seeds("more owners", 60, after=3)
PART = 25
"""Seeds of one test, so that no process is busy for long while others have nothing to do."""
MOST_TRANSITIONS = 358
"""Of the 474 in `coverage.EXPECTED`. The rare ones take more seeds than there is time for here, and
each commit draws other seeds: those of nine commits reached 364 to 378."""


def check_seeds(seeds: Iterable[int], options: Mapping[str, str] | None = None) -> Summary:
    """Simulate seeds; fail with the first that fails, and with what cannot have happened."""
    arguments = "".join(f" --option {name}={value}" for name, value in (options or {}).items())
    summary = campaign.check_seeds(partial(run_seed, options=options), seeds, arguments)
    assert not [row for row in UNREACHABLE if summary.counts[row]]
    return summary


@pytest.mark.parametrize("first", range(0, len(FEW), PART))
def test_every_seed_is_safe_and_comes_to_rest(first: int) -> None:
    """Whatever goes wrong, no rule is broken, and when it stops every job runs or ends."""
    assert check_seeds(FEW[first : first + PART]).seeds == PART


def test_owners_of_shards_are_safe() -> None:
    """The same where several coordinators own shards in etcd, and anything happens to them."""
    assert check_seeds(FEW_OWNERS, options=OWNERS).seeds == len(FEW_OWNERS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_more_owners_of_shards_are_safe() -> None:
    """The same of more seeds, and every fault of coordinators and of etcd happens in them."""
    counts = check_seeds(MANY_OWNERS, options=OWNERS).counts

    assert counts["owners", "shard started"] >= 100
    assert counts["owners", "released"] >= 5
    for owner_fault in OwnerFault:
        assert counts["owner fault", owner_fault.value], owner_fault
    for append_fault in AppendFault:
        assert counts["append", append_fault.value], append_fault


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_many_seeds_reach_nearly_everything() -> None:
    """The same of more seeds, and they take most rows of the cores' own tables."""
    summary = check_seeds(MANY)

    missing = find_missing(summary.counts)
    assert len(EXPECTED) - len(missing) >= MOST_TRANSITIONS, f"not reached: {missing}"


@pytest.mark.parametrize(
    ("seed", "options"), [(1, None), (36, None), (122, None), (3, OWNERS), (4, OWNERS)]
)
def test_seed_is_a_history(seed: int, options: Mapping[str, str] | None) -> None:
    """The same seed gives the same history, step by step."""
    first, second = (run_seed(seed, options, is_traced=True) for _ in range(2))

    assert first.trace == second.trace
    assert (first.digest, first.steps) == (second.digest, second.steps)


def test_seeds_differ() -> None:
    """Different seeds give different histories."""
    digests = {run_seed(seed).digest for seed in range(5)}

    assert len(digests) == 5


@pytest.mark.long
def test_stalls_spare_jobs_with_leases_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short a lease: while all that goes wrong are stalls, no worker is stopped.

    It is the longer time to return that does it: with a lease for it, one is.
    """
    options, seeds = {"kinds": "stall", "features": "own_lease"}, range(40, 100)
    assert [] == [found.failure for seed in seeds if (found := run_seed(seed, options)).failure]

    monkeypatch.setattr(State, "return_ms", State.lease_ms)
    rules = {run_seed(seed, options).rule for seed in seeds}
    assert "WorkersDoNotNotice" in rules


def test_options_of_a_seed_can_be_set() -> None:
    """What is set by name holds for the seed, and the rest is what it drew; a typo is refused."""
    drawn = run_seed(3).options
    assert drawn is not None

    found = run_seed(3, {"kinds": "crash,partition", "nodes_max": "3"}).options

    assert found == replace(drawn, kinds=(Fault.CRASH, Fault.PARTITION), nodes_max=3)
    with pytest.raises(ValueError, match="no fault earthquake"):
        run_seed(3, {"kinds": "earthquake"})
    with pytest.raises(ValueError, match="no option weather"):
        run_seed(3, {"weather": "1"})


def test_seeds_are_a_swarm() -> None:
    """Each kind of fault and each feature is on in some seeds and off in others."""
    drawn = [draw_faults(Random(seed)) for seed in range(100)]

    for kind in Fault:
        assert 20 < sum(kind in options.kinds for options in drawn) < 80, kind
    for feature in Feature:
        assert 20 < sum(feature in options.features for options in drawn) < 80, feature
    for disk_fault in DiskFault:
        assert 20 < sum(disk_fault in options.disk for options in drawn) < 80, disk_fault


def test_durable_coordinators_start_again() -> None:
    """Often enough that the rules about it have something to judge, whatever the disk did."""
    summary = Summary()
    for seed in range(24):
        disk = ",".join(fault.name for fault in DiskFault)
        options = {"durable": "1", "disk": disk, "disk_every_ms": "1500"}
        summary.add(run_seed(seed, options))
    counts = summary.counts

    assert [result.failure for result in summary.failures] == []
    assert counts["event", "coordinator restored"] >= 40
    for fault in DiskFault:
        assert counts["disk", fault.value] >= 5, fault


def test_partitions_end_with_the_faults() -> None:
    """What they hold back arrives at once: no fence is enforced when all comes to rest."""
    world = World(
        0, {"kinds": "", "keys": "0", "meetings": "0", "features": "", "slow_percent": "0"}
    )
    until_ms = world.faults.until_ms
    world.clock.run_until(until_ms - 2_000)
    for host in world.hosts:
        world.partition(host, 4_000)
    world.clock.run_until(until_ms)
    world.settle_down()
    world.clock.run_until(until_ms + LOOK_MS)

    confirmed = [agent.state.confirmed_ms for agent in world.agents.values() if not agent.is_gone]
    assert confirmed
    assert all(ms is not None and ms >= until_ms - 1_000 for ms in confirmed), confirmed


@pytest.mark.parametrize("seed", [85, 360, 461])
def test_strangers_are_gone_before_jobs_end(seed: int) -> None:
    """An agent with other flags that finds the last coordinator late begins no other run."""
    options = {"durable": "1", "kinds": "crash", "every_ms": "1500", "features": "other_flags"}
    options |= {"survives_percent": "0", "jobs_max": "1", "keys": "0", "meetings": "0"}

    assert run_seed(seed, options).failure == ""


def test_some_nodes_have_other_flags() -> None:
    """Often enough that a job meets one: more than one in fifty."""
    nodes: list[NodePlan] = []
    for seed in range(300):
        rng = Random(seed)
        nodes += (node for job in draw_jobs(rng, draw_faults(rng)) for node in job.nodes)
    others = sum(node.spec.max_restarts == OTHER_RESTARTS for node in nodes)

    assert others > 0.02 * len(nodes)


def test_failing_workers_leave_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator hears of error records, of their times and of files."""
    heard: list[WorkerExit] = []
    real = NewsIsTrue.heard

    def hear(rule: NewsIsTrue, server: Any, agent: Any, news: Any, sent_ms: int) -> None:
        real(rule, server, agent, news, sent_ms)
        heard.extend(getattr(news, "exits", ()))

    monkeypatch.setattr(NewsIsTrue, "heard", hear)
    for seed in range(6):
        run_seed(seed, {"record_percent": "100", "worker_fails_percent": "20"})

    errors = [exit.error for exit in heard if exit.error is not None]
    assert any(error.before_exit_ms for error in errors)
    assert any(error.before_exit_ms is None for error in errors)
    for name in ("failed_ms", "error_file", "stderr_file", "oom_killed", "stderr_tail"):
        assert any(getattr(exit, name) for exit in heard), name


def test_workers_meet_and_share_keys() -> None:
    """Often enough that the rules about it have something to judge, limits included."""
    summary = Summary()
    for seed in range(16):
        summary.add(run_seed(seed, {"keys": "1", "meetings": "1"}))
    counts = summary.counts

    for event in ("barrier released", "barrier listed", "keys written", "change watched"):
        assert counts["event", event] >= 10, event
    assert counts["event", "watch compacted"]
    for refusal in ("old round", "limit reached", "keys forgotten", "keys compacted"):
        assert counts["refusal", refusal], refusal


def test_every_exempt_row_is_a_row() -> None:
    """Nothing is excused that is not in a table: a renamed row does not stay excused unseen."""
    assert not set(UNREACHABLE) - set(EVERY)
