"""Workers change keys, and keys are dropped with what they belong to.

All writes of a request are made in one step, or none. Like barriers, `drop_keys` looks at a job's
facts after every step that touched it. It does not matter which input ended a round or a run.
"""

from __future__ import annotations

import re

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import WriteAnswered
from rallypoint.server.core.messages.records import KeysDropped, KeysWritten
from rallypoint.server.core.messages.refusals import Limit, Refusal, RefusalKind, limit_reached
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.keyspace import (
    ANSWER_BYTES_MAX,
    BYTES_MAX,
    KEYS_MAX,
    NUMBER_MAX,
    TOTAL_WEIGHT_MAX,
    VALUE_BYTES_MAX,
    Answer,
    Change,
    Entry,
    Keyspace,
    Place,
    Write,
    Written,
    new_keyspace,
    size_of,
    size_of_answer,
)
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.rounds.claims import check_claim, is_round_over
from rallypoint.server.core.state.draft import Draft

_NUMBER = re.compile(rb"-?[0-9]{1,19}")


def receive_writes(draft: Draft, request: inputs.WriteKeys) -> Refusal | None:
    """Make the changes of a request, once; answer another attempt as the first."""
    job = check_claim(draft, request.claim)
    if isinstance(job, Refusal):
        return job
    space = draft.state.keys.get(request.job_id) or new_keyspace(job.run, job.since_epoch)
    known = space.requests.get(request.request_id)
    if known is not None:
        if known.digest != request.digest:
            facts = (("request_id", request.request_id),)
            return Refusal(RefusalKind.REQUEST_ID_REUSED, facts)
        draft.effects.append(WriteAnswered(request.job_id, request.answer_id, known))
        return None
    if request.is_repeated and _may_be_forgotten(draft, job, space, request):
        return Refusal(RefusalKind.KEYS_FORGOTTEN, (("key", request.writes[0].key),))
    writing = _Writing(space, request.round)
    outcome = writing.write(request.writes, request.digest)
    if isinstance(outcome, Refusal):
        return outcome
    changes, answer = outcome
    if writing.grown > 0 and draft.state.together.weight >= TOTAL_WEIGHT_MAX:
        return limit_reached(Limit.ALL_WEIGHT, TOTAL_WEIGHT_MAX)
    if changes or request.request_id:
        # A request that has changed nothing is remembered too. Its first attempt may be late: it
        # must not take effect after another one was answered.
        written = KeysWritten(
            request.job_id,
            job.run,
            job.since_epoch,
            request.claim.round,
            changes,
            request.request_id,
            answer,
        )
        draft.change_keys(written)
    draft.effects.append(WriteAnswered(request.job_id, request.answer_id, answer, changes))
    return None


def _may_be_forgotten(draft: Draft, job: Job, space: Keyspace, request: inputs.WriteKeys) -> bool:
    """Return whether the first attempt of a request may have counted without being remembered.

    It came after what its worker knew before it. If nothing since then is forgotten, it cannot have
    counted. A header that this coordinator cannot have sent proves nothing.
    """
    is_ours = job.since_epoch <= request.known_epoch <= draft.epoch
    is_possible = request.known_revision <= space.revision
    return not (is_ours and is_possible) or request.known_revision < space.forgotten


def count_bytes(space: Keyspace | None, request: inputs.WriteKeys) -> int:
    """Return how many bytes of keys and values a request adds to the journal, if nothing forbids.

    An append adds the whole value that there is then. `space` has the keys of the job, if any.
    """
    entries = {} if space is None else space.entries
    lengths, total = dict[str, int](), 0
    for one in request.writes:
        length = len(one.value or b"")
        if one.suffix is not None:
            entry = entries.get(Place(request.round, one.key))
            held = 0 if entry is None else len(entry.value)
            length = lengths.get(one.key, held) + len(one.suffix)
        lengths[one.key] = length
        total += len(one.key) + length
    return total


class _Writing:
    """The writes of one request over a keyspace that they do not change yet."""

    def __init__(self, space: Keyspace, round: int) -> None:
        self._space = space
        self._round = round
        self._entries: dict[Place, Entry | None] = {}
        """What the writes so far have changed."""
        self.grown = 0
        """Bytes by which all writes make the keyspace larger."""
        self._changes: list[Change] = []

    def write(
        self, writes: tuple[Write, ...], digest: bytes
    ) -> tuple[tuple[Change, ...], Answer] | Refusal:
        """Return the changes and the answer, or why all writes are refused."""
        results: list[Written] = []
        for one in writes:
            written = self._write(one)
            if isinstance(written, Refusal):
                return written
            results.append(written)
        full = self._find_limit()
        if full is not None:
            return full
        answer = Answer(self._revision, tuple(results), digest)
        if size_of_answer(answer) > ANSWER_BYTES_MAX:
            return limit_reached(Limit.VALUES, ANSWER_BYTES_MAX)
        return tuple(self._changes), answer

    @property
    def _revision(self) -> int:
        return self._space.revision + len(self._changes)

    def _write(self, one: Write) -> Written | Refusal:
        place = Place(self._round, one.key)
        entry = self._entry(place)
        if one.expected is not None and not one.expected.holds(entry):
            return Written(entry=entry)
        if one.amount is not None:
            return self._add(place, entry, one.amount)
        if one.suffix is not None:
            return self._append(place, entry, one.suffix)
        if one.value is None:
            if entry is None:
                return Written()
            self._change(place, None)
            return Written(self._revision)
        changed = self._put(place, entry, one.value)
        return Written(self._revision, entry=None if one.expected is None else changed)

    def _add(self, place: Place, entry: Entry | None, amount: int) -> Written | Refusal:
        held = b"0" if entry is None else entry.value
        if not _NUMBER.fullmatch(held):
            return Refusal(RefusalKind.KEY_NOT_A_NUMBER, (("key", place.key),))
        sum = int(held) + amount
        if abs(sum) > NUMBER_MAX:
            return Refusal(RefusalKind.SUM_TOO_LARGE, (("key", place.key),))
        self._put(place, entry, b"%d" % sum)
        return Written(self._revision, sum)

    def _append(self, place: Place, entry: Entry | None, suffix: bytes) -> Written | Refusal:
        value = suffix if entry is None else entry.value + suffix
        if len(value) > VALUE_BYTES_MAX:
            return limit_reached(Limit.VALUE_BYTES, VALUE_BYTES_MAX)
        self._put(place, entry, value)
        return Written(self._revision)

    def _put(self, place: Place, entry: Entry | None, value: bytes) -> Entry:
        revision = self._revision + 1
        created, version = (revision, 0) if entry is None else (entry.created, entry.version)
        changed = Entry(value, created, revision, version + 1)
        self._change(place, changed)
        return changed

    def _change(self, place: Place, entry: Entry | None) -> None:
        self._changes.append(Change(self._revision + 1, place, entry))
        self._entries[place] = entry

    def _entry(self, place: Place) -> Entry | None:
        if place in self._entries:
            return self._entries[place]
        return self._space.entries.get(place)

    def _find_limit(self) -> Refusal | None:
        """Return the limit that the writes exceed. Writes that make room are never refused."""
        keys = grown = 0
        for place, entry in self._entries.items():
            before = self._space.entries.get(place)
            keys += (entry is not None) - (before is not None)
            grown += 0 if entry is None else size_of(place, entry)
            grown -= 0 if before is None else size_of(place, before)
        self.grown = grown
        if keys > 0 and len(self._space.entries) + keys > KEYS_MAX:
            return limit_reached(Limit.KEYS, KEYS_MAX)
        if grown > 0 and self._space.bytes + grown > BYTES_MAX:
            return limit_reached(Limit.KEY_BYTES, BYTES_MAX)
        return None


def drop_keys(draft: Draft, job_id: JobId) -> None:
    """Drop the keys of a round or run that is over."""
    space = draft.state.keys.get(job_id)
    if space is None:
        return
    job = draft.job(job_id)
    if job is None or job.phase is Phase.CLOSED or job.run != space.run:
        draft.change_keys(KeysDropped(job_id, space.run))
    elif is_round_over(job, space.round):
        draft.change_keys(KeysDropped(job_id, space.run, space.round))
