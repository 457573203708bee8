"""Functions as workers, by every start method. Real processes."""

from __future__ import annotations

import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rallypoint.agent.in_worker import FUNCTION
from rallypoint.elastic.functions import FunctionLaunch, UnpicklableFunction, write_payload
from support.functions import bodies
from support.functions.running import METHODS, run_function

MEBIBYTE = 1 << 20
every_method = pytest.mark.parametrize("method", METHODS)


def run_program(text: str, method: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that an interpreter reads from standard input."""
    return subprocess.run(
        [sys.executable, "-", method, str(folder)],
        input=text,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )


@every_method
async def test_function_runs_as_a_worker(method: str, tmp_path: Path) -> None:
    """Arguments arrive, values return, and the process is as one that a helper execs.

    It has its environment, folder, group, CPUs, default signals, and its own random numbers.
    """
    cpu = min(os.sched_getaffinity(0))
    environment = {"PATH": os.environ["PATH"]}
    ended = await run_function(
        tmp_path,
        bodies.tell,
        "rank ${local_rank}",
        1,
        2,
        method=method,
        workers=2,
        environment=environment,
        cpus=(cpu,),
    )

    assert ended.exits == {0: 0, 1: 0}
    numbers = {ended.values[rank].pop("random") for rank in (0, 1)}
    assert len(numbers | {random.random()}) == 3
    expected = {
        "sum": 3,
        "environment": ["PATH", "RANK", "TORCHELASTIC_ERROR_FILE"],
        "argv": sys.argv,
        "folder": str(tmp_path),
        "group": True,
        "blocked": [],
        "int": True,
        "term": True,
        "cpus": [cpu],
    }
    for rank in (0, 1):
        value = ended.values[rank]
        assert value.pop("word") == f"rank {rank}"
        assert value.pop("rank") == str(rank)
        assert value == expected


@every_method
async def test_exception_is_recorded_with_its_traceback(method: str, tmp_path: Path) -> None:
    """The error file has type, text and the function's frames; the exit code is 1."""
    ended = await run_function(tmp_path, bodies.fail, "no data", method=method)

    assert ended.exit == 1
    assert ended.error["message"] == "ValueError: no data"
    stack = ended.error["extraInfo"]["py_callstack"].splitlines()
    assert stack[0] == "Traceback (most recent call last):"
    assert stack[1].endswith("in fail")
    assert stack[-1] == "ValueError: no data"
    assert int(ended.error["extraInfo"]["timestamp"]) > 1_700_000_000


@every_method
@pytest.mark.parametrize(
    ("function", "text"),
    [
        (bodies.fail_with_lock, "LockedError: locked"),
        (bodies.fail_silently, "SilentError: <its text cannot be read>"),
    ],
)
async def test_any_exception_is_recorded(
    function: Any, text: str, method: str, tmp_path: Path
) -> None:
    """An exception that cannot be pickled, or not even printed, is reported by its text."""
    ended = await run_function(tmp_path, function, method=method)

    assert (ended.exit, ended.error["message"]) == (1, text)


@every_method
@pytest.mark.parametrize(
    ("function", "argument", "exit"),
    [
        (bodies.leave, 0, 0),
        (bodies.leave, None, 0),
        (bodies.leave, 3, 3),
        (bodies.leave, "no data", 1),
        (bodies.drop_out, 0, 0),
        (bodies.drop_out, 5, 5),
        (bodies.die, signal.SIGKILL, -signal.SIGKILL),
        (bodies.die, signal.SIGTERM, -signal.SIGTERM),
        (bodies.die, signal.SIGSEGV, -signal.SIGSEGV),
        (bodies.die, signal.SIGINT, -signal.SIGINT),
    ],
)
async def test_exit_is_kept(
    function: Any, argument: Any, exit: int, method: str, tmp_path: Path
) -> None:
    """Exit codes and signals arrive as they are; such an end records nothing, and 0 means None."""
    null = os.open(os.devnull, os.O_RDWR)
    ended = await run_function(tmp_path, function, argument, method=method, fds=(null, null, null))
    os.close(null)

    assert (ended.exit, ended.errors) == (exit, {})
    assert ended.values == ({} if exit else {0: None})


@every_method
async def test_value_that_cannot_be_pickled_is_a_failure(method: str, tmp_path: Path) -> None:
    """The failure names the function and the reason."""
    ended = await run_function(tmp_path, bodies.return_lock, method=method)

    assert ended.exit == 1
    assert ended.error["message"] == (
        "PicklingError: return_lock returned a value that cannot be pickled: "
        "TypeError: cannot pickle '_thread.lock' object"
    )


@every_method
async def test_large_arguments_and_values(method: str, tmp_path: Path) -> None:
    """64 MiB go in, and 64 MiB come back."""
    size = 64 * MEBIBYTE

    assert (await run_function(tmp_path, bodies.measure, bytes(size), method=method)).value == size
    value = (await run_function(tmp_path, bodies.fill, size, method=method)).value
    assert (len(value), value[-1:]) == (size, b"x")


@pytest.mark.nightly
@every_method
async def test_value_of_a_gibibyte(method: str, tmp_path: Path) -> None:
    """1 GiB comes back from one of two workers, and little from the other."""
    ended = await run_function(tmp_path, bodies.fill, 1024 * MEBIBYTE, method=method)

    assert len(ended.value) == 1024 * MEBIBYTE


@every_method
async def test_output_and_input_are_those_of_the_request(method: str, tmp_path: Path) -> None:
    """What a worker prints arrives at once, even if it drops out; it reads what it is given."""
    out, err = os.memfd_create("out"), os.memfd_create("err")
    words = os.memfd_create("in")
    os.pwrite(words, b"in\n", 0)
    ended = await run_function(tmp_path, bodies.talk, method=method, fds=(words, out, err))

    assert ended.exit == 0
    assert (os.pread(out, 100, 0), os.pread(err, 100, 0)) == (b"out\nin\n", b"err\n")
    for fd in (out, err, words):
        os.close(fd)


@every_method
async def test_lines_are_written_whole(method: str, tmp_path: Path) -> None:
    """Lines of workers that share a stream do not mix, not even with PYTHONUNBUFFERED."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # keeps writes apart
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with ours, theirs:
        fds = (0, theirs.fileno(), 2)
        await run_function(tmp_path, print, "a", 1, method=method, environment=environment, fds=fds)

        assert ours.recv(100, socket.MSG_DONTWAIT) == b"a 1\n"


@every_method
async def test_end_of_the_interpreter_is_orderly(method: str, tmp_path: Path) -> None:
    """What the function registers for the end runs; `multiprocessing` works inside a function."""
    touched = tmp_path / "touched"
    await run_function(tmp_path, bodies.touch_at_exit, str(touched), method=method)

    assert touched.exists()
    assert (await run_function(tmp_path, bodies.sum_in_pool, [1, -2], method=method)).value == 3


@every_method
async def test_function_that_has_returned_succeeds(method: str, tmp_path: Path) -> None:
    """Its process is not taken apart, where torch may abort it; what it has left is written."""
    ended = await run_function(tmp_path, bodies.leave_things, str(tmp_path), method=method)

    assert (ended.exit, ended.value) == (0, "left")
    for name in ("text", "bytes", "c", "thread"):
        assert (tmp_path / name).read_text() == name


async def test_stuck_file_does_not_keep_a_worker(tmp_path: Path) -> None:
    """A pipe without a reader delays the end for a limited time."""
    ended = await run_function(tmp_path, bodies.leave_full_pipe)

    assert (ended.exit, ended.value) == (0, "left")


async def test_fork_takes_what_cannot_be_pickled(tmp_path: Path) -> None:
    """With fork, a lambda runs, its arguments are the caller's, and so are open descriptors."""
    lock = threading.Lock()
    ended = await run_function(tmp_path, lambda it: it is lock, lock, method="fork")
    assert ended.value is True
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"from the caller")
    ended = await run_function(tmp_path, bodies.read, read_fd, method="fork")
    os.close(read_fd)
    os.close(write_fd)

    assert ended.value == "from the caller"


async def test_fork_leaves_the_callers_ports_alone(tmp_path: Path) -> None:
    """A copy of a listening socket would keep the port taken after the caller has closed it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = (await run_function(tmp_path, bodies.list_ports, method="fork")).value

        assert server.getsockname()[1] in bodies.list_ports()
        assert found == []


DESCRIPTORS = """
import asyncio, sys
from pathlib import Path
from support.functions import bodies
from support.functions.running import run_function

async def find_extra():
    look, folder = bodies.list_descriptors, Path(sys.argv[2])
    inherited = look()
    found = (await run_function(folder, look, method=sys.argv[1])).value
    return [one for one in found - inherited if one.startswith(("socket", "pipe", "anon_inode"))]

print(asyncio.run(find_extra()))
"""


@every_method
def test_worker_has_no_descriptor_of_the_helper(method: str, tmp_path: Path) -> None:
    """The sockets and pipes of the helper stay with the helper.

    This takes a fresh interpreter: libuv in torch opens a pipe in each fork.
    """
    done = run_program(DESCRIPTORS, method, tmp_path)

    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
async def test_lambda_is_sent_by_value(method: str, tmp_path: Path) -> None:
    """With cloudpickle, a function without a name also runs in a fresh interpreter."""
    number = 20
    ended = await run_function(tmp_path, lambda more: number + more, 1, method=method)

    assert ended.value == 21


def test_lambda_without_cloudpickle_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal tells what to do, and leaves no folder."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    made: list[str] = []
    monkeypatch.setattr("shutil.rmtree", lambda path, **_: made.append(str(path)))
    with pytest.raises(UnpicklableFunction) as refused:
        FunctionLaunch(lambda: 1, (), "spawn")

    assert str(refused.value).endswith(
        "; define them in a module, or use the start method fork, or install cloudpickle"
    )
    assert len(made) == 1


# Read from standard input, so its main module has no file.
NOTEBOOK = """
import asyncio, sys
from pathlib import Path
from support.functions.running import run_function

class Point:
    def __init__(self, x):
        self.x = x

def move(point):
    return Point(point.x + 1)

ended = asyncio.run(run_function(Path(sys.argv[2]), move, Point(1), method=sys.argv[1]))
print(type(ended.value) is Point, ended.value.x)
"""


@every_method
def test_main_module_without_a_file(method: str, tmp_path: Path) -> None:
    """Functions and classes of a notebook go to the workers and back."""
    done = run_program(NOTEBOOK, method, tmp_path)

    assert (done.stdout, done.stderr) == ("True 2\n", "")


@every_method
async def test_full_disk_is_a_failure(method: str, tmp_path: Path) -> None:
    """A value that cannot be stored is reported with the reason."""
    ended = await run_function(tmp_path, bodies.fill_beyond_limit, MEBIBYTE, method=method)

    assert (ended.exit, ended.values) == (1, {})
    assert ended.error["message"] == (
        "OSError: [Errno 27] cannot store what fill_beyond_limit returned: File too large"
    )


def test_notebook_without_cloudpickle_is_refused(tmp_path: Path) -> None:
    """A function that no worker can import is refused before anything starts."""
    done = subprocess.run(
        [sys.executable, "-", "spawn", str(tmp_path)],
        input="import sys; sys.modules['cloudpickle'] = None\n" + NOTEBOOK,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "rallypoint.elastic.functions.UnpicklableFunction: move and its arguments cannot "
        "be pickled: move is defined in a main module without a file; define them in a module, or "
        "use the start method fork, or install cloudpickle"
    )


def test_value_of_an_earlier_round_is_removed(tmp_path: Path) -> None:
    """Restarts of a function with large values do not fill the disk."""
    results = tmp_path / "results"
    results.mkdir()
    write_payload(tmp_path / "call", bodies.fill, (10,))
    for name in ("0-1", "1-1", "0-2"):
        command = [sys.executable, FUNCTION, str(tmp_path / "call"), str(results / name), name[0]]
        subprocess.run(command, check=True, timeout=60)

    assert sorted(os.listdir(results)) == ["0-2", "1-1"]


def test_unknown_start_method_is_refused() -> None:
    """There are three start methods."""
    with pytest.raises(ValueError, match="'thread' is unknown; known: spawn"):
        FunctionLaunch(bodies.talk, (), "thread")


def test_folder_is_private_and_removed() -> None:
    """Other users cannot read arguments and values; nothing is left at the end."""
    launch = FunctionLaunch(bodies.measure, (b"secret",))
    assert launch.launch.function is not None
    folder = Path(launch.launch.function.payload).parent

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    launch.close()
    assert not folder.exists()
