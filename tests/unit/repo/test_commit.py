"""What is drawn from the commit: the same for it, and something else for the next one."""

from __future__ import annotations

import pytest

from support.tries.commit import choose_long, choose_marks, choose_seeds, draw
from support.tries.drawing import SHARES, draw_mark


def test_seeds_of_a_commit() -> None:
    """A third is fixed; the rest belongs to the commit and the subject."""
    one, again = (choose_seeds("shells", 30, after=5, commit="a") for _ in range(2))

    assert one == again
    assert one[:10] == tuple(range(5, 15)) and len(set(one)) == 30
    assert not set(one[10:]) & set(choose_seeds("shells", 30, commit="b"))
    assert not set(one[10:]) & set(choose_seeds("relays", 30, commit="a"))


@pytest.mark.parametrize("commit", ["a", "b", "c"])
def test_every_item_runs_somewhere(monkeypatch: pytest.MonkeyPatch, commit: str) -> None:
    """Each part of a table runs in one tier, and the parts move with the commit."""
    monkeypatch.setenv("COMMIT", commit)
    names = ["+".join(m.name for m in choose_marks("programs", at, 6, 2)) for at in range(60)]

    assert {name: names.count(name) for name in names} == {"": 10, "long": 20, "nightly": 30}
    assert names.index("") == -draw("part of programs", 6, commit) % 6


def test_one_part_of_a_table_is_long() -> None:
    """The others are nightly; none runs with `make test`."""
    names = [choose_long("examples", at, 3).name for at in range(30)]

    assert {name: names.count(name) for name in names} == {"long": 10, "nightly": 20}


def test_every_test_is_drawn_sometimes() -> None:
    """Each tier has its share of the tests, other ones for the next commit."""
    tests = [f"tests/e2e/test_file.py::test_{number}" for number in range(400)]
    marks = [[draw_mark(one, f"{commit}") for one in tests] for commit in range(40)]

    for mark in set(SHARES):
        share = len(tests) * SHARES.count(mark) / len(SHARES)
        assert all(0.6 < drawn.count(mark) / share < 1.4 for drawn in marks), mark
    assert all(set(SHARES) == set(of_one) for of_one in zip(*marks, strict=True))
