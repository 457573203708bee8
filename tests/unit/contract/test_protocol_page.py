"""docs/protocol.md names everything that an author of an agent meets, with the figures of the code.

tests/e2e/agents/test_protocol_page.py plays its example.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from rallypoint.agent.core.desired import Assignment, Notice, RoundHeader, RunOrder
from rallypoint.agent.core.leaving.away import ALONE_MS
from rallypoint.agent.machine.ports import PORTS_KEPT
from rallypoint.agent.round.environ import WorkerFiles, worker_environment
from rallypoint.agent.round.exits import TAIL_WAIT_S
from rallypoint.agent.round.notices import write_notices
from rallypoint.agent.session import texts
from rallypoint.agent.session.dismissal import Dismissed
from rallypoint.agent.session.endings import FINAL, BrokenStream, read_ending
from rallypoint.agent.session.link import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    FAREWELL_S_MAX,
)
from rallypoint.server.contract.errors import REASONS as REASON_OF
from rallypoint.server.contract.limits import HELLO_S_MAX
from rallypoint.server.contract.refusals import TABLE
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.rounds.rounds import EXIT_DUE_MS
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import node_pb2
from rallypoint.wire.connecting import CONNECT_S_MAX
from rallypoint.wire.errors import DETAILS_KEY, REASON_PREFIX, pack_status

REPOSITORY = Path(__file__).resolve().parents[3]
TEXT = (REPOSITORY / "docs" / "protocol.md").read_text(encoding="utf-8")
ALL_ROWS = [
    line
    for page in ("protocol.md", "languages.md")
    for line in (REPOSITORY / "docs" / page).read_text(encoding="utf-8").splitlines()
    if line.startswith("| ")
]
OF_OTHER_CALLS = {
    *("UNKNOWN_JOB", "UNKNOWN_NODE", "TOKEN_MISSING", "OTHER_JOB", "TOKEN_REFUSED", "NOT_READY"),
    *("RUN_OVER", "OLD_ROUND", "BARRIER_MISMATCH", "BARRIER_FORGOTTEN", "GENERATION_OVER"),
    *("PARTICIPANT_ARRIVED", "NOT_EXPECTED", "KEY_NOT_A_NUMBER", "SUM_TOO_LARGE"),
    *("KEYS_FORGOTTEN", "KEYS_COMPACTED", "JOB_ENDED", "JOB_OPEN", "SPEC_IMPOSSIBLE"),
    "NODES_MISSING",
    *("REQUEST_ID_REUSED", "JOB_EXISTS", "LATER_RUN", "SPEC_CHANGED", "REVISION_COMPACTED"),
    "EVENTS_COMPACTED",
}
"""Reasons of refusals that no session ends with."""
REASONS = (
    *sorted({kind.name for kind in RefusalKind} - OF_OTHER_CALLS),
    *("SESSION_LOST", "NO_HELLO", "INVALID_FIELD", "COORDINATOR_ENDED", "PROTOCOL_MISMATCH"),
    *("NOT_OWNER", "NO_OWNER", "STORE_UNAVAILABLE"),
    *("ACCESS_TOKEN_MISSING", "ACCESS_TOKEN_INVALID", "ACCESS_TOKEN_EXPIRED"),
    *("ROLE_NOT_ALLOWED", "JOB_NOT_ALLOWED"),
)


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    _, _, rest = TEXT.partition(f"# {heading}\n")
    found = re.search(r"^\|[-|]+\|\n((?:\|.*\n)+)", rest, re.MULTILINE)
    assert found, heading
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1].split("\n")
    ]


def arms(message: type, oneof: str) -> list[str]:
    return [field.name for field in message.DESCRIPTOR.oneofs_by_name[oneof].fields]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("Desired states", arms(agent_pb2.DesiredState, "state")),
        ("What the agent sends", arms(agent_pb2.SessionRequest, "message")),
        ("What the coordinator sends", arms(agent_pb2.SessionResponse, "message")),
    ],
)
def test_every_message_has_a_row(heading: str, names: list[str]) -> None:
    """The tables of messages and desired states are complete."""
    told = [row[0].strip("`") for row in rows(heading)]

    assert [name for name in names if name not in told] == []


def test_every_field_of_hello_is_explained() -> None:
    """The table of Hello has all of its fields, but for those that never change meaning."""
    _, _, section = TEXT.partition("Hello repeats everything each time:")
    section, _, _ = section.partition("## When a stream ends")
    names = {field.name for field in agent_pb2.Hello.DESCRIPTOR.fields}

    assert {name for name in names if f"`{name}`" not in section} == {"protocol_version"}


@pytest.mark.parametrize("state", [1, 2, 3, 4, 5, 6, 7, 8])
def test_every_state_of_a_node_has_a_row(state: int) -> None:
    """A node is never UNREADY by its own account: that is what a coordinator makes of it."""
    name = node_pb2.NodeState.Name(node_pb2.NodeState.ValueType(state)).removeprefix("NODE_STATE_")
    told = [row[0] for row in rows("States of a node")]

    assert (name in told) == (name != "UNREADY")


@pytest.mark.parametrize("reason", REASONS)
def test_every_end_of_a_stream_has_a_row(reason: str) -> None:
    """The reasons in ErrorInfo of all refusals that can end a session are in the table."""
    assert any(f"`{reason}`" in row[2] for row in rows("When a stream ends") if len(row) > 2)


@pytest.mark.parametrize("reason", FINAL)
def test_final_refusals_have_the_exit_code(reason: str) -> None:
    """What makes the Python agent give up makes other agents give up, with the same code."""
    row = next(
        row
        for row in rows("When a stream ends")
        if f"`{reason}`" in row[2] and "retry_after" not in row[1]
    )

    assert row[3].startswith(f"give up, {FINAL[reason]}")


def refused(reason: str, detail: Message | None = None, retry_ms: int | None = None) -> Status:
    """Return the status of a refusal."""
    number = details_pb2.RefusalReason.Value(f"{REASON_PREFIX}{reason}")
    code, field = grpc.StatusCode.FAILED_PRECONDITION, "hello.spec"
    return pack_status(code, "refused", detail, reason=number, field=field, retry_ms=retry_ms)


def ending_of(status: Status) -> Exception:
    """Return what a status means for the Python agent."""
    metadata = ((DETAILS_KEY, status.SerializeToString()),)
    return read_ending(grpc.StatusCode.FAILED_PRECONDITION, "refused", metadata)


@pytest.mark.parametrize("reason", FINAL)
def test_reason_decides(reason: str) -> None:
    """The Python agent gives up over a reason: without another detail, wherever it stands."""
    bare = refused(reason)
    full = refused(reason, details_pb2.SpecMismatch())
    reverse = Status(code=full.code, details=reversed(full.details))

    assert [2, 3, 3] == [len(status.details) for status in (bare, full, reverse)]
    for status in (bare, full, reverse):
        ending = ending_of(status)
        assert isinstance(ending, Dismissed)
        assert ending.exit_code == FINAL[reason]
    assert "their order means nothing" in TEXT
    assert "**Decide by `ErrorInfo.reason`.**" in TEXT


@pytest.mark.parametrize("reason", FINAL)
def test_refusal_that_asks_for_a_pause_is_not_final(reason: str) -> None:
    """Whatever its reason."""
    ending = ending_of(refused(reason, retry_ms=1500))

    assert isinstance(ending, BrokenStream)
    assert ending.retry_s == 1.5
    assert "With\na `RetryInfo`, *again* is always right." in TEXT


def test_detail_of_a_final_refusal_decides_nothing() -> None:
    """Beside a reason that is not final."""
    for reason in ("SEQUENCE_GAP", "UNKNOWN_JOB"):
        ending = ending_of(refused(reason, details_pb2.SpecMismatch()))

        assert isinstance(ending, BrokenStream)


def test_every_event_has_a_cell_for_every_state() -> None:
    """Every desired state is among the events, and every state of a node is in the head."""
    _, _, section = TEXT.partition("### What happens, and what the agent does\n")
    head = next(line for line in section.splitlines() if line.startswith("| event |"))
    table = [row for row in rows("What happens, and what the agent does") if row != [""]]
    events = " ".join(row[0] for row in table)
    states = [row[0] for row in rows("States of a node") if row[0] not in ("", "READY")]

    assert {len(row) for row in table} == {head.count("|") - 1}
    assert [arm for arm in arms(agent_pb2.DesiredState, "state") if f"`{arm}`" not in events] == []
    assert [state for state in states if state not in head] == []


def test_notice_file_is_like_the_example(tmp_path: Path) -> None:
    """The line of JSON in the section about notices is what the Python agent writes."""
    found = re.search(r"^`(\[\{.*\}\])`:$", TEXT, re.MULTILINE)
    assert found
    (shown,) = json.loads(found[1])
    until_ms = int(shown["deadline"] * 1000)
    notice = Notice(shown["kind"], "", shown["reason"], until_ms, is_here=True)
    path = tmp_path / "round" / "notices.json"
    write_notices(path, [notice], shown["node"])

    assert path.read_text(encoding="utf-8") == found[1]


def test_every_deadline_of_welcome_has_a_row() -> None:
    """By the name of its field."""
    named = [row[0].partition(" (`")[2].rstrip("`)") for row in rows("Deadlines")]

    assert [
        field.name for field in agent_pb2.Deadlines.DESCRIPTOR.fields if field.name not in named
    ] == []


@pytest.mark.parametrize("capability", agent_pb2.Capability.keys()[1:])
def test_every_capability_has_a_row(capability: str) -> None:
    """Beside what it means for an agent to have it."""
    assert f"`{capability}`" in [row[0] for row in rows("Versions and capabilities")]


def test_every_reason_is_explained() -> None:
    """In the table of the session, of operators' calls, or of workers' calls."""
    text = "\n".join(ALL_ROWS)
    reasons = [name.removeprefix("REFUSAL_REASON_") for name in details_pb2.RefusalReason.keys()]

    assert [name for name in reasons[1:] if f"`{name}`" not in text] == []


@pytest.mark.parametrize("kind", list(RefusalKind), ids=lambda kind: kind.name)
def test_status_of_a_reason_is_that_of_the_code(kind: RefusalKind) -> None:
    """In whichever table the reason stands."""
    found = [line for line in ALL_ROWS if f"`{kind.name}`" in line]

    assert found
    assert [
        line for line in found if TABLE[REASON_OF[kind]].code.name not in line.split(" | ")[0]
    ] == []


def test_sizes_are_those_of_the_code() -> None:
    """What a Hello may have of the texts of workers."""
    _, _, section = TEXT.partition("## Sizes")

    assert f"at most {texts.WHOLE_WORKERS_MAX} workers of a Hello have full texts" in section
    assert f"at most\n  {texts.TEXT_BYTES_MAX // 1024} KiB" in section
    assert f"at most {texts.TEXTS_BYTES_MAX // 1024} KiB" in section


def test_every_stale_kind_is_named() -> None:
    """But for the one of workers' calls."""
    kinds = [name for name in details_pb2.StaleKind.keys() if not name.endswith("UNSPECIFIED")]

    assert [kind for kind in kinds if kind not in TEXT] == ["STALE_KIND_ROUND"]


def test_every_variable_of_workers_is_named() -> None:
    """The variables of the Python agent are in the section about starting workers."""
    header = RoundHeader(1, 1, 2, 1, "10.0.0.1", 29500, 0, 1, 1)
    order = RunOrder(header, Assignment(0, 0, 2, "default", 0, 2), 3, "token")
    environment = worker_environment(
        {},
        order,
        local_rank=0,
        job_id="job",
        files=WorkerFiles("error", "notices", "socket"),
        ours=[(f"RALLYPOINT_{name}", "x") for name in ("COORDINATOR", "JOB_ID", "NODE")],
    )
    _, _, section = TEXT.partition("## Start workers\n")
    section, _, _ = section.partition("## Stop workers")

    assert [name for name in environment if f"`{name}`" not in section] == []


def test_deadlines_are_those_of_the_code() -> None:
    """The table of deadlines and the text have the figures of both sides."""
    timing, spec = Timing(), JobSpec()
    length = {row[0].partition(" (`")[0]: row[1] for row in rows("Deadlines") if len(row) > 1}

    assert length["connect"].startswith(f"{CONNECT_S_MAX:g} s")
    assert length["Hello"] == f"{HELLO_S_MAX:g} s"
    assert length["heartbeat"].startswith(f"`heartbeat_interval`: {timing.heartbeat_ms // 1000} s")
    assert length["lease, of the agent"].startswith(f"`lease`: {timing.lease_ms // 1000} s")
    assert length["reconnecting"].startswith(f"{timing.reconnect_grace_ms / 1000:g} s")
    assert length["Started"] == f"{timing.start_due_ms // 1000} s"
    assert length["Ready"] == f"`shutdown_timeout` and {timing.stop_slack_ms // 1000} s"
    assert length["adoption"].startswith(f"{timing.window_ms / 1000:g} s")
    assert length["Goodbye"].startswith(f"{FAREWELL_S_MAX:g} s")
    assert f"{BACKOFF_S_MIN * 1000:g} ms at first" in TEXT
    assert f"up to {BACKOFF_S_MAX:g} s" in TEXT
    assert f"at the latest {EXIT_DUE_MS // 1000} s later" in TEXT
    assert f"| {ALONE_MS // 1000} s: it knows the outcome" in TEXT
    assert f"{spec.join_timeout_ms // 60_000} minutes, or the join timeout" in TEXT
    assert f"keeps the last {PORTS_KEPT}" in TEXT
    assert f"the Python agent waits {TAIL_WAIT_S:g} s" in TEXT
