"""Visits every state of a small world within bounds once, breadth first.

States are distinguished by 64-bit fingerprints of the world and of what the rules remember (hash
compaction: Wolper and Leroy, "Reliable Hashing without Collision Detection", CAV 1993): with a
million states the chance that any two share one is about 3 in 100 million. Breadth first, the path
to a broken rule is a shortest one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rallypoint.server.core.messages.errors import BrokenInvariant
from sim.rules.rules import Violation
from sim.small.choices import Kind, Move, moves_of
from sim.small.ghosts import Arena, Ghosts
from sim.small.moves import Play, begin, plans_of
from sim.small.small import Bounds, Mishap, Small, key_of

PRELUDE_MAX = 200
"""Moves until the first round runs, at most."""


@dataclass(slots=True)
class Found:
    """The result of an exploration."""

    states: int = 1
    """Number of different states."""
    transitions: int = 0
    """Moves made, also those that led to a state known already."""
    depth: int = 0
    """Moves on the longest path whose end was reached."""
    final: int = 0
    """States in which every agent has exited."""
    is_whole: bool = False
    """Nothing within the depth was left out."""
    is_exhausted: bool = False
    """No state lies beyond that depth either."""
    rule: str = ""
    """The rule that was broken; empty when none was."""
    failure: str = ""
    trace: list[str] = field(default_factory=list)
    """The moves that led there, and what the coordinator decided in each."""
    elapsed_s: float = 0.0


class Search:
    """One exploration."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.arena = Arena(plans_of(bounds))
        self.found = Found()
        self._prelude: list[Move] = []
        self._paths: list[tuple[int, Move | None]] = []
        """By state: the one before it, and the move between them."""

    def run(self) -> Found:
        """Explore until a rule breaks, the bounds are reached, or there is nothing left."""
        began_s = time.perf_counter()
        try:
            self._explore()
        finally:
            self.found.elapsed_s = time.perf_counter() - began_s
        return self.found

    def _explore(self) -> None:
        found, bounds = self.found, self.bounds
        small, ghosts = self._beginning()
        seen = {hash((key_of(small), ghosts.key()))}
        self._paths.append((-1, None))
        level = [(0, small, ghosts)]
        while level and found.depth < bounds.depth:
            following: list[tuple[int, Small, Ghosts]] = []
            for number, small, ghosts in level:
                moves = moves_of(small, bounds)
                if bounds.exits and is_stuck(small, moves):
                    self._fail("NobodyWaitsForEver", "agents are left, and nothing is due", number)
                    return
                found.final += not any(site.agent for site in small.sites)
                for move in moves:
                    forked = ghosts.fork()
                    try:
                        after = self._make(small, move, forked)
                    except BrokenInvariant as broken:
                        self._fail("invariant", str(broken), number, move)
                        return
                    except Violation as violation:
                        self._fail(violation.rule, str(violation), number, move)
                        return
                    found.transitions += 1
                    key = hash((key_of(after), forked.key()))
                    if key in seen:
                        continue
                    seen.add(key)
                    following.append((len(self._paths), after, forked))
                    self._paths.append((number, move))
                    if len(seen) >= bounds.states_max:
                        found.states = len(seen)
                        return
            level = following
            found.depth += bool(level)
            found.states = len(seen)
        found.is_whole = True
        found.is_exhausted = not level

    def _make(self, small: Small, move: Move, ghosts: Ghosts) -> Small:
        play = Play(small, self.arena, ghosts)
        play.make(move)
        return play.end()

    def _beginning(self) -> tuple[Small, Ghosts]:
        """Return where exploration begins: the first state, or the first round running."""
        ghosts = Ghosts(self.arena)
        small = begin(self.bounds, self.arena, ghosts)
        while self.bounds.is_running and not is_running(small):
            move = moves_of(small, self.bounds)[0]
            assert move.what is not Kind.DONE and len(self._prelude) < PRELUDE_MAX
            small = self._make(small, move, ghosts)
            self._prelude.append(move)
        return small, ghosts

    def _fail(self, rule: str, text: str, number: int, last: Move | None = None) -> None:
        """Note the broken rule, and replay the path to it from the start."""
        found = self.found
        found.rule, found.failure = rule, text
        found.states = len(self._paths)
        path: list[Move] = [] if last is None else [last]
        while (step := self._paths[number])[1] is not None:
            path.append(step[1])
            number = step[0]
        ghosts = Ghosts(self.arena)
        small = begin(self.bounds, self.arena, ghosts)
        for move in (*self._prelude, *reversed(path)):
            found.trace.append(f"{small.now_ms} ms {_describe(small, move)}")
            play = Play(small, self.arena, ghosts)
            try:
                play.make(move)
                small = play.end()
            except (Violation, BrokenInvariant) as broken:
                found.trace.append(f"    breaks {broken}")
            found.trace += (f"    {note}" for note in play.notes)


def is_running(small: Small) -> bool:
    """Return whether nothing is on its way and every worker of a round runs."""
    is_still = not any(stream.up or stream.down for stream in small.streams)
    is_answered = not any(site.answers for site in small.sites)
    return is_still and is_answered and all(site.workers for site in small.sites)


def is_stuck(small: Small, moves: list[Move]) -> bool:
    """Return whether an agent lives although nothing but a mishap can happen any more."""
    if not any(site.agent for site in small.sites):
        return False
    return all(isinstance(move.what, Mishap) for move in moves)


def _describe(small: Small, move: Move) -> str:
    """Describe a move, with the message that it is about."""
    where = "" if move.site < 0 else f" n{move.site}"
    what = f"{'MISHAP ' if isinstance(move.what, Mishap) else ''}{move.what.value}{where}"
    if move.what is Kind.UP:
        return f"{what}: {small.streams[move.place].up[0]}"
    if move.what is Kind.DOWN:
        return f"{what}: {small.streams[move.place].down[0]}"
    if move.what is Kind.ANSWER:
        return f"{what}: {small.sites[move.site].answers[move.place]}"
    return what
