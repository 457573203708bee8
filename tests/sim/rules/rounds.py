"""Rules for every round: its ranks, its number, and when its workers run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.agent.core.desired import RunOrder
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import JobForgotten
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.round import Member, RoundHeader
from rallypoint.server.core.step import Transition
from sim.rules.rules import Checker
from sim.world.process import Process
from sim.world.wire import header_of
from support.core.decisions import (
    DrainRequested,
    DrainRequestEnded,
    Record,
    RoundSealed,
    RoundSettled,
    RunClosed,
    RunOpened,
)

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.server import Server
    from sim.world.world import World


def is_whole(record: RoundSealed) -> bool:
    """Return whether every slot of the round is taken; an adopted round may have a gap."""
    return len(record.members) == record.header.group_world_size


class RanksOnce(Checker):
    """In a round, global ranks are 0..world-1 and role ranks 0..role world-1, each exactly once."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._taken: set[tuple[JobId, RoundHeader, int]] = set()

    def recorded(self, server: Server, record: Record) -> None:
        if not isinstance(record, RoundSealed) or not is_whole(record):
            return
        ranks: list[int] = []
        role_ranks: dict[str, list[int]] = {}
        for member in record.members:
            place = member.assignment
            workers = range(place.local_world_size)
            ranks += [place.first_rank + worker for worker in workers]
            found = role_ranks.setdefault(place.role, [])
            found += [place.first_role_rank + worker for worker in workers]
        self.require(sorted(ranks) == list(range(record.header.world_size)), f"ranks {ranks}")
        for role, found in role_ranks.items():
            self.require(sorted(found) == list(range(len(found))), f"ranks of {role} {found}")

    def spawned(self, process: Process) -> None:
        key = (*process.group.key, process.rank)
        self.require(key not in self._taken, f"rank {process.rank} starts twice")
        self.require(
            process.rank < process.order.header.world_size, f"rank {process.rank} is too high"
        )
        self._taken.add(key)


class OneProgram(Checker):
    """Members of one role run one program, unless the operator of one of them allows another."""

    def recorded(self, server: Server, record: Record) -> None:
        if not isinstance(record, RoundSealed):
            return
        names: dict[str, set[str]] = {}
        for member in record.members:
            session = server.state.index.get((record.job_id, member.name))
            program = None if session is None else self.world.plan_of(session).program
            if program is not None and not program.may_differ:
                names.setdefault(member.assignment.role, set()).add(program.name)
        for role, programs in names.items():
            self.require(len(programs) == 1, f"programs of {role}: {sorted(programs)}")


class NumberMeansOneRound(Checker):
    """All who hold a round of the same number, run and epoch agree on its header.

    Without a journal, a later coordinator may give a number again that no present agent remembers:
    then the epoch tells the two apart, and no agent ever runs both. Where a clock
    was set back, the same epoch may come again too.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._headers: dict[tuple[JobId, int, int, int], set[RoundHeader]] = {}
        self._of_agent: dict[tuple[str, int, int], RoundHeader] = {}

    def order_received(self, agent: Agent, order: RunOrder) -> None:
        header = header_of(order)
        known = self._headers.get(_key(agent.host.plan.job_id, header), set())
        self.require(header in known, f"{agent.host.name} runs {header}, sealed were {known}")
        here = self._of_agent.setdefault((agent.session, order.header.run, order.number), header)
        self.require(here == header, f"{agent.host.name} runs {here} and {header}")

    def recorded(self, server: Server, record: Record) -> None:
        if not isinstance(record, RoundSealed):
            return
        known = self._headers.setdefault(_key(record.job_id, record.header), set())
        may_repeat = self.world.was_set_back and not server.is_durable
        is_one = not known - {record.header} or may_repeat
        self.require(is_one, f"one number for {known} and {record.header}")
        known.add(record.header)


def _key(job_id: JobId, header: RoundHeader) -> tuple[JobId, int, int, int]:
    return (job_id, header.run, header.number, header.epoch)


class NumbersOnlyGrow(Checker):
    """While a coordinator lives, every round of a job has a higher number than the last.

    A durable one lives as long as its journal.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last: dict[tuple[int, JobId], RoundHeader] = {}
        self._ordered: dict[str, RunOrder] = {}

    def recorded(self, server: Server, record: Record) -> None:
        if not isinstance(record, RoundSealed):
            return
        header = record.header
        last = self._last.get((server.life, record.job_id))
        if last is not None:
            is_later = (header.run, header.number) > (last.run, last.number)
            self.require(is_later, f"{header} after {last}")
            self.require(header.epoch >= last.epoch, f"{header} after {last}")
        self._last[(server.life, record.job_id)] = header

    def order_received(self, agent: Agent, order: RunOrder) -> None:
        last = self._ordered.get(agent.session)
        if last is not None:
            self.require(order.number > last.number, f"{agent.host.name}: {order} after {last}")
            self.require(
                order.header.epoch >= last.header.epoch, f"{agent.host.name}: {order} after {last}"
            )
        self._ordered[agent.session] = order


class OneCurrentRound(Checker):
    """A job has one current round: it begins after the last one is settled."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._current: dict[tuple[int, JobId], RoundHeader] = {}

    def recorded(self, server: Server, record: Record) -> None:
        if isinstance(record, RoundSealed):
            key = (server.life, record.job_id)
            current = self._current.get(key)
            self.require(current is None, f"{record.header} beside {current}")
            self._current[key] = record.header
        elif isinstance(record, RoundSettled | RunClosed):
            self._current.pop((server.life, record.job_id), None)


class StartsOnce(Checker):
    """A node starts no worker of a round twice, and none while an older round's worker lives."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._started: set[tuple[str, int, int, int]] = set()

    def spawned(self, process: Process) -> None:
        order, host = process.order, process.host
        assert process.agent is host.agent
        key = (process.agent.session, order.header.run, order.number, process.local_rank)
        self.require(key not in self._started, f"{host.name} starts {key} twice")
        self._started.add(key)
        for other in host.processes:
            self.require(
                other.order is order,
                f"{host.name} starts round {order.number} while pid {other.pid} of round "
                f"{other.order.number} lives",
            )


class SurvivorsKeepRanks(Checker):
    """Survivors keep their order, and their ranks if every gap was filled by an equal node."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last: dict[tuple[int, JobId], tuple[Member, ...]] = {}

    def recorded(self, server: Server, record: Record) -> None:
        if isinstance(record, RunOpened):
            self._last.pop((server.life, record.job_id), None)
        if not isinstance(record, RoundSealed) or not is_whole(record):
            return
        last = self._last.get((server.life, record.job_id))
        self._last[(server.life, record.job_id)] = record.members
        if last is not None:
            self._compare(last, record.members)

    def _compare(self, last: tuple[Member, ...], now: tuple[Member, ...]) -> None:
        before = {member.name: member.assignment for member in last}
        after = {member.name: member.assignment for member in now}
        survivors = [member.name for member in last if member.name in after]
        ranks = [after[name].group_rank for name in survivors]
        self.require(ranks == sorted(ranks), f"survivors {survivors} change places: {ranks}")
        if len(now) < len(last):
            return  # a gap was closed
        kept = [before[name].group_rank for name in survivors]
        self.require(ranks == kept, f"survivors {survivors} move from {kept} to {ranks}")
        sizes = zip(last, now, strict=False)
        if all(
            was.assignment.local_world_size == is_.assignment.local_world_size for was, is_ in sizes
        ):
            for name in survivors:
                self.require(
                    before[name].first_rank == after[name].first_rank, f"{name} changes ranks"
                )


class DrainedStaysOut(Checker):
    """No new round has a place for a node of which the coordinator has heard that it wants to
    leave; one that runs may be adopted with it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._known: set[tuple[JobId, RoundHeader]] = set()
        self._leaving: set[tuple[int, SessionId]] = set()
        self._asked: dict[tuple[int, JobId, NodeName], SessionId] = {}
        """Whom operators asked to leave, by the name of then, until that is over."""

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        if transition.refusal is not None:
            return
        if isinstance(input, inputs.Draining):
            self._leaving.add((server.life, input.sender.session))
        elif isinstance(input, inputs.Hello) and input.draining is not None:
            self._leaving.add((server.life, input.identity.session))

    def recorded(self, server: Server, record: Record) -> None:
        if isinstance(record, DrainRequested):
            request = record.request
            self._asked[(server.life, record.job_id, request.name)] = request.session
        if isinstance(
            record, DrainRequestEnded
        ):  # it has left, or another one has come by its name
            self._asked.pop((server.life, record.job_id, record.name), None)
        if isinstance(record, JobForgotten):  # with everything that was asked of its nodes
            gone = [key for key in self._asked if key[:2] == (server.life, record.job_id)]
            for key in gone:
                del self._asked[key]
        if not isinstance(record, RoundSealed) or (record.job_id, record.header) in self._known:
            return
        self._known.add((record.job_id, record.header))
        for member in record.members:
            session = server.state.index[(record.job_id, member.name)]
            is_asked = self._asked.get((server.life, record.job_id, member.name)) == session
            is_leaving = is_asked or (server.life, session) in self._leaving
            self.require(not is_leaving, f"{member.name} drains and is in {record.header}")


class WorkersFailOnce(Checker):
    """A worker that records an error and then ends has failed once."""

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        if not isinstance(input, inputs.Recorded | inputs.Exited | inputs.Hello):
            return
        for job in server.state.jobs.values():
            round = job.round
            if round is None or round.departures:  # an adopted round may hold a place twice
                continue
            ranks = [failed.rank for failed in round.failures]
            self.require(len(set(ranks)) == len(ranks), f"ranks {ranks} failed in {round.header}")
            failed = sum(group.count for group in round.failure_groups)
            self.require(
                round.failure_count <= round.header.world_size and failed <= round.failure_count,
                f"{round.failure_count} failures in {round.header}, {failed} in groups",
            )


ROUND_RULES: tuple[type[Checker], ...] = (
    RanksOnce,
    OneProgram,
    NumberMeansOneRound,
    NumbersOnlyGrow,
    OneCurrentRound,
    StartsOnce,
    SurvivorsKeepRanks,
    DrainedStaysOut,
    WorkersFailOnce,
)
