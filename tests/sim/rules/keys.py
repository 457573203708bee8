"""What workers may rely on in the key-value store, judged by a second store beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import JobForgotten, KeysWritten
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model import keyspace
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.round import RoundHeader
from rallypoint.server.core.step import Transition
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import scope_pb2
from sim.keys.limits import USUAL
from sim.keys.model import Outcome, Scoped, Store, answer_of, event_of
from sim.keys.plan import Method
from sim.rules.rules import Checker
from support.core.decisions import Record, RoundSealed, RoundStopped, RunClosed, RunOpened

if TYPE_CHECKING:
    from sim.keys.callers import Call, Watcher
    from sim.keys.served import OpenGet, OpenWatch
    from sim.world.server import Server
    from sim.world.world import World

_Place = tuple[int, JobId]
"""A job in one life of the coordinator."""
ITSELF = frozenset(
    {RefusalKind.KEY_NOT_A_NUMBER, RefusalKind.SUM_TOO_LARGE, RefusalKind.LIMIT_REACHED}
)
"""Refusals that the keys themselves are the reason for."""


class KeysHold(Checker):
    """Every change counts once, and everyone sees all of them in one order."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._stores: dict[_Place, Store] = {}
        self._running: dict[_Place, int] = {}
        """The round that runs, by the journal of each life."""
        self._headers: dict[_Place, RoundHeader] = {}
        """Header of the latest round."""
        self._sealed: dict[tuple[JobId, RoundHeader], int] = {}
        """The life in which each round was sealed."""
        self._sent: dict[str, Call] = {}
        """The latest attempt of each request."""
        self._applied: dict[str, _Place] = {}
        """Requests that have changed something."""
        self._latest: dict[tuple[JobId, int, RoundHeader], int] = {}
        """The latest revision in each round, by the life of the coordinator."""
        self._told: dict[_Place, int] = {}
        """The highest revision that a worker knows of."""

    def sealed_in(self, key: tuple[JobId, RoundHeader]) -> int | None:
        """Return the life of the coordinator in which a round was sealed."""
        return self._sealed.get(key)

    # --- the coordinator ---

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        if isinstance(input, inputs.WriteKeys):
            self._check_writes(server, input, transition)
        elif not transition.records:
            return
        for record in transition.records:
            self._note(server, record)
        for job_id in (input.job_id,) if isinstance(input, inputs.WriteKeys) else transition.jobs:
            self._compare(server, job_id)

    def _note(self, server: Server, record: Record) -> None:
        """Follow rounds and runs; what the journal says about keys is not believed."""
        match record:
            case RoundSealed(job_id=job_id, header=header):
                self._running[server.life, job_id] = header.number
                self._sealed.setdefault((job_id, header), server.life)
                self._headers[server.life, job_id] = header
                self._check_base(server, job_id, header)
            case RoundStopped(job_id=job_id):
                self._running.pop((server.life, job_id), None)
                if (server.life, job_id) in self._stores:
                    self._stores[server.life, job_id].drop_round()
            case RunOpened(job_id=job_id, run=run, since_epoch=since_epoch):
                base = since_epoch * keyspace.REVISIONS_PER_EPOCH
                self._stores[server.life, job_id] = Store(run, base, base)
                self._told.pop((server.life, job_id), None)
            case RunClosed(job_id=job_id) | JobForgotten(job_id=job_id):
                self._running.pop((server.life, job_id), None)
                self._stores.pop((server.life, job_id), None)
            case _:
                pass

    def _note_revision(self, place: _Place, store: Store) -> None:
        life, job_id = place
        self._latest[job_id, life, self._headers[place]] = store.revision

    def _check_base(self, server: Server, job_id: JobId, header: RoundHeader) -> None:
        """Check that no revision comes twice in a round that another coordinator has adopted."""
        base = self._stores[server.life, job_id].base
        for (job, life, before), revision in self._latest.items():
            if (job, before) == (job_id, header) and life != server.life:
                text = f"revisions of round {header.number} were at {revision} and begin at {base}"
                self.require(revision <= base, text)

    def _check_writes(
        self, server: Server, input: inputs.WriteKeys, transition: Transition
    ) -> None:
        place, call = (server.life, input.job_id), self._sent[input.request_id]
        if transition.refusal is not None:
            self._check_refusal(server, input, transition.refusal)
            return
        current = self._running.get(place)
        text = f"a write of round {input.claim.round} counts in round {current}"
        self.require(input.claim.round == current, text)
        store, request_id = self._stores[place], input.request_id
        before = self._applied.get(request_id)
        known = store.outcomes.get(request_id, ())
        if known and not transition.records:
            return  # answered as before
        # A forgotten request that has changed nothing may be taken for the first attempt.
        is_bounded = self.world.keys.limits.requests_bytes < USUAL.requests_bytes
        is_right = is_bounded and not any(outcome.steps for outcome in known)
        self.require(is_right or not known, f"{request_id} is taken twice")
        self.require(before is None, f"{request_id} counts at {before} and at {place}")
        outcome = store.take(call.request, _round_of(call, current), self.world.keys.limits)
        self.require(not outcome.refusal, f"took {request_id}: {outcome.refusal}")
        if outcome.steps:
            self._applied[request_id] = place
            self._note_revision(place, store)
        store.outcomes[request_id] = (*known, outcome)
        self._check_record(transition, outcome)

    def _check_record(self, transition: Transition, outcome: Outcome) -> None:
        written = [one for one in transition.records if isinstance(one, KeysWritten)]
        count = sum(len(one.changes) for one in written)
        text = f"journalled {count} changes and not {len(outcome.steps)}"
        self.require(count == len(outcome.steps), text)
        self.world.coverage.counts["event", "keys written"] += 1

    def _check_refusal(self, server: Server, input: inputs.WriteKeys, refusal: Refusal) -> None:
        place, call = (server.life, input.job_id), self._sent[input.request_id]
        kind, store = refusal.kind, self._stores.get(place)
        if kind in ITSELF:
            assert store is not None
            round, limits = _round_of(call, self._running[place]), self.world.keys.limits
            outcome = store.copied().take(call.request, round, limits)
            self.require(outcome.refusal == kind.value, f"refused {call.request}: {refusal}")
        elif kind is RefusalKind.KEYS_FORGOTTEN:
            self.require(input.is_repeated, f"{input} was not sent before")
            is_known = call.known_life == server.life
            is_bounded = self.world.keys.limits.requests_bytes < USUAL.requests_bytes
            self.require(is_bounded or not is_known, f"{input} cannot be forgotten")
        else:
            text = f"refused a worker of round {input.claim.round}: {refusal}"
            self.require(self._running.get(place) != input.claim.round or place[0] > 1, text)

    def _compare(self, server: Server, job_id: JobId) -> None:
        """Check that the coordinator has the keys that the second store has."""
        store, space = self._stores.get((server.life, job_id)), server.state.keys.get(job_id)
        wanted = {} if store is None else store.entries
        held = {} if space is None else space.entries
        found = {
            Scoped(place.round, place.key): (one.value, one.created, one.modified, one.version)
            for place, one in held.items()
        }
        if found != wanted:  # the text takes long, here and below
            self.require(False, f"the keys of {job_id}\n  are {found}\n  not {wanted}")
        if space is not None and store is not None:
            text = f"{job_id} is at revision {space.revision} and not {store.revision}"
            self.require(space.revision == store.revision, text)
            self.require(space.run == store.run, f"the keys of {job_id} are of run {space.run}")

    # --- reads, as they are answered ---

    def answering(self, server: Server, call: Call, answer: Any) -> None:
        """The coordinator answers a call."""
        if call.method is Method.WRITE:
            return
        job_id = JobId(call.request.job_id)
        current = self._running.get((server.life, job_id))
        number = call.process.order.number
        self.require(number == current, f"a worker of round {number} reads in round {current}")
        store, round = self._stores[server.life, job_id], _round_of(call, current)
        read = _get if call.method is Method.GET else _list
        wanted = read(store, round, call.request)
        wanted.header.CopyFrom(answer.header)
        if answer != wanted:
            self.require(False, f"read\n{answer} and not\n{wanted}")
        text = f"read revision {answer.header.revision} and not {store.revision}"
        self.require(answer.header.revision == store.revision, text)

    def waits_for_keys(self, server: Server, one: OpenGet) -> None:
        """A read waits after a turn."""
        request = one.call.request
        store = self._stores.get((server.life, JobId(request.job_id)))
        current = self._running.get((server.life, JobId(request.job_id)))
        self.require(current == one.get.claim.round, "a worker of a round that is over waits")
        assert store is not None
        round = _round_of(one.call, current)
        missing = [key for key in request.keys if Scoped(round, key) not in store.entries]
        self.require(bool(missing), f"a worker waits for {list(request.keys)}, which exist")

    def waits_for_changes(self, server: Server, one: OpenWatch) -> None:
        """A watch waits after a turn."""
        request = one.call.request
        store = self._stores.get((server.life, JobId(request.job_id)))
        current = self._running.get((server.life, JobId(request.job_id)))
        self.require(current == one.watch.claim.round, "a watch of a round that is over waits")
        assert store is not None
        round = _round_of(one.call, current)
        left = store.changes(round, request.prefix, one.sent, store.revision)
        self.require(not left, f"a watch at {one.sent} waits, and there are {left}")

    # --- workers ---

    def floors(self, job_id: JobId) -> dict[int, int]:
        """Return the highest revision that any worker of a job knows, by life."""
        return {life: told for (life, job), told in self._told.items() if job == job_id}

    def called(self, call: Call) -> None:
        """A worker calls."""
        if call.method is Method.WRITE:
            self._sent[call.request.request_id] = call

    def answered(self, call: Call, answer: Any) -> None:
        """A worker has got an answer."""
        place = (call.life, JobId(call.request.job_id))
        if call.method is Method.WRITE:
            self._check_answer(place, call, answer)
        else:
            floor = call.floors.get(call.life, 0)
            text = f"a read goes back from {floor} to {answer.header.revision}"
            self.require(answer.header.revision >= floor, text)
        self._tell(place, answer.header)

    def _check_answer(self, place: _Place, call: Call, answer: Any) -> None:
        store = self._stores.get(place)
        if store is None:
            return  # its run is over meanwhile
        outcomes = store.outcomes[call.request.request_id]
        wanted = [answer_of(call.request, outcome) for outcome in outcomes]
        is_durable = self.world.disk.is_durable or self.world.fleet is not None
        for one in wanted:
            one.header.epoch, one.header.durable = answer.header.epoch, is_durable
        if answer not in wanted:
            self.require(False, f"{call.request} is answered with {answer} not {wanted}")

    def _tell(self, place: _Place, header: keys_pb2.KeyValueHeader) -> None:
        if place in self._stores:
            self._told[place] = max(self._told.get(place, 0), header.revision)

    def watched(self, watcher: Watcher, call: Call, answer: keys_pb2.WatchKeysResponse) -> None:
        """A watcher has got an answer."""
        place = (call.life, JobId(call.request.job_id))
        revision, header = watcher.revision, answer.header
        if not call.is_begun:
            self.require(not answer.events, "the first answer has changes")
            if revision < 0:
                floor = call.floors.get(call.life, 0)
                self.require(header.revision >= floor, f"a watch begins at {header.revision}")
            else:
                text = f"a watch of life {watcher.life} continues in {call.life}"
                self.require(watcher.life == call.life, text)
                text = f"a watch at {revision} continues at {header.revision}"
                self.require(header.revision == revision, text)
            return
        self.require(header.revision >= revision, f"a watch goes back to {header.revision}")
        store = self._stores.get(place)
        if store is None or store.run != call.process.order.header.run:
            return
        round = _round_of(call, call.process.order.number)
        steps = store.changes(round, call.request.prefix, revision, header.revision)
        wanted = [event_of(step) for step in steps]
        if list(answer.events) != wanted:
            self.require(False, f"a watch at {revision} got {answer}, not {wanted}")
        self._tell(place, header)
        self.world.coverage.counts["event", "change watched"] += len(wanted)


def _round_of(call: Call, current: int | None) -> int:
    """Return the round of the keys that a call is about; 0: they are the run's."""
    assert current is not None
    return 0 if call.request.scope == scope_pb2.SCOPE_RUN else current


def _get(store: Store, round: int, request: Any) -> keys_pb2.GetKeysResponse:
    answer = keys_pb2.GetKeysResponse()
    for key in request.keys:
        held = store.entries.get(Scoped(round, key))
        if held is not None:
            answer.kvs.append(held.message(key))
    return answer


def _list(store: Store, round: int, request: Any) -> keys_pb2.ListKeysResponse:
    keys = store.listed(round, request.prefix)
    left = [key for key in keys if key > request.page_token]
    page = left[: request.page_size or len(left)]
    answer = keys_pb2.ListKeysResponse(key_count=len(keys))
    for key in page:
        held = store.entries[Scoped(round, key)]
        answer.kvs.append(held.message(key, keys_only=request.keys_only))
    if len(page) < len(left):
        answer.next_page_token = page[-1]
    return answer
