"""The recorder of torch, in short: recorded from torch 2.13 with gloo, and as NCCL differs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rallypoint.agent.evidence.recorder import GROUPS_MAX, Mark, parse_mark, parse_recording


def entry(number: int, group: str = "0", **changes: Any) -> dict[str, Any]:
    """Return an entry as torch 2.13 writes it."""
    description = "default_pg" if group == "0" else "pair"
    return {
        "collective_seq_id": number,
        "input_dtypes": ["Float"],
        "input_sizes": [[2, 3]],
        "is_p2p": False,
        "op_id": number,
        "output_dtypes": ["Float"],
        "output_sizes": [[2, 3]],
        "p2p_seq_id": 0,
        "pg_id": int(group),
        "process_group": [group, description],
        "profiling_name": "gloo:all_reduce",
        "record_id": 0,
        "retired": True,
        "state": "scheduled",
        "thread_id": "140588326976384",
        "thread_name": "python",
        "time_created_ns": 1795891463802824390,
        "time_discovered_completed_ns": None,
        "time_discovered_started_ns": 0,
        "timeout_ms": 1800000,
        **changes,
    }


def recording(*entries: dict[str, Any], config: Any = None) -> bytes:
    """Return a recording; without `config` that of rank 0 with gloo."""
    whole = {
        "comm_lib_version": "",
        "entries": entries,
        "nccl_comm_state": {},
        "pg_config": config or {"": {"desc": "", "name": "", "ranks": "[0, 1, 2]"}},
        "pg_status": {"0": {"last_completed_collective": "5", "last_enqueued_collective": "6"}},
        "version": "2.10",
    }
    return json.dumps(whole).encode()


def test_gloo() -> None:
    """What has ended is retired; sends count for nothing; the latest group comes first."""
    sent = entry(2, is_p2p=True, profiling_name="gloo:send", op_id=3)
    waiting = entry(
        3, retired=False, profiling_name="gloo:barrier", input_sizes=[], output_sizes=[]
    )
    first, pair = parse_recording(
        recording(entry(1), entry(1, "1"), sent, entry(2), waiting), world_size=3
    )

    assert (first.name, first.description, first.entered, first.completed) == (
        *("0", "default_pg"),
        *(3, 2),
    )
    assert [(one.first, one.last) for one in first.members] == [(0, 2)]
    assert [(one.number, one.operation, one.sizes, one.dtypes) for one in first.latest] == [
        (3, "gloo:barrier", "", "Float"),
        (2, "gloo:all_reduce", "[[2,3]]", "Float"),
        (1, "gloo:all_reduce", "[[2,3]]", "Float"),
    ]
    assert (pair.name, pair.entered, pair.completed, list(pair.members)) == ("1", 1, 1, [])


def test_group_that_a_new_one_has_replaced() -> None:
    """The ring still has its operations, of the same name, and with higher numbers."""
    old = [entry(number) for number in (1, 2, 3, 4, 5)]
    older = [entry(number) for number in (1, 2)]
    new = [entry(1), entry(1, profiling_name="gloo:coalesced"), entry(2, retired=False)]
    first, pair = parse_recording(
        recording(*older, entry(7, "1"), *old, *new, entry(8, "1")), world_size=3
    )

    assert (pair.name, pair.entered, pair.completed) == ("0", 2, 1)
    assert [one.number for one in pair.latest] == [2, 1]
    assert (first.name, first.entered, [one.number for one in first.latest]) == ("1", 8, [8, 7])


def test_new_group_that_waits_in_its_first_collective() -> None:
    """The destroyed one had completed only its first one."""
    old, new = entry(1, pg_id=0), entry(1, pg_id=2, retired=False)
    (group,) = parse_recording(recording(old, new), world_size=3)

    assert (group.entered, group.completed, len(group.latest)) == (1, 0, 1)


def test_nccl() -> None:
    """Groups have their global ranks, and entries their state."""
    config = {
        "0": {"desc": "default_pg", "name": "0", "ranks": "[0, 1, 2, 3]"},
        "7": {"desc": "pair", "name": "7", "ranks": "[3, 1]"},
    }
    done = entry(4, "7", retired=False, state="completed")
    (group,) = parse_recording(recording(done, config=config), world_size=4)

    assert (group.entered, group.completed) == (4, 4)
    assert [(one.first, one.last) for one in group.members] == [(1, 1), (3, 3)]


def test_operations_of_one_collective_are_one() -> None:
    """The last four collectives are kept."""
    entries = [entry(number) for number in (1, 2, 3, 4, 5, 6, 6, 6)]
    (group,) = parse_recording(recording(*entries), world_size=1)

    assert [one.number for one in group.latest] == [6, 5, 4, 3]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"entries": 7}',
        b'{"entries": [{"process_group": "0"}]}',
        b'{"entries": [{"collective_seq_id": "1"}]}',
        b'{"entries": ' + b"[" * 100_000,
    ],
)
def test_other_forms_are_refused(data: bytes) -> None:
    """One exception says so."""
    with pytest.raises(ValueError, match=r"."):
        parse_recording(data, world_size=1)


@pytest.mark.parametrize("ranks", ["", "[", "[-1, 7]", "{}", "[1.5]", "é"])
def test_members_that_cannot_be_read_are_unknown(ranks: str) -> None:
    """The rest counts."""
    config = {"1": {"name": "1", "desc": "pair", "ranks": ranks}}
    (group,) = parse_recording(recording(entry(1, "1"), config=config), world_size=2)

    assert (group.entered, list(group.members)) == (1, [])


def test_hostile_recording_is_bounded() -> None:
    """Names, sizes and groups, and numbers that no message can hold."""
    many = [entry(1, str(group)) for group in range(300)]
    long = entry(
        1,
        "999",
        process_group=["n" * 9000, "d" * 9000],
        profiling_name="p" * 9000,
        input_sizes=[[1] * 9000],
        input_dtypes=["t" * 9000] * 100,
    )
    negative = entry(-1, "998")
    first, *rest = parse_recording(recording(*many, negative, long), world_size=2)

    assert len(rest) == GROUPS_MAX - 1
    assert first.ByteSize() < 1500
    assert [one.number for one in first.latest] == [1]


def test_mark() -> None:
    """The latest of all times counts, of sends too; torch leaves out the entries when empty."""
    sent = entry(2, is_p2p=True, record_id=8, retired=False, time_created_ns=500)
    done = entry(1, record_id=7, time_created_ns=400, time_discovered_completed_ns=600)
    started = entry(3, record_id=9, retired=False, time_created_ns=1, time_discovered_started_ns=2)

    assert Mark(True, 9, 1, 600) == parse_mark(recording(done, sent, started))
    assert Mark() == parse_mark(b'{"pg_config": {}}')
    with pytest.raises(ValueError):
        parse_mark(b'{"entries": 1}')
