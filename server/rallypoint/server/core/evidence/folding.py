"""Folds the evidence of all ranks into what it says together: findings, groups and the culprit.

A finding is something that sets ranks apart. Findings come in this order, the strongest first:

==  ================  ========================================================  ====================
    Kind              Ranks                                                     Accuses
==  ================  ========================================================  ====================
 1  STOPPED           Others wait for them; a signal or a debugger holds them.  all
 2  NO_ANSWER         Others wait for them; their process has ended.            all
 3  UNINTERRUPTIBLE   Others wait for them; they wait in the kernel.            all
 4  NOT_ENTERED       Others wait for them, and they wait for none.             those in no wait
                      Not those that wait for a peer in a send or receive.
 5  OTHER_COLLECTIVE  They wait in other groups than those that wait for them.  the intruder, or all
 6  OTHER_COLLECTIVE  Another operation as the same number.                     the minority
 7  OTHER_SIZES       Other sizes or types in the same operation.               the minority
 8  STOPPED           The others that a signal or a debugger holds.             all
 9  UNINTERRUPTIBLE   The others that wait in the kernel.                       all
10  NOT_ENTERED       The few that live after a collective timed out.           all
11  OTHER_STACK       Their stack differs from that of most.                    see `_find_odd`
12  NO_ANSWER         They have not answered, or have ended.                    see `_find_silent`
==  ================  ========================================================  ====================

The first row that accuses ranks decides. If it accuses exactly one, that rank is the culprit. If no
row does, the text says what all ranks have in common, and what that means. In a tie there is no
minority, and all ranks are accused.

"Others wait for them" follows chains over several groups; see `chains`. Ranks that are still in a
collective that others have completed are found, but not accused: they have come, so the network or
a device holds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from rallypoint.base.tracebacks import describe_place
from rallypoint.server.core.evidence.chains import Chains, follow
from rallypoint.server.core.evidence.stacks import (
    Stacks,
    bound_ranges,
    group_stacks,
    main_stack,
)
from rallypoint.server.core.evidence.waits import Wait, find_waits, is_progress_known
from rallypoint.server.core.evidence.words import (
    NETWORK,
    count_ranks,
    describe_absent,
    describe_awaited,
    describe_behind,
    describe_cycle,
    describe_intruder,
    describe_mismatch,
    describe_outrun,
    describe_where,
    name_ranks,
)
from rallypoint.server.core.model.evidence import (
    FINDINGS_MAX,
    Evidence,
    Finding,
    FindingKind,
    ProcessState,
    RankEvidence,
)

TEXT_CHARS_MAX = 1_024
"""Characters of a line for a person; names and lists in it are cut before, so few reach it."""

FEW = 4
"""Ranks that live after a timeout are few if the world has this many times as many. If more live,
some of them are usually victims that have not ended yet."""


class _Case(NamedTuple):
    """All that the findings are made of."""

    evidence: Mapping[int, RankEvidence]
    """Of each rank that has answered, ascending."""
    missing: tuple[int, ...]
    """The other ranks of the world, without those of `timed_out`."""
    timed_out: frozenset[int]
    """Ranks that have failed because a collective timed out; they may have answered before."""
    world_size: int
    stacks: Stacks
    waits: tuple[Wait, ...]
    chains: Chains
    awaited: Mapping[int, Wait]
    """Each root, and the wait that most ranks wait for it in."""
    waiting: frozenset[int]
    """Ranks that wait in a collective."""


class _Apart(NamedTuple):
    """A finding with all its ranks."""

    kind: FindingKind
    ranks: Sequence[int]
    """Ascending."""
    wait: Wait | None
    text: str


class _Row(NamedTuple):
    """What one row of the table finds."""

    found: Sequence[_Apart]
    accused: frozenset[int]


def fold(
    evidence: Mapping[int, RankEvidence | None],
    *,
    world_size: int,
    round: int,
    reason: str,
    took_ms: int,
    timed_out: Collection[int] = (),
) -> Evidence:
    """Return what the evidence of all ranks of a round says together.

    Args:
        evidence: by global rank; None, or no entry, for a rank that has not answered.
        world_size: workers in the round; ranks outside it are ignored.
        round: number of the round.
        reason: why the evidence was taken.
        took_ms: how long that took.
        timed_out: ranks that have failed because a collective timed out.
    """
    case = _prepare(evidence, world_size, frozenset(timed_out))
    rows = _list_rows(case)
    found = [apart for row in rows for apart in row.found]
    deciding = next((row for row in rows if row.accused), None)
    culprit = None
    if deciding is not None and len(deciding.accused) == 1:
        culprit = next(iter(deciding.accused))
    return Evidence(
        round=round,
        reason=reason,
        took_ms=took_ms,
        world_size=world_size,
        answered=len(case.evidence),
        culprit=culprit,
        text=_summarise(case, deciding)[:TEXT_CHARS_MAX],
        findings=tuple(_to_finding(apart) for apart in found[:FINDINGS_MAX]),
        groups=case.stacks.groups,
    )


def _prepare(
    evidence: Mapping[int, RankEvidence | None], world_size: int, timed_out: frozenset[int]
) -> _Case:
    answered: dict[int, RankEvidence] = {}
    missing: list[int] = []
    for rank in range(world_size):
        one = evidence.get(rank)
        if one is not None:
            answered[rank] = one
        elif rank not in timed_out:
            missing.append(rank)
    waits = find_waits(answered, world_size)
    chains = follow(waits)
    awaited: dict[int, Wait] = {}
    ends = [(waits[at], ranks) for at, ranks in (*chains.roots, *chains.unseen_roots)]
    for wait, ranks in sorted(ends, key=lambda end: -len(end[0].ranks)):
        for rank in ranks:
            awaited.setdefault(rank, wait)
    waiting = frozenset(rank for wait in waits for rank in wait.ranks)
    stacks = group_stacks(answered)
    return _Case(
        evidence=answered,
        missing=tuple(missing),
        timed_out=timed_out,
        world_size=world_size,
        stacks=stacks,
        waits=waits,
        chains=chains,
        awaited=awaited,
        waiting=waiting,
    )


def _list_rows(case: _Case) -> list[_Row]:
    """Return the rows of the table in the module's docstring."""
    stopped, traced = ProcessState.STOPPED, ProcessState.TRACED
    uninterruptible, ended = ProcessState.UNINTERRUPTIBLE, ProcessState.ENDED
    finders: tuple[Callable[[_Case], _Row], ...] = (
        partial(_find_in_states, states=(stopped, traced), is_awaited=True),
        partial(_find_in_states, states=(ended,), is_awaited=True),
        partial(_find_in_states, states=(uninterruptible,), is_awaited=True),
        _find_not_entered,
        _find_cycle,
        partial(_find_mismatches, kind=FindingKind.OTHER_COLLECTIVE),
        partial(_find_mismatches, kind=FindingKind.OTHER_SIZES),
        partial(_find_in_states, states=(stopped, traced), is_awaited=False),
        partial(_find_in_states, states=(uninterruptible,), is_awaited=False),
        _find_absent,
    )
    rows = [find(case) for find in finders]
    named = {rank for row in rows for apart in row.found for rank in apart.ranks}
    return [*rows, _find_odd(case, named), _find_silent(case)]


def _make_row(found: Sequence[_Apart]) -> _Row:
    """Return a row that accuses all ranks of its findings."""
    return _Row(found, frozenset(rank for apart in found for rank in apart.ranks))


def _find_in_states(case: _Case, states: Sequence[ProcessState], is_awaited: bool) -> _Row:
    found: list[_Apart] = []
    for state in states:
        ranks = [
            rank
            for rank, one in case.evidence.items()
            if one.state is state and (rank in case.awaited) == is_awaited
        ]
        if ranks:
            wait = case.awaited.get(ranks[0])
            kind, text = _describe_state(case, state, ranks)
            text += describe_awaited(wait, ranks) + describe_where(case.evidence, ranks)
            found.append(_Apart(kind, ranks, wait, text))
    return _make_row(found)


def _describe_state(
    case: _Case, state: ProcessState, ranks: Sequence[int]
) -> tuple[FindingKind, str]:
    """Return what it means that some ranks are in a state, and say it."""
    named, is_one = name_ranks(ranks), len(ranks) == 1
    if state is ProcessState.STOPPED:
        return FindingKind.STOPPED, f"a signal has stopped {named}"
    if state is ProcessState.TRACED:
        return FindingKind.STOPPED, f"a debugger holds {named}"
    if state is ProcessState.ENDED:
        ended = "the process of {} has ended" if is_one else "the processes of {} have ended"
        return FindingKind.NO_ANSWER, ended.format(named)
    places = {case.evidence[rank].waits_in for rank in ranks}
    place = f" ({places.pop()})" if len(places) == 1 and "" not in places else ""
    wait, them = ("waits", "it") if is_one else ("wait", "them")
    text = f"{named} {wait} in the kernel{place}, where no signal reaches {them}"
    return FindingKind.UNINTERRUPTIBLE, text


def _find_not_entered(case: _Case) -> _Row:
    """Find the roots: those that wait in no collective are accused."""
    idle: list[_Apart] = []
    peers: list[_Apart] = []
    outrun: dict[int, Wait] = {}
    alone = _find_alone(case)
    for at, roots in case.chains.roots:
        wait = case.waits[at]
        behind = [rank for rank in roots if rank not in case.waiting]
        for awaits_peer in (False, True):
            ranks = [rank for rank in behind if case.evidence[rank].awaits_peer is awaits_peer]
            if not ranks:
                continue
            text = describe_behind(wait, ranks) + describe_where(case.evidence, ranks)
            if awaits_peer:
                text += "; a send or a receive there has not ended"
            (peers if awaits_peer else idle).append(
                _Apart(FindingKind.NOT_ENTERED, ranks, wait, text)
            )
        outrun.update((rank, wait) for rank in roots if rank in case.waiting and rank not in alone)
    idle.sort(key=lambda apart: -len(apart.wait.ranks) if apart.wait else 0)
    late: list[_Apart] = []
    for wait in case.waits:
        ranks = [rank for rank in wait.ranks if rank in outrun] if wait.is_outrun else []
        if ranks:
            text = describe_outrun(wait, ranks)
            late.append(_Apart(FindingKind.NOT_ENTERED, ranks, outrun[ranks[0]], text))
    return _Row([*idle, *peers, *late], _make_row(idle).accused)


def _find_alone(case: _Case) -> dict[int, Wait]:
    """Return the roots that wait alone, each with the collective that it waits in."""
    alone = {wait.ranks[0]: wait for wait in case.waits if wait.is_alone}
    return {rank: wait for rank, wait in alone.items() if rank in case.awaited}


def _find_cycle(case: _Case) -> _Row:
    """Find ranks that wait in another group than those that wait for them.

    Either they wait for each other, with or without an intruder, or they wait alone in a group
    whose other members are not known.
    """
    found: list[_Apart] = []
    for rank, own in sorted(_find_alone(case).items()):
        text = describe_intruder(own, case.awaited[rank], rank)
        text += describe_where(case.evidence, [rank])
        found.append(_Apart(FindingKind.OTHER_COLLECTIVE, [rank], own, text))
    cycle, intruder = case.chains.cycle, case.chains.intruder
    if not cycle:
        return _make_row(found)
    if intruder is not None:
        own = next(
            wait
            for wait in case.waits
            if intruder in wait.ranks and not (wait.is_outrun or wait.is_alone)
        )
        others = [wait for wait in case.waits if intruder in wait.behind]
        most = max(others, key=lambda wait: len(wait.ranks))
        text = describe_intruder(own, most, intruder) + describe_where(case.evidence, [intruder])
        found.append(_Apart(FindingKind.OTHER_COLLECTIVE, [intruder], own, text))
        return _make_row(found)
    within = frozenset(cycle)
    waits = [wait for wait in case.waits if not within.isdisjoint(wait.ranks)]
    text = describe_cycle(waits, cycle)
    return _make_row([*found, _Apart(FindingKind.OTHER_COLLECTIVE, cycle, None, text)])


def _find_mismatches(case: _Case, kind: FindingKind) -> _Row:
    found: list[_Apart] = []
    for wait in case.waits:
        mismatch = wait.mismatch
        if mismatch is not None and mismatch.kind is kind:
            text = describe_mismatch(wait) + describe_where(case.evidence, mismatch.ranks)
            found.append(_Apart(kind, mismatch.ranks, wait, text))
    return _make_row(found)


def _is_idle_known(one: RankEvidence) -> bool:
    """Return whether a living rank certainly waits in no collective."""
    is_held = one.state in (ProcessState.STOPPED, ProcessState.TRACED)
    return is_held or is_progress_known(one)


def _find_absent(case: _Case) -> _Row:
    """Find the few ranks that live after a collective timed out for all others.

    What the others waited in is gone with them. So nothing is found while a living rank may wait
    for a peer itself, or has not answered.
    """
    living = [
        rank
        for rank, one in case.evidence.items()
        if rank not in case.timed_out and one.state is not ProcessState.ENDED
    ]
    is_waiting = bool(case.waiting) or any(case.evidence[rank].awaits_peer for rank in living)
    if not case.timed_out or case.missing or is_waiting or not living:
        return _make_row([])
    if not all(_is_idle_known(case.evidence[rank]) for rank in living):
        return _make_row([])
    if len(living) > 1 and FEW * len(living) > case.world_size:
        return _make_row([])
    text = describe_absent(living, len(case.timed_out)) + describe_where(case.evidence, living)
    return _make_row([_Apart(FindingKind.NOT_ENTERED, living, None, text)])


def _find_odd(case: _Case, named: Iterable[int]) -> _Row:
    """Find the odd ranks that nothing else has set apart.

    An odd rank is accused unless collectives clear it: ranks wait in some, its own progress is
    known, and it shows that they do not wait for this rank.
    """
    known = frozenset(named)
    odd = [rank for rank in case.stacks.odd if rank not in known]
    accused = [
        rank
        for rank in odd
        if main_stack(case.evidence[rank])
        and not case.timed_out  # a victim that has not ended yet has another stack, too
        and (not case.waits or not is_progress_known(case.evidence[rank]))
    ]
    cleared = sorted(set(odd).difference(accused))
    found = [
        _Apart(FindingKind.OTHER_STACK, ranks, None, _describe_odd(case, ranks))
        for ranks in (accused, cleared)
        if ranks
    ]
    return _Row(found, frozenset(accused))


def _describe_odd(case: _Case, ranks: Sequence[int]) -> str:
    most = case.stacks.groups[0]
    stacks = {main_stack(case.evidence[rank]) for rank in ranks}
    are = "is" if len(ranks) == 1 else "are"
    place = describe_place(stacks.pop()) if len(stacks) == 1 else "other places"
    rest = f"{count_ranks(most.count)} in {describe_place(most.frames) or 'none that is known'}"
    return f"{name_ranks(ranks)} {are} in {place or 'a place that is not known'}, {rest}"


def _find_silent(case: _Case) -> _Row:
    """Find ranks that have not answered or whose process has ended.

    One that has not answered is accused if it is the only one, all others wait in collectives, and
    they may wait for it. Of a rank whose agent cannot be asked, the evidence says so instead.
    """
    found: list[_Apart] = []
    accused: frozenset[int] = frozenset()
    if case.missing:
        wait = case.awaited.get(case.missing[0])
        have = "has" if len(case.missing) == 1 else "have"
        text = f"{name_ranks(case.missing)} {have} not answered"
        text += describe_awaited(wait, case.missing)
        found.append(_Apart(FindingKind.NO_ANSWER, case.missing, wait, text))
        if len(case.missing) == 1 and wait is not None and len(case.waiting) == len(case.evidence):
            accused = frozenset(case.missing)
    found += _find_in_states(case, (ProcessState.ENDED,), is_awaited=False).found
    return _Row(found, accused)


def _summarise(case: _Case, deciding: _Row | None) -> str:
    """Return the whole evidence as one line."""
    if not case.evidence:
        return "no rank has answered"
    if deciding is None:
        text = _describe_common(case)
    else:
        first = next(apart for apart in deciding.found if deciding.accused.issuperset(apart.ranks))
        text = first.text
        more = len(deciding.accused.difference(first.ranks))
        text += f"; {count_ranks(more)} more {'is' if more == 1 else 'are'} apart" if more else ""
        if first.kind is FindingKind.NO_ANSWER and first.ranks == case.missing:
            return text
    if case.missing:
        have = "has" if len(case.missing) == 1 else "have"
        text += f"; {count_ranks(len(case.missing))} {have} not answered"
    return text


def _describe_common(case: _Case) -> str:
    """Return what the ranks have in common when none is accused, and what that means."""
    everyone = "all " + count_ranks(len(case.evidence)) if len(case.evidence) > 1 else "the rank"
    entered = [wait for wait in case.waits if wait.is_entered_by_all]
    if entered:
        wait = max(entered, key=lambda one: len(one.ranks))
        if wait.is_outrun:
            return describe_outrun(wait, wait.ranks)
        is_everyone = len(wait.ranks) == len(case.evidence)
        subject = everyone if is_everyone else name_ranks(wait.ranks)
        verb = "waits" if len(wait.ranks) == 1 else "wait"
        same = ", none in another place" if is_everyone and case.stacks.groups_total == 1 else ""
        return f"{subject} {verb} in {wait.describe()}{same}: {NETWORK}"
    if case.waits:
        wait = max(case.waits, key=lambda one: len(one.ranks))
        verb = "waits" if len(wait.ranks) == 1 else "wait"
        return f"{name_ranks(wait.ranks)} {verb} in {wait.describe()}, and no rank is set apart"
    is_known = all(is_progress_known(one) for one in case.evidence.values())
    if case.stacks.groups_total > 1:
        idle = ", and none waits in a collective" if is_known else ", and none is set apart"
        return f"the ranks are in {case.stacks.groups_total} different places{idle}"
    place = describe_place(case.stacks.groups[0].frames)
    if not place and not is_known:
        return f"nothing is known about {everyone}"
    if len(case.evidence) == 1 and place:
        return f"the rank is in {place}"
    same = f"{everyone} {'is' if len(case.evidence) == 1 else 'are'} in the same place"
    same += f", {place}" if place else ""
    return f"{same}; none waits in a collective" if is_known else f"{same}: {NETWORK}"


def _to_finding(apart: _Apart) -> Finding:
    wait = apart.wait
    return Finding(
        kind=apart.kind,
        ranks=bound_ranges(apart.ranks),
        group="" if wait is None else wait.group,
        number=0 if wait is None else wait.number,
        text=apart.text[:TEXT_CHARS_MAX],
    )
