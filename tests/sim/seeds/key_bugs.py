"""Planted bugs in the key-value store."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from msgspec.structs import replace

from rallypoint.server.api.keys import messages, reading, waits
from rallypoint.server.core import keys as writes
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model import keyspace
from rallypoint.server.core.model.keyspace import Condition, Entry, Keyspace, Place, Written
from rallypoint.server.core.rounds import claims
from rallypoint.server.core.state.draft import Draft
from sim.seeds.planting import Bug, Patch


def _skip_a_change() -> list[Patch]:
    """Let a watch miss the first of several changes."""
    real = reading._changes_since

    def changes_since(space: Keyspace, first: int) -> Any:
        found = real(space, first)
        return found[1:] if len(found) > 1 else found

    return [(reading, "_changes_since", changes_since)]


def _begin_a_watch_late() -> list[Patch]:
    """Begin a watch with the next change, and not where it wants to begin."""
    real = reading.Cursor.begin

    def begin(cursor: reading.Cursor, state: Any, now_ms: int) -> Any:
        answer = real(cursor, state, now_ms)
        cursor.wait.first = None
        return answer

    return [(reading.Cursor, "begin", begin)]


def _continue_after_a_restart() -> list[Patch]:
    """Let a watch continue at a coordinator that does not know the changes before."""
    real = messages.to_watch

    def to_watch(*args: Any) -> messages.Watch:
        return replace(real(*args), epoch=0)

    return [(messages, "to_watch", to_watch), (keyspace, "REVISIONS_PER_EPOCH", 0)]


def _add_twice() -> list[Patch]:
    """Forget which requests have counted."""
    return [(Keyspace, "_remember_request", lambda space, request_id, answer: None)]


def _add_again_after_a_restart() -> list[Patch]:
    """Take another attempt for the first."""
    real = messages.to_writes

    def to_writes(*args: Any) -> Any:
        return replace(real(*args), is_repeated=False)

    return [(messages, "to_writes", to_writes)]


def _bring_back_a_scope() -> list[Patch]:
    """Let the keys of a round come back in the next."""
    real = Keyspace.drop_round

    def drop_round(space: Keyspace, round: int) -> None:
        kept = [(place, one) for place, one in space.entries.items() if place.round == round]
        real(space, round)
        for place, entry in kept:
            space._put(Place(round + 1, place.key), entry)
        space.round = 0

    return [(Keyspace, "drop_round", drop_round)]


def _write_in_old_rounds() -> list[Patch]:
    """Take the write of a worker whose round is over."""
    return [(writes, "check_claim", _careless)]


def _read_in_old_rounds() -> list[Patch]:
    """Let a worker read whose round is over."""
    return [(reading, "check_claim", _careless)]


def _careless(draft: Draft, claim: Any) -> Any:
    found = claims.check_claim(draft, claim)
    job = draft.job(claim.job_id)
    is_old = getattr(found, "kind", None) is RefusalKind.OLD_ROUND
    return job if is_old and job is not None and job.round is not None else found


def _swap_blindly() -> list[Patch]:
    """Set a key whose value another worker has changed meanwhile."""

    def holds(condition: Condition, entry: Entry | None) -> bool:
        return real(condition, entry) or (entry is not None and bool(condition.modified))

    real = Condition.holds
    return [(Condition, "holds", holds)]


def _take_half_a_batch() -> list[Patch]:
    """Make the other changes when one of them is refused."""
    real = writes._Writing._write

    def write(writing: Any, one: Any) -> Written:
        written = real(writing, one)
        return Written() if isinstance(written, Refusal) else written

    return [(writes._Writing, "_write", write)]


def _forget_the_limits() -> list[Patch]:
    """Take whatever comes."""
    return [(writes._Writing, "_find_limit", lambda writing: None)]


def _read_what_was() -> list[Patch]:
    """Answer a read with the keys as they were at the read before."""
    real, before = reading.open_keys, dict[Any, Keyspace]()

    def open_keys(state: Any, claim: Any, now_ms: int) -> Any:
        job, space = real(state, claim, now_ms)
        key = (id(state), job.job_id, job.run, claim.round)
        old = before.get(key, space)
        before[key] = space.copy()
        return job, old

    return [(reading, "open_keys", open_keys)]


def _repeat_a_key() -> list[Patch]:
    """Begin a page with the last key of the page before."""
    return [(reading, "bisect_right", bisect_left)]


def _wake_no_watch() -> list[Patch]:
    """Forget to wake those who watch."""
    return [(waits, "_prefixes_of", lambda changes, waiting: {})]


def _wake_no_reader() -> list[Patch]:
    """Forget to wake those who wait for a key."""
    return [(waits, "_shorten", lambda wait, waiting, existing: None)]


def _keep_watching() -> list[Patch]:
    """Forget to end the watches of a round that is over."""
    return [(waits.KeyWaits, "note_job", lambda waiting, job_id, state: None)]


def _read_too_long() -> list[Patch]:
    """Let a read wait until the end of the call, and a little longer."""

    def limit(wanted_ms: int, left_s: float | None) -> int:
        return min(wanted_ms, int((left_s or 600) * 1000) + 500)

    return [(messages, "limit_wait_ms", limit)]


def _forget_writes_in_the_journal() -> list[Patch]:
    """Change keys without a record."""

    def change_keys(draft: Draft, change: Any) -> None:
        draft._keys.append(change)

    return [(Draft, "change_keys", change_keys)]


HOLD = frozenset({"KeysHold"})
FIRST = frozenset({"AnswersComeFirst"})

KEY_BUGS: dict[str, Bug] = {
    "skip a change": (_skip_a_change, HOLD),
    "begin a watch late": (_begin_a_watch_late, HOLD),
    "continue a watch after a restart": (_continue_after_a_restart, HOLD),
    "add twice": (_add_twice, HOLD),
    "add again after a restart": (_add_again_after_a_restart, HOLD),
    "bring back a scope": (_bring_back_a_scope, HOLD),
    "write in old rounds": (_write_in_old_rounds, HOLD | {"invariant"}),
    "read in old rounds": (_read_in_old_rounds, HOLD),
    "swap blindly": (_swap_blindly, HOLD),
    "take half a batch": (_take_half_a_batch, HOLD),
    "forget the limits": (_forget_the_limits, HOLD),
    "read what was": (_read_what_was, HOLD),
    "repeat a key": (_repeat_a_key, HOLD),
    "wake no watch": (_wake_no_watch, HOLD),
    "wake no reader": (_wake_no_reader, HOLD),
    "keep watching": (_keep_watching, HOLD),
    "read too long": (_read_too_long, FIRST),
    "forget writes in the journal": (_forget_writes_in_the_journal, HOLD | {"ReplayIsMemory"}),
}
