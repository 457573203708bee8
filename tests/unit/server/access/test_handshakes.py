"""Connections that end without a call: how many a line tells, and when."""

from __future__ import annotations

import pytest

from rallypoint.server.access.handshakes import LINE_S, QUIET_S, Handshakes

X, Y = "ipv4:10.0.0.1:4711", "ipv4:10.0.0.2:4712"


class Scene:
    """A clock, and the lines."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lines: list[int] = []
        self.handshakes = Handshakes(lambda: self.now_s)

    def note_no_calls(self, count: int) -> None:
        self.lines.append(count)

    def connect(self, times: int = 1) -> None:
        """Let handshakes begin."""
        for _ in range(times):
            self.handshakes.note_begun()

    def look(self, minutes: float = 2) -> None:
        for _ in range(round(minutes * LINE_S)):
            self.now_s += 1
            self.handshakes.look(self)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_connections_without_a_call_are_counted(scene: Scene) -> None:
    """Those that call are not; each counts once."""
    scene.connect(3)
    scene.handshakes.note_call(X)
    scene.handshakes.note_call(X)
    scene.look(1)
    assert [] == scene.lines
    scene.look(5)

    assert [2] == scene.lines


def test_call_may_come_late(scene: Scene) -> None:
    """A handshake takes seconds when many connect at once."""
    scene.connect(2)
    scene.look(1)
    scene.handshakes.note_call(X)
    scene.handshakes.note_call(Y)
    scene.look()

    assert [] == scene.lines


def test_there_is_one_line_a_minute(scene: Scene) -> None:
    """A client that tries without end causes few lines, and each of its connections counts."""
    for _ in range(300):
        scene.connect(4)
        scene.look(1 / LINE_S)
    scene.look()

    assert 1200 == sum(scene.lines)
    assert len(scene.lines) <= 1 + 360 / LINE_S


def test_probes_of_this_process_have_no_line(scene: Scene) -> None:
    """Whether they are noted before or after the handshake begins."""
    for _ in range(50):
        scene.handshakes.note_explained()
        scene.connect()
        scene.look(0.25)
        scene.connect()
        scene.handshakes.note_explained()
        scene.look(0.25)

    assert [] == scene.lines


def test_quiet_connections_are_forgotten(scene: Scene) -> None:
    """One that calls again later hides no more than one that failed at the same time."""
    scene.connect(2)
    scene.handshakes.note_call(X)
    scene.handshakes.note_call(Y)
    scene.look(2 * QUIET_S / LINE_S + 1)
    assert set() == scene.handshakes._called | scene.handshakes._called_before
    scene.handshakes.note_call(X)
    scene.look()
    scene.connect()
    scene.look()

    assert [1] == scene.lines


def test_end_writes_what_is_left(scene: Scene) -> None:
    """Once."""
    scene.connect()
    scene.look(0.1)
    scene.handshakes.close(scene)
    scene.handshakes.close(scene)

    assert [1] == scene.lines
