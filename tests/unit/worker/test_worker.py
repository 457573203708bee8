"""The functions for training scripts: outside of a worker, and as rank 0 or 1 of a round."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import grpc
import pytest

from rallypoint import worker
from rallypoint.agent.core.desired import Notice as AgentNotice
from rallypoint.agent.round.notices import write_notices
from rallypoint.client import errors
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.wire.errors import pack_status
from rallypoint.worker import session as sessions
from rallypoint.worker.reporting import INTERVAL_S, PAUSES_S, ProgressReports
from support.clients.scripted import BROKEN, Caller
from support.clients.scripts import LIMIT_S, run, run_worker

HEADER = keys_pb2.KeyValueHeader(epoch=7, revision=4)


def test_import_loads_no_grpc() -> None:
    """Nor anything else that takes long; a script may import it and never use it."""
    program = (
        "import sys; from rallypoint import worker; worker.Scope.RUN; worker.errors.BarrierBroken\n"
        "heavy = ('grpc', 'google', 'msgspec', 'asyncio', 'torch', 'numpy', 'json')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = run(program)

    assert ("[]\n", "") == (done.stdout, done.stderr)


@pytest.mark.parametrize(
    "call",
    [
        "barrier()",
        "all_gather(b'')",
        "kv.get('k')",
        "notice()",
        "should_checkpoint()",
        "progress(1)",
        "mark('imported')",
    ],
)
def test_outside_of_a_worker_it_says_so(call: str) -> None:
    """In one line, which names the remedy."""
    done = run(f"from rallypoint import worker; worker.{call}")
    last = done.stderr.splitlines()[-1]

    assert last.startswith("rallypoint.worker.environment.NotAWorker: RALLYPOINT_")
    assert last.endswith("is not set: start this script with `rallypoint agent`")


def test_notices_are_those_of_the_agent(notice_file: Path) -> None:
    """Soonest first; the drain of this node is the one that matters most."""
    assert (None, ()) == (worker.notice(), worker.notices())
    far_ms = round((time.monotonic() + 100) * 1000)
    growth = AgentNotice("growth", "", "", far_ms)
    other = AgentNotice("drain", "b", "kernel", far_ms + 1_000)
    here = AgentNotice("drain", "", "SIGTERM", far_ms + 2_000, is_here=True)
    write_notices(notice_file, [here, growth, other], "a")

    found = worker.notices()
    assert ["growth", "drain", "drain"] == [one.kind for one in found]
    assert [False, False, True] == [one.is_leaving for one in found]
    assert found[2] == worker.notice()
    assert ("a", True, "SIGTERM") == (found[2].node, found[2].is_here, found[2].reason)
    assert 60 < found[2].time_left_s() < 103
    write_notices(notice_file, [growth, other], "a")
    assert found[0] == worker.notice()


def test_time_left_is_never_negative(notice_file: Path) -> None:
    """The round may be stopped any moment then."""
    notice = {"kind": "drain", "node": "a", "here": True, "reason": "", "deadline": 0.0}
    notice_file.write_text(json.dumps([notice]))
    found = worker.notice()

    assert found is not None
    assert 0.0 == found.time_left_s()


def released(*payloads: bytes) -> barrier_pb2.ArriveResponse:
    count = len(payloads)
    given = payloads if any(payloads) else ()
    return barrier_pb2.ArriveResponse(epoch=7, payloads=given, participant_count=count)


async def test_barrier_and_gather_are_those_of_all_ranks(at: Caller) -> None:
    """Without an expectation, which means every rank. Empty payloads come back, too."""
    at.script.answers["Arrive"] = [released(b"", b""), released(b"", b""), released(b"a", b"")]
    worker.barrier(timeout_s=5)
    assert [b"", b""] == worker.all_gather(b"")
    assert [b"a", b""] == worker.all_gather(b"a", name="sizes")
    sent = at.script.requests["Arrive"]

    assert ["barrier", "all_gather", "sizes"] == [request.name for request in sent]
    assert [0, 0, 0] == [request.participant.rank for request in sent]
    assert not any(request.HasField("expected") for request in sent)
    assert all(metadata["rallypoint-worker-token"] == "secret" for metadata in at.script.metadata)


async def test_further_attempt_of_the_first_call_knows_the_epoch(at: Caller) -> None:
    """That of the environment."""
    at.script.answers["Arrive"] = [BROKEN, released(b"", b"")]
    worker.barrier()

    assert [0, 7] == [request.first_epoch for request in at.script.requests["Arrive"]]


async def test_checkpoints_outlive_a_coordinator_without_memory(at: Caller) -> None:
    """The ranks meet again: it has forgotten who had arrived."""
    reason = details_pb2.REFUSAL_REASON_BARRIER_FORGOTTEN
    forgotten = pack_status(grpc.StatusCode.DATA_LOSS, "gone", None, reason=reason)
    other = b"\0" * 9  # the other rank, at its first call, without a notice
    at.script.answers["Arrive"] = [BROKEN, forgotten, released(other, other)]
    assert worker.should_checkpoint() is False
    sent = at.script.requests["Arrive"]

    assert [0, 7, 0] == [request.first_epoch for request in sent]
    assert len({request.request_id for request in sent}) == 2


async def test_keys(at: Caller) -> None:
    """Each function returns what a script wants to know."""
    kv = keys_pb2.KeyValue(key="k", value=b"v")
    answers = at.script.answers
    answers["GetKeys"] = [keys_pb2.GetKeysResponse(kvs=[kv]), keys_pb2.GetKeysResponse()]
    answers["WriteKeys"] = [
        keys_pb2.WriteKeysResponse(results=[result])
        for result in (
            keys_pb2.KeyWritten(was_changed=True, revision=4),
            keys_pb2.KeyWritten(was_changed=True, revision=5, sum=12),
            keys_pb2.KeyWritten(was_changed=True, revision=6),
            keys_pb2.KeyWritten(),
            keys_pb2.KeyWritten(was_changed=True, revision=7),
        )
    ]
    answers["ListKeys"] = [keys_pb2.ListKeysResponse(kvs=[kv])]

    assert (b"v", None) == (worker.kv.get("k", wait_s=1), worker.kv.get("k"))
    assert (4, 12) == (worker.kv.put("k", b"v"), worker.kv.add("k", 2))
    assert worker.kv.compare_and_set("k", b"v", expected=None)
    assert not worker.kv.compare_and_set("k", b"v", expected=b"w", scope=worker.Scope.RUN)
    assert worker.kv.delete("k")
    assert [("k", b"v")] == list(worker.kv.list())
    writes = [one.writes[0] for one in at.script.requests["WriteKeys"]]
    kinds = ["put", "add", "compare_and_set", "compare_and_set", "delete"]
    assert kinds == [one.WhichOneof("write") for one in writes]
    first, second = (one.compare_and_set.expected for one in writes[2:4])
    assert ("mod_revision", b"w") == (first.WhichOneof("condition"), second.value)
    assert [True, False] == [one.HasField("timeout") for one in at.script.requests["GetKeys"]]


async def test_threads_share_one_session(at: Caller) -> None:
    """The first calls may come at once."""
    added = keys_pb2.WriteKeysResponse(results=[keys_pb2.KeyWritten(sum=1)])
    at.script.answers["WriteKeys"] = [added] * 8
    threads = [threading.Thread(target=worker.kv.add, args=("k",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)

    assert 8 == len(at.script.requests["WriteKeys"])
    assert 1 == len(sessions._sessions)


FORKS = """
import os
from rallypoint import worker
from rallypoint.worker import session

session.current()
pid = os.fork()
if pid == 0:
    assert worker.notice() is None
    try:
        worker.kv.get("k")
    except worker.errors.ClientClosed as error:
        os._exit(0 if "spawn" in str(error) else 2)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_forked_child_is_refused(notice_file: Path) -> None:
    """It has none of gRPC's threads and would wait for ever; it may look at notices."""
    done = run_worker(FORKS)

    assert "0\n" == done.stdout, done.stderr


class Report:
    """A report that a test lets end."""

    def __init__(self) -> None:
        self.status: grpc.StatusCode | None = None
        self._looks: list[Callable[[Any], None]] = []

    def add_done_callback(self, look: Callable[[Any], None]) -> None:
        self._looks.append(look)

    def done(self) -> bool:
        return self.status is not None

    def code(self) -> grpc.StatusCode | None:
        return self.status

    def result(self, timeout: float) -> Any:
        if self.status is None:
            raise grpc.FutureTimeoutError
        if self.status is not grpc.StatusCode.OK:
            raise Failed
        return worker_pb2.ReportProgressResponse()

    def end(self, status: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        self.status = status
        for look in self._looks:
            look(self)


class Failed(grpc.RpcError):
    """A call that has failed."""


class Reports:
    """A client that notes the reports, and a clock that runs when the test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        """The step of each report, and how many ms ago it was reached."""
        self.reports: list[Report] = []
        self.now_s = 100.0
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def begin_report(
        self, job_id: str, step: int, timeout_s: float, *, step_ago_ms: int, is_last: bool
    ) -> Any:
        self.sent.append((step, step_ago_ms))
        self.reports.append(Report())
        return self.reports[-1]

    def make(self) -> ProgressReports:
        client: Any = self
        return ProgressReports(client, "j", lambda: self.now_s, self._wait)

    def _wait(self, pause_s: float, act: Callable[[], None]) -> None:
        self._timers.append((self.now_s + pause_s, act))

    def let_pass(self, seconds: float) -> None:
        """Let time pass, and call what waits for it."""
        ends_s = self.now_s + seconds
        while due := sorted((one for one in self._timers if one[0] <= ends_s), key=itemgetter(0)):
            self._timers.remove(due[0])
            self.now_s = due[0][0]
            due[0][1]()
        self.now_s = ends_s

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.sent]


def test_reports_are_seldom_and_wait_for_nothing() -> None:
    """One a second at most, none beside another, none without news; the last one at the end."""
    client = Reports()
    reports = client.make()
    for step in range(1, 50):
        reports.note(step)
    assert [1] == client.steps
    client.reports[-1].end()
    client.let_pass(1.0)
    reports.note(40)
    reports.note(50)
    assert [1, 49] == client.steps
    client.let_pass(5.0)
    assert [1, 49] == client.steps  # the report before has no answer yet
    client.reports[-1].end()
    client.let_pass(1.0)
    client.reports[-1].end()
    reports.note(51)
    reports.flush()
    client.reports[-1].end()
    reports.flush()

    assert [1, 49, 50, 51] == client.steps


def test_last_step_before_a_hang_is_reported() -> None:
    """Also if it came within a second of another, and no other one follows."""
    client = Reports()
    reports = client.make()
    reports.note(48)
    client.reports[-1].end()
    client.let_pass(0.25)
    reports.note(49)
    client.let_pass(60.0)

    assert [(48, 0), (49, 750)] == client.sent


def test_last_step_outlives_an_absence_of_the_coordinator() -> None:
    """A report that no one has heard is repeated, after pauses that grow, and with an end."""
    client = Reports()
    client.make().note(7)
    for _ in PAUSES_S:
        client.reports[-1].end(grpc.StatusCode.UNAVAILABLE)
        client.let_pass(1.5 * PAUSES_S[-1])
    client.reports[-1].end(grpc.StatusCode.UNAVAILABLE)
    client.let_pass(60.0)

    assert [7] * (len(PAUSES_S) + 1) == client.steps


def test_further_steps_do_not_wait_for_repetitions() -> None:
    """Reports continue each second while the coordinator is away, so it is soon told."""
    client = Reports()
    reports = client.make()
    for step in range(1, 31):
        reports.note(step)
        if not client.reports[-1].done():
            client.reports[-1].end(grpc.StatusCode.UNAVAILABLE)
        client.let_pass(INTERVAL_S)

    assert len(client.steps) >= 15


def test_refused_step_is_not_repeated() -> None:
    """Its round is over."""
    client = Reports()
    client.make().note(7)
    client.reports[-1].end(grpc.StatusCode.ABORTED)
    client.let_pass(60.0)

    assert [7] == client.steps


async def test_only_rank_0_reports(at: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks take the same steps, and one report is enough for the job."""
    at.script.answers["ReportProgress"] = [worker_pb2.ReportProgressResponse()]
    monkeypatch.setenv("RANK", "1")
    worker.progress(3)
    assert {} == sessions._sessions
    monkeypatch.setenv("RANK", "0")
    worker.progress(4)
    sessions.current().progress.flush()

    assert [4] == [request.step for request in at.script.requests["ReportProgress"]]


async def test_last_step_is_reported_at_the_end(at: Caller) -> None:
    """Also when the script ends with an error in the same moment."""
    at.script.answers["ReportProgress"] = [worker_pb2.ReportProgressResponse()] * 2
    program = (
        "from rallypoint import worker\n"
        "worker.progress(1); worker.progress(2); worker.progress(3); raise SystemExit(3)"
    )
    done = await asyncio.to_thread(run_worker, program)

    assert ("", 3) == (done.stderr, done.returncode)
    assert [1, 3] == [request.step for request in at.script.requests["ReportProgress"]]


def test_errors_are_importable_from_one_place() -> None:
    """A script catches them as `worker.errors.…`."""
    assert issubclass(worker.NotAWorker, errors.RallypointError)
    assert worker.errors is errors
