"""Barriers and keys in words, and how a command proves that it acts for a worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from rallypoint.agent.preload.command import FDS_ENV
from rallypoint.cli.operator.failures import CommandFailed
from rallypoint.cli.operator.sharing import words
from rallypoint.cli.operator.sharing.workers import WorkerProof, find_proof
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import scope_pb2

BARRIER = barrier_pb2.Barrier(
    scope=scope_pb2.SCOPE_ROUND,
    round=3,
    name="saved",
    generation=2,
    expected_count=4,
    arrived_count=3,
    arrived=barrier_pb2.Participants(ranks=[0, 1, 3]),
    missing=barrier_pb2.Participants(ranks=[2]),
    age=Duration(seconds=90),
    since_last_arrival=Duration(seconds=20),
    time_left=Duration(seconds=510),
)


def test_a_barrier_is_a_row() -> None:
    """Who is missing is named, or counted when it does not matter who comes."""
    counted = barrier_pb2.Barrier(
        scope=scope_pb2.SCOPE_RUN, name="any", generation=1, expected_count=3, arrived_count=1
    )

    assert words.describe_barrier(BARRIER) == (
        *("saved", "round 3", 2, "3/4", "1m30s", "8m30s", "rank 2"),
    )
    assert words.describe_barrier(counted)[-1] == "2 more, no matter which"
    assert words.describe_scope(counted.scope, 0) == "run"


def test_a_barrier_is_shown_whole() -> None:
    """A fact on each line; what is unknown has none."""
    assert list(words.describe_barrier_whole(BARRIER)) == [
        "barrier     saved",
        "scope       round 3",
        "generation  2",
        "arrived     3 of 4",
        "            ranks 0-1,3",
        "missing     rank 2",
        "waiting     1m30s since the first arrival",
        "            20s since the latest arrival",
        "fails       in 8m30s, unless all have arrived by then",
    ]


def test_participants_are_named_by_kind() -> None:
    """Ranks as ranges, then nodes, then names."""
    every = barrier_pb2.Participants(ranks=[0, 1, 2, 5], nodes=["a", "b"], names=["x"])

    assert words.describe_participants(every) == "ranks 0-2,5; nodes a, b; x"
    assert words.describe_participants(barrier_pb2.Participants()) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"1\x1b[31m2", "12"),
        (b"\xff\xfe", "(2 bytes that are not text)"),
        (b"x" * 300, "x" * 200 + "… (300 bytes)"),
        (b"", ""),
    ],
)
def test_values_are_safe_for_a_terminal(value: bytes, text: str) -> None:
    """They come from workers, and may hold anything."""
    assert words.describe_value(value) == text


def test_changes_of_keys_are_lines() -> None:
    """With the revision, after which a watch can continue."""
    kv = keys_pb2.KeyValue(key="k", value=b"v", mod_revision=7)

    assert words.describe_event(keys_pb2.KeyEvent(kv=kv)) == "7  set      k  v"
    assert words.describe_event(keys_pb2.KeyEvent(kv=kv, was_deleted=True)) == "7  deleted  k"


def environ(folder: Path, content: bytes) -> Path:
    (folder / "12").mkdir()
    (folder / "12" / "environ").write_bytes(content)
    return folder


def test_a_worker_is_taken_from_this_process_or_another(tmp_path: Path) -> None:
    """With the epoch, as far as it is known; the token is never shown."""
    proc = environ(tmp_path, b"A=1\0RALLYPOINT_WORKER_TOKEN=x=y\0RALLYPOINT_EPOCH=4\0")
    proof = find_proof(12, {}, proc)

    assert (proof.token, proof.epoch) == ("x=y", 4)
    assert find_proof(0, {"RALLYPOINT_WORKER_TOKEN": "t"}) == WorkerProof("t", 0)
    assert repr(proof) == "WorkerProof(token=***, epoch=4)"


def test_forked_worker_hides_its_token(tmp_path: Path) -> None:
    """The kernel shows the environment of its forkserver, which belongs to no round."""
    proc = environ(tmp_path, f"A=1\0{FDS_ENV}=63,62\0".encode())
    with pytest.raises(CommandFailed, match="forked with --preload") as caught:
        find_proof(12, {}, proc)

    assert caught.value.code == 77


def test_what_is_no_worker_says_so(tmp_path: Path) -> None:
    """A process without a token, one that is gone, and a shell of a person."""
    proc = environ(tmp_path, b"A=1\0")
    failures = []
    for pid, environment in ((12, {"RALLYPOINT_WORKER_TOKEN": "t"}), (13, {}), (0, {})):
        with pytest.raises(CommandFailed) as caught:
            find_proof(pid, environment, proc)
        failures.append((caught.value.code, str(caught.value)))

    advice = "name one that runs here, --worker PID, or set RALLYPOINT_WORKER_TOKEN"
    assert failures == [
        (77, f"process 12 is not a worker: {advice}"),
        (3, "there is no process 13 on this host"),
        (77, f"keys are for the workers of a job alone: {advice}"),
    ]
