"""Recorded errors, and the report of failures. No torch."""

from __future__ import annotations

import json
import pickle
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from rallypoint.agent.core.held_round import ErrorRecord, LocalExit, LocalWorker
from rallypoint.agent.session.translate import worker_message
from rallypoint.agent.torchelastic.root_cause import exit_number
from rallypoint.elastic.errors import (
    ChildFailedError,
    ErrorHandler,
    ProcessFailure,
    SignalException,
    get_error_handler,
    record,
)

UNRECORDED = "the worker recorded no error: decorate its main function with @record"


@pytest.fixture
def error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def write_error(path: Path, timestamp: int = 1_700_000_000) -> Path:
    extra = {"py_callstack": "Traceback …\nKeyError: 'k'", "timestamp": str(timestamp)}
    path.write_text(json.dumps({"message": {"message": "KeyError: 'k'", "extraInfo": extra}}))
    return path


def test_exception_is_recorded_and_raised(error_file: Path) -> None:
    """The file has torch's form: type and text, traceback, whole seconds."""

    @record
    def main(number: int) -> int:
        return number // 0

    with pytest.raises(ZeroDivisionError):
        main(1)

    message = read(error_file)["message"]
    assert message["message"] == "ZeroDivisionError: integer division or modulo by zero"
    assert "in main" in message["extraInfo"]["py_callstack"]
    assert abs(int(message["extraInfo"]["timestamp"]) - time.time()) < 60  # noqa: TID251


@pytest.mark.parametrize(("code", "is_exit"), [(0, False), (None, True), (3, True), ("x", True)])
def test_exits_are_not_recorded(error_file: Path, code: Any, is_exit: bool) -> None:
    """`sys.exit(0)` becomes None; other exits pass."""

    @record
    def main() -> None:
        raise SystemExit(code)

    if is_exit:
        with pytest.raises(SystemExit):
            main()
    else:
        assert main() is None
    assert not error_file.exists()


def test_value_and_name_of_the_function_are_kept(error_file: Path) -> None:
    """A decorated function is called as before."""

    @record
    def main(number: int, *, more: int) -> int:
        """Add."""
        return number + more

    assert (main(1, more=2), main.__name__, main.__doc__) == (3, "main", "Add.")
    assert not error_file.exists()


def test_own_handler_records() -> None:
    """`record(error_handler=…)` decorates with that handler; `initialize` comes first."""
    calls: list[str] = []

    class Own(ErrorHandler):
        def initialize(self) -> None:
            calls.append("initialize")

        def record_exception(self, e: BaseException) -> None:
            calls.append(repr(e))

    @record(error_handler=Own())
    def main() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        main()
    assert calls == ["initialize", "ValueError('bad')"]
    assert type(get_error_handler()) is ErrorHandler


def test_first_failure_of_a_launch_is_passed_on(error_file: Path, tmp_path: Path) -> None:
    """The error of the worker that failed first, with its exit code, becomes the launcher's."""
    late = write_error(tmp_path / "late", 1_700_000_009)
    early = write_error(tmp_path / "early")
    error_file.write_text("of an earlier process")

    @record
    def main() -> None:
        failures = {
            3: ProcessFailure(1, 13, 1, str(late)),
            2: ProcessFailure(0, 12, -signal.SIGSEGV, str(early)),
        }
        raise ChildFailedError("train.py", failures)

    with pytest.raises(ChildFailedError):
        main()

    message = read(error_file)["message"]
    assert (message["message"], message["errorCode"]) == ("KeyError: 'k'", -signal.SIGSEGV)


def test_launch_whose_worker_recorded_nothing_writes_nothing(error_file: Path) -> None:
    """Without the worker's error file there is nothing to pass on."""

    @record
    def main() -> None:
        raise ChildFailedError("train.py", {0: ProcessFailure(0, 12, 1, "")})

    with pytest.raises(ChildFailedError):
        main()
    assert not error_file.exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"message": {"message": "a"}}, {"message": {"message": "a", "errorCode": 7}}),
        ({"message": "a"}, {"message": "a"}),
        ({}, {}),
    ],
)
def test_exit_code_is_set_where_there_is_room(content: Any, expected: Any) -> None:
    """Only a message with fields takes the exit code."""
    ErrorHandler().override_error_code_in_rootcause_data("file", content, 7)

    assert content == expected


def test_failure_reads_the_error_file(tmp_path: Path) -> None:
    """Message and time come from the file."""
    failure = ProcessFailure(1, 11, 1, str(write_error(tmp_path / "error")))

    assert isinstance(failure.message, dict)
    assert failure.message["message"] == "KeyError: 'k'"
    assert failure.error_file_data == {"message": failure.message}
    assert (failure.timestamp, failure.signal_name()) == (1_700_000_000, "<N/A>")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"other": 1}', '{"message": 5}', "\x00"])
def test_broken_error_file_counts_as_missing(tmp_path: Path, text: str) -> None:
    """A worker's program may write anything there."""
    path = tmp_path / "error"
    path.write_text(text)
    failure = ProcessFailure(0, 11, 1, str(path))

    assert (failure.error_file, failure.message) == ("<N/A>", UNRECORDED)
    traits = {"category": "system_terminated_error", "retryability": "False"}
    assert failure.error_file_data == {"message": "<NONE>", "errorTraits": traits}


def test_failure_by_signal_is_explained() -> None:
    """Without an error file, the signal is the message."""
    failure = ProcessFailure(0, 11, -9, "/nowhere")

    assert failure.message == "Signal 9 (SIGKILL) received by PID 11"
    assert failure.error_file_data == {"message": "<NONE>"}


def test_failure_of_a_reported_exit(tmp_path: Path) -> None:
    """The agent's report has what standard error told; an error file has more."""
    error = ErrorRecord("KeyError: 'k'", "Traceback …\nKeyError: 'k'", 0)

    def exit(**fields: Any) -> LocalExit:
        facts = {"exit_code": None, "signal": None, "at_ms": 0, "signalled_first": False}
        fields = {
            **facts,
            "error": None,
            "stderr_tail": "",
            "failed_ms": 1_700_000_000_900,
        } | fields
        return LocalExit(**fields)

    printed = ProcessFailure.from_exit(1, 11, exit(exit_code=3, error=error))
    recorded = ProcessFailure.from_exit(
        1, 11, exit(exit_code=3, error=error, error_file=str(write_error(tmp_path / "error")))
    )
    killed = ProcessFailure.from_exit(1, 11, exit(signal=9))
    running = ProcessFailure.from_exit(1, 11, exit(error=error))

    assert (printed.exitcode, printed.timestamp) == (3, 1_700_000_000)
    assert printed.error_file == "<N/A>"
    assert printed.message == recorded.message
    assert recorded.error_file == str(tmp_path / "error")
    assert (killed.exitcode, killed.message) == (-9, "Signal 9 (SIGKILL) received by PID 11")
    assert running.exitcode == 1


@pytest.mark.parametrize(
    ("claim", "facts", "expected"),
    [
        ("stopped while it was slow to exit", {"signal": 15}, 1),
        ("killed while it was slow to exit", {"signal": 9}, 1),
        ("stopped, and ended with 0", {"exit_code": 0}, 1),
        ("stopped, and had another code", {"exit_code": 3}, 3),
        ("out of memory meanwhile", {"signal": 9, "oom_killed": True}, -9),
        ("stopped before its error", {"signal": 15, "signalled_before_ms": 1_000}, -15),
    ],
)
def test_worker_that_was_stopped_after_its_error(
    claim: str, facts: dict[str, Any], expected: int
) -> None:
    """It counts as one that has ended with its error: the same to the API and to torch's files."""
    found: dict[str, Any] = {"exit_code": None, "signal": None, "signalled_before_ms": 100} | facts
    exit = LocalExit(
        at_ms=0,
        signalled_first=True,
        error=ErrorRecord("ValueError: bad", "", 900),
        stderr_tail="",
        **found,
    )
    sent = worker_message(LocalWorker(0, 11, 0, exit), 0)

    assert ProcessFailure.from_exit(0, 11, exit).exitcode == expected, claim
    assert exit_number(sent.exit) == expected, claim


def test_report_has_the_form_of_torch(tmp_path: Path) -> None:
    """Other failures first, then the one with the earliest time as the root cause."""
    first = ProcessFailure(1, 12, 1, str(write_error(tmp_path / "error")))
    other = ProcessFailure(0, 11, -15, "")
    error = ChildFailedError("train.py", {0: other, 1: first})
    host, section = socket.getfqdn(), "-" * 60

    assert error.get_first_failure() == (1, first)
    assert str(error).splitlines() == [
        "",
        "=" * 60,
        "train.py FAILED",
        section,
        "Failures:",
        "[0]:",
        f"  time      : {other.timestamp_isoformat()}",
        f"  host      : {host}",
        "  rank      : 0 (local_rank: 0)",
        "  exitcode  : -15 (pid: 11)  (SIGTERM)",
        "  error_file: <N/A>",
        "  traceback : Signal 15 (SIGTERM) received by PID 11",
        section,
        "Root Cause (first observed failure):",
        "[1]:",
        f"  time      : {first.timestamp_isoformat()}",
        f"  host      : {host}",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : 1 (pid: 12) ",
        f"  error_file: {tmp_path / 'error'}",
        "  traceback : Traceback …",
        "  KeyError: 'k'",
        "=" * 60,
    ]


def test_report_of_one_failure_and_other_lines() -> None:
    """Without other failures the report says so; the lines can be drawn otherwise."""
    error = ChildFailedError("x", {0: ProcessFailure(0, 1, 1, "")})
    lines = error.format_msg("#", "+").splitlines()

    assert "  <NO_OTHER_FAILURES>" in lines
    assert set(lines[1]) == {"#"}
    assert set(lines[3]) == {"+"}


def test_exceptions_can_be_pickled() -> None:
    """They cross processes unchanged."""
    failed = ChildFailedError("x", {0: ProcessFailure(0, 1, -9, "")})
    ended = SignalException("got SIGTERM", signal.SIGTERM)
    copies = pickle.loads(pickle.dumps((failed, ended)))

    assert (str(copies[0]), copies[0].failures) == (str(failed), failed.failures)
    assert (str(copies[1]), copies[1].sigval) == ("got SIGTERM", signal.SIGTERM)


def test_failed_launch_needs_a_failure() -> None:
    """As in torch."""
    with pytest.raises(AssertionError):
        ChildFailedError("x", {})
