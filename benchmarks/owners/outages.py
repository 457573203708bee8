"""etcd itself fails: a member, most members, the space. Jobs run on, and everything says why."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
from aetcd import rpc

from crashes.crew import Crew
from harness.trial import MeasurementFailed
from owners.served import GIVE_UP_S, explain
from owners.shared import QUOTA_BYTES, Shared
from support.etcd.cluster import Cluster, Member

LOOK_S = 4.0
"""How long a fault lasts after everything has noticed it."""
FAILS = "failing0-"
"""A job of which a worker fails meanwhile."""
STEPS = 2
"""Further steps of each worker meanwhile."""
STEP_LIMIT_S = 30.0
POLL_S = 0.1
FILL_BYTES = 1_000_000
FILL_KEY = "/filling"
CONTROL_S = 30.0
"""Longest wait for etcd."""


def fail_etcd(play: Shared) -> None:
    """Let etcd fail in all ways, one after the other; note what came of it in `play.outages`."""
    cluster = play.cluster
    leader = cluster.find_leader()
    followers = [member for member in cluster.members if member is not leader]
    _play(play, "a follower killed", lambda: _lose_one(play, followers[0]))
    _play(play, "the leader killed", lambda: _lose_one(play, leader))
    _play(play, "two members killed", lambda: _lose_two(play, leader, followers[0]))
    _play(play, "no space left", lambda: _fill_up(play))


def _play(play: Shared, name: str, act: Callable[[], str]) -> None:
    try:
        text = act()
    except (MeasurementFailed, AssertionError) as error:  # the latter comes from the cluster
        play.note(f"etcd, {name}", str(error))
        text = "failed"
    play.settle(f"etcd, {name}")
    play.outages.append(f"{name}: {text}")
    print(f"etcd, {play.outages[-1]}", flush=True)


def _lose_one(play: Shared, member: Member) -> str:
    """Kill one member: nothing happens, and a worker that fails is handled."""
    claims = play.fencing.owners()
    before = {name: play.reached(crew) for name, crew in play.crews.items()}
    member.kill()
    began_s = time.monotonic()
    play.act(FAILS, "failure")
    play.crews[FAILS].settle()
    handled_s = time.monotonic() - began_s
    time.sleep(LOOK_S)
    again = [name for one, crew in play.crews.items() for name in play.reached(crew) - before[one]]
    moved = sum(play.fencing.owners().get(shard) != owned for shard, owned in claims.items())
    play.cluster.restart(member)
    if moved or again:
        raise MeasurementFailed(f"{moved} shards have moved, agents {again} connected again")
    return f"nothing; a worker that failed meanwhile was replaced after {handled_s:.2f} s"


def _lose_two(play: Shared, first: Member, second: Member) -> str:
    """Kill most members: nothing is decided until one is back."""
    first.kill()
    second.kill()
    try:
        text = _stand_still(play, "etcd")
    finally:
        play.cluster.restart(first)
        passed = _await_all(play)
        play.cluster.restart(second)
    return f"{text}; one back: {passed}"


def _fill_up(play: Shared) -> str:
    """Write until etcd has no space: nothing is decided until there is room."""
    fill(play.cluster)
    try:
        text = _stand_still(play, "out of space")
    finally:
        make_room(play.cluster)
        passed = _await_all(play)
    return f"{text}; room made: {passed}"


def fill(cluster: Cluster) -> None:
    """Write until etcd has no space left."""
    with grpc.insecure_channel(cluster.endpoints[0]) as channel:
        keys = rpc.KVStub(channel)
        for number in range(4 * QUOTA_BYTES // FILL_BYTES):
            key = f"{FILL_KEY}/{number}".encode()
            try:
                keys.Put(rpc.PutRequest(key=key, value=bytes(FILL_BYTES)), timeout=CONTROL_S)
            except grpc.RpcError as error:
                if "database space exceeded" in str(error):
                    return
                raise MeasurementFailed(f"etcd cannot be filled: {error}") from error
    raise MeasurementFailed("etcd has more space than its quota")


def make_room(cluster: Cluster) -> None:
    """Remove what `fill` has written, as the message of a coordinator says."""
    cluster.control("del", "--prefix", FILL_KEY)
    status = cluster.control("endpoint", "status", "--write-out=fields")
    revision = next(line for line in status.splitlines() if line.startswith('"Revision"'))
    cluster.control("compact", "--physical", revision.rpartition(" ")[2])
    for number in range(len(cluster.members)):
        cluster.control("defrag", member=number, extra=(f"--command-timeout={CONTROL_S:g}s",))
    cluster.control("alarm", "disarm")


def _stand_still(play: Shared, reason: str) -> str:
    """Let a worker fail while nothing can be decided; return what agents and coordinators say."""
    began_s = time.monotonic()
    play.act(FAILS, "failure")
    answers: list[str] = []
    for address in play.addresses:
        answers.append(_await_text(address, FAILS, reason, began_s))
    after_s = time.monotonic() - began_s
    _await_steps(play)
    time.sleep(LOOK_S)
    agent = next(iter(play.crews[FAILS].agents.values()))
    lines = play.trial.log(agent).read_text().splitlines()
    own = [line for line in lines if " is at step " not in line]
    told = [line for line in own if reason in line]
    if not told:
        play.note(f"etcd, {reason}", f"the agent does not say why: {own[-3:]}")
    return (
        f"after {after_s:.1f} s every coordinator answers {answers[0]!r}; "
        f"the agents say {(told or ['nothing'])[-1].strip()!r}; the workers step on"
    )


def _await_text(address: str, job_id: str, reason: str, began_s: float) -> str:
    """Wait until a coordinator says why it answers nothing."""
    text = ""
    while reason not in text:
        if time.monotonic() > began_s + GIVE_UP_S:
            raise MeasurementFailed(f"{address} does not say {reason!r}, but {text!r}")
        text = explain(address, job_id)
        time.sleep(POLL_S)
    return text


def _await_steps(play: Shared) -> None:
    """Wait until the workers of every job that nothing was done to are further than now."""
    crews: list[Crew] = [one for one in play.living() if not one.actions()]
    for crew in crews:
        play.stage.board.await_steps(crew.workers(), STEPS, STEP_LIMIT_S)


def _await_all(play: Shared) -> str:
    """Wait until every job is answered for, with all its agents; return how long that took."""
    began_s = time.monotonic()
    jobs = [crew.job_id for crew in play.living() if crew.model.run]
    moved = play.asking.follow(jobs, "", play.addresses[0], began_s, play.is_whole)
    if moved.missing:
        raise MeasurementFailed(f"{moved.missing} are not served with all their agents")
    served_s, whole_s = max(moved.served_s.values()), max(moved.attached_s.values())
    return (
        f"all jobs are answered for after {served_s:.2f} s, with all agents after {whole_s:.2f} s"
    )
