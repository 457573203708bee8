"""Writes the root cause of a failed job to the error file that the scheduler has named.

A scheduler such as TorchX sets TORCHELASTIC_ERROR_FILE for the launcher, as the launcher does for
its workers, and reads the file when the launcher has failed. Every agent of a job writes the same
root cause.

Source: the form of torch 2.13's `ErrorHandler`, so that readers of torchrun's file can read ours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from rallypoint.agent.torchelastic.error_files import read_json
from rallypoint.agent.torchelastic.last_round import LastRound
from rallypoint.base.log import get_logger
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import node_pb2, verdict_pb2

log = get_logger()

ERROR_FILE_ENV = "TORCHELASTIC_ERROR_FILE"


def to_torch_form(
    message: str, traceback: str, time_s: float, error_code: int | None = None
) -> dict[str, object]:
    """Return an error in the form of torch's error file.

    Args:
        message: the error, one line or a few.
        traceback: its stack; if empty, the message takes its place.
        time_s: Unix time.
        error_code: the exit code, or minus the signal; None leaves it out, as workers do.
    """
    extra = {"py_callstack": traceback or message, "timestamp": str(int(time_s))}
    content: dict[str, object] = {"message": message, "extraInfo": extra}
    if error_code is not None:
        content["errorCode"] = error_code
    return {"message": content}


def compose_root_cause(
    finished: agent_pb2.Finished, here: object | None, now_s: float
) -> dict[str, object]:
    """Return the first failure of a run in torch's form, with its location in a field of ours.

    Args:
        finished: the end of a run that did not succeed.
        here: content of the first failed worker's error file, if it is on this node; else None.
        now_s: Unix time, for a failure without a time.
    """
    verdict = finished.verdict
    place: dict[str, object] = {"node": verdict.node_name, "round": verdict.round}
    if not verdict.HasField("culprit"):
        text = verdict.text or "the job has not succeeded"
        return {**to_torch_form(text, "", now_s, 1), "rallypoint": place}
    worker = verdict.culprit
    place |= {
        "host": worker.host_name,
        "rank": worker.rank,
        "local_rank": worker.local_rank,
        "pid": worker.pid,
    }
    ours = _of_worker(verdict, now_s)
    if isinstance(here, Mapping) and isinstance(here.get("message"), (str, Mapping)):
        ours = _completed(here, ours)
    return {**ours, "rallypoint": place}


def _completed(written: Mapping[str, object], ours: dict[str, object]) -> dict[str, object]:
    """Return a worker's record with its exit code and with missing fields added.

    torch's reader requires a time, as a whole number.
    """
    message, added = written["message"], ours["message"]
    assert isinstance(added, dict)
    if not isinstance(message, Mapping):
        return {**written, "timestamp": int(added["extraInfo"]["timestamp"])}
    extra = message.get("extraInfo")
    extra = dict(extra) if isinstance(extra, Mapping) else {}
    extra["timestamp"] = added["extraInfo"]["timestamp"]
    if not isinstance(extra.get("py_callstack"), str):
        extra["py_callstack"] = added["extraInfo"]["py_callstack"]
    return {
        **written,
        "message": {**message, "extraInfo": extra, "errorCode": added["errorCode"]},
    }


def _of_worker(verdict: verdict_pb2.Verdict, now_s: float) -> dict[str, object]:
    exit = verdict.culprit.exit
    text = exit.error.message if exit.HasField("error") else verdict.text
    stack = exit.error.traceback if exit.HasField("error") else exit.stderr_tail
    time_s = exit.failed_at.seconds if exit.HasField("failed_at") else now_s
    return to_torch_form(text, stack, time_s, exit_number(exit))


def exit_number(exit: node_pb2.WorkerExit) -> int:
    """Return the exit code of a worker, or minus the signal that ended it, as torch reports it.

    1 while it runs with its error, and when it was stopped before it had exited with that.
    """
    if is_stopped_after_error(exit):
        return 1
    if not exit.HasField("signal"):
        return exit.exit_code if exit.HasField("exit_code") else 1
    return -exit.signal


def is_stopped_after_error(exit: node_pb2.WorkerExit) -> bool:
    """Return whether a worker was slow to exit after its error, and was stopped meanwhile."""
    if exit.exit_code or exit.oom_killed or not exit.HasField("outlived_signal_for"):
        return False
    outlived_ns = exit.outlived_signal_for.ToNanoseconds()
    return exit.error.age_at_exit.ToNanoseconds() > outlived_ns


def find_exit(finished: agent_pb2.Finished, last: LastRound) -> node_pb2.WorkerExit:
    """Return how the first failed worker ended; an empty message if it was not on this node."""
    culprit = finished.verdict.culprit
    if (culprit.node_name, finished.verdict.round) == (last.node_name, last.number):
        for worker in last.failed:
            if (culprit.local_rank, culprit.pid) == (worker.local_rank, worker.pid):
                return worker.exit
    return node_pb2.WorkerExit()


def report_finished(path: str, finished: agent_pb2.Finished, last: LastRound, now_s: float) -> None:
    """Write the root cause of a run that did not succeed to the file at `path`."""
    exit = find_exit(finished, last)
    # A clean-up that fails too may have overwritten the file: the first error is the root cause.
    message = exit.error.message if exit.HasField("error") else None
    here = read_json(Path(exit.error_file), message) if exit.error_file else None
    try:
        text = json.dumps(compose_root_cause(finished, here, now_s))
    except RecursionError:  # JSON that can be read may be too deep to write
        text = json.dumps(compose_root_cause(finished, None, now_s))
    _write(path, text)


def report_exit(path: str, text: str, exit_code: int, now_s: float) -> None:
    """Write why this agent ends; its run may continue without it."""
    _write(path, json.dumps(to_torch_form(f"node-agent: {text}", "", now_s, exit_code)))


def _write(path: str, text: str) -> None:
    """Write the file; a failure is only logged."""
    try:
        # A pipe without a reader must not block the agent.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags, 0o644), "w") as file:
            file.write(text)
    except OSError as error:
        log.warning("error_file_not_written", path=path, why=str(error))
