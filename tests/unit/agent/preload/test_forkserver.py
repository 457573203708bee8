"""What a forkserver is started with, and the agent's end of the socket to it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from rallypoint.agent.evidence.hook import PYTHONPATH_ENV
from rallypoint.agent.helper.events import Exited, SpawnFailed, SpawnRequest
from rallypoint.agent.helper.frames import Decoder, encode
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.in_worker import PRELOAD, RUN_PATH
from rallypoint.agent.in_worker.preload.rallypoint_checks import is_of_round
from rallypoint.agent.preload.command import (
    FDS_ENV,
    RECORD_ENV,
    Shape,
    find_difference,
    forked_by,
    forkserver_environment,
    importable,
)
from rallypoint.agent.preload.forkserver import KEPT_BYTES, Forkserver, Hangup
from rallypoint.agent.round.environ import Function, Launch, worker_command

# The agent's end of the socket to a forkserver: frames, output of the imports, and its end.

LIMIT_S = 30.0
REQUEST = SpawnRequest(
    worker_id=-4, argv=("python",), env={}, cwd="/", stdout_fd=-1, stderr_fd=-1, cpus=(0,)
)


class Host:
    """Stands for the helper: it keeps what a forkserver would get."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self.request: SpawnRequest | None = None

    def spawn(self, request: SpawnRequest) -> None:
        self.request = request
        self.fds = [os.dup(fd) for fd in request.fds]


class Pair:
    """A forkserver as the agent sees it, and the descriptors of its process."""

    def __init__(self) -> None:
        self.server = Forkserver(REQUEST, (False, False), -1)
        self.host = Host()

    async def begin(self) -> None:
        """Start it."""
        await self.server.spawn(cast("WorkerHost", self.host))
        *self.streams, passed = self.host.fds
        self.socket = socket.socket(fileno=passed)
        self.socket.settimeout(LIMIT_S)

    def tell(self, **message: Any) -> None:
        self.socket.sendall(encode(message))

    def read(self) -> list[dict[str, Any]]:
        """Return what has arrived."""
        return list(Decoder().feed(self.socket.recv(1 << 20)))

    def close(self) -> None:
        """Close what its process has."""
        self.socket.close()
        while self.streams:
            os.close(self.streams.pop())


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """A forkserver that was just started."""
    one = Pair()
    await one.begin()
    yield one
    one.server.close()
    one.close()


async def test_request_of_a_forkserver(pair: Pair) -> None:
    """It has all processors: its workers are bound."""
    request = pair.host.request
    assert request is not None

    assert (request.worker_id, request.cpus) == (-4, ())


async def test_imports_are_asked_for_and_answered(pair: Pair) -> None:
    """Bytes outside UTF-8 travel, too."""
    pair.tell(type="ready", failed=[], refusal="", culprit="")
    async with asyncio.timeout(LIMIT_S):
        ready = await pair.server.prepare(["json"], ["a:f"], "/x", ["train.py", "\udce9"])

    assert ready["refusal"] == ""
    assert pair.read() == [
        {
            "type": "prepare",
            "modules": ["json"],
            "calls": ["a:f"],
            "path": "/x",
            "program": ["train.py", "\udce9"],
        }
    ]


async def test_look_is_a_byte_without_an_answer(pair: Pair) -> None:
    """It goes out at once."""
    pair.server.look()

    assert len(pair.socket.recv(1 << 20)) == 1


async def test_forkserver_that_has_ended_answers_nothing(pair: Pair) -> None:
    """A wait for it ends, and a look does no harm."""
    pair.close()
    pair.server.look()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(Hangup):
            await pair.server.receive()


async def test_output_of_the_imports_is_shown_by_each_worker(pair: Pair) -> None:
    """The agent keeps the start of what goes to a pipe or a terminal."""
    os.set_blocking(pair.streams[1], False)
    left = 80_000
    async with asyncio.timeout(LIMIT_S):
        while left:
            try:
                left -= os.write(pair.streams[1], b"x" * left)
            except BlockingIOError:  # the pipe is full, and the agent reads it
                await asyncio.sleep(0)
    pair.server.serve()

    assert pair.read() == [{"type": "serve", "shown": {"1": "x" * KEPT_BYTES}}]


async def test_forkserver_that_became_stale_tells_why(pair: Pair) -> None:
    """It has looked, told the reason and ended. Its exit may be known before it was read."""
    pair.server.look()
    pair.tell(type="stale", why="x.py has changed")
    pair.close()
    pair.server.look()
    pair.server.note_end(Exited(-4, 1, 0, None, at_ns=0))

    assert await pair.server.find_why() == "x.py has changed"


@pytest.mark.parametrize(
    ("code", "signum", "expected"),
    [
        (None, 9, "it was killed by SIGKILL"),
        (None, 40, "it was killed by signal 40"),  # one without a name
        (1, None, "it has ended with exit code 1"),
        (0, None, "it has ended"),
        (None, None, "it has ended"),
    ],
)
async def test_end_of_a_forkserver_is_explained(
    pair: Pair, code: int | None, signum: int | None, expected: str
) -> None:
    """As the helper tells it."""
    pair.close()
    pair.server.note_end(Exited(-4, 1, code, signum, at_ns=0))

    assert await pair.server.find_why() == expected


async def test_forkserver_that_was_not_started_tells_why(pair: Pair) -> None:
    """The end of its socket may be known before."""
    pair.close()
    with pytest.raises(Hangup):
        await pair.server.receive()
    failed = SpawnFailed(-4, 2, "cannot run python: No such file or directory")
    asyncio.get_running_loop().call_soon(pair.server.note_end, failed)

    assert await pair.server.find_why() == failed.message


# --- What a forkserver is started with, and which workers it may fork ---

MARK = {"RALLYPOINT_AGENT": "mark"}
SHAPE = Shape(2, 1, None)
WORKER = SpawnRequest(
    worker_id=7,
    argv=("python", "-u", "train.py", "x"),
    env={"HOME": "/", "RANK": "3", "RALLYPOINT_ROUND": "1", **MARK},
    cwd="/tmp",
    stdout_fd=1,
    stderr_fd=2,
)
SERVER = WORKER._replace(env=forkserver_environment(WORKER.env, MARK))


def arguments_of(argv: tuple[str, ...], shape: Shape) -> tuple[str, ...]:
    """Return what a forkserver learns of a worker's command line."""
    return forked_by(-1, WORKER._replace(argv=argv), shape).argv


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RANK", True),
        ("LOCAL_RANK", True),
        ("GROUP_WORLD_SIZE", True),
        ("ROLE_NAME", True),
        ("MASTER_PORT", True),
        ("TORCHELASTIC_RUN_ID", True),
        ("TORCH_WORKER_SERVER_SOCKET", True),
        ("RALLYPOINT_ROUND", True),
        ("OMP_NUM_THREADS", False),
        ("CUDA_VISIBLE_DEVICES", False),
        ("FRANK", False),
        ("RANKING", False),
        ("LORA_RANK", False),
        ("MASTER_KEY", False),
    ],
)
def test_variables_of_a_round(name: str, expected: bool) -> None:
    """Those that the next round may change, and no others."""
    assert expected is is_of_round(name)


@pytest.mark.parametrize(
    ("before", "path"), [({}, PRELOAD), ({"PYTHONPATH": "/a:/b"}, f"{PRELOAD}:/a:/b")]
)
def test_environment_of_a_forkserver(before: dict[str, str], path: str) -> None:
    """Without a round, with the agent's mark, our folder first, and what PYTHONPATH was."""
    environment = forkserver_environment({**WORKER.env, **before}, MARK)

    assert environment["PYTHONPATH"] == path
    assert environment.get(PYTHONPATH_ENV) == before.get("PYTHONPATH")
    assert environment["RALLYPOINT_AGENT"] == "mark"
    assert environment[FDS_ENV] == "63,62"
    assert "RANK" not in environment
    assert "RALLYPOINT_ROUND" not in environment


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        (WORKER, ""),
        (WORKER._replace(env={**WORKER.env, "RANK": "0", "MASTER_PORT": "1"}), ""),
        (WORKER._replace(argv=("python", "-u", "train.py", "y")), ""),
        (WORKER._replace(argv=("python", "-u", "other.py", "x")), "its command line differs"),
        (WORKER._replace(argv=("python", "-u", "train.py", "x", "y")), "its command line differs"),
        (WORKER._replace(cwd="/"), "its working directory differs"),
        (WORKER._replace(cwd=""), "its working directory differs"),
        (WORKER._replace(cpus=(0,)), ""),
        (WORKER._replace(env={**WORKER.env, "NEW": "1"}), "its environment differs: NEW"),
        (WORKER._replace(env={"RANK": "3", **MARK}), "its environment differs: HOME"),
    ],
)
def test_forkserver_forks_only_its_own_workers(worker: SpawnRequest, why: str) -> None:
    """What an import may have read must be the same; a round's ranks need not be."""
    assert why == find_difference(SERVER, worker, SHAPE)


@pytest.mark.parametrize(
    ("launch", "python", "arguments", "path"),
    [
        (Launch("{}/t.py", ("a", "b")), ("py", "-u"), ("a", "b"), "{}"),
        (Launch("{}/t.py", ("a",), run_path=True), ("py", "-u"), ("{}/t.py", "a"), "{}"),
        (Launch("pkg.t", ("a",), is_module=True), ("py", "-u"), ("a",), "{cwd}"),
        (Launch("{}", ("a",)), ("py", "-u"), ("a",), "{}"),
    ],
)
def test_parts_of_a_command_line(
    launch: Launch,
    python: tuple[str, ...],
    arguments: tuple[str, ...],
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script, a script by runpy, a module, and a folder with a main program."""
    monkeypatch.chdir("/")
    folder = str(tmp_path)
    script = launch.script.format(folder)
    filled = Launch(script, launch.args, is_module=launch.is_module, run_path=launch.run_path)
    argv = worker_command(filled, python="py", round=1, local_rank=0)
    shape = filled.shape("unused")

    assert argv[: shape.flags_end] == python
    assert arguments_of(argv, shape) == tuple(word.format(folder) for word in arguments)
    assert shape.path == path.format(folder, cwd="/")
    assert (RUN_PATH in argv) is launch.run_path


def test_parts_of_the_command_line_of_a_function() -> None:
    """Its arguments differ in each round; the path is the program's."""
    launch = Launch("f", (), function=Function("payload", "results", flags=("-X", "dev")))
    argv = worker_command(launch, python="py", round=2, local_rank=1)
    shape = launch.shape("/program")

    assert argv[1 : shape.flags_end] == ("-X", "dev")
    assert arguments_of(argv, shape) == ("payload", "results/1-2", "1")
    assert shape.path == "/program"


def test_forked_worker_is_told_what_differs() -> None:
    """Its arguments, the variables of its round, and its GPU; the rest is the forkserver's."""
    worker = WORKER._replace(env={**WORKER.env, "CUDA_VISIBLE_DEVICES": "1"})
    forked = forked_by(-3, worker, SHAPE)

    assert (forked.via, forked.argv) == (-3, ("x",))
    assert forked.env == {
        "RANK": "3",
        "RALLYPOINT_ROUND": "1",
        "CUDA_VISIBLE_DEVICES": "1",
        **MARK,
    }


def test_modules_to_import_of_a_record() -> None:
    """Each once, in the order of the program; never the program itself, or what failed."""
    recorded = ["json", "__main__", "a.b", "json", "gone", "", "sitecustomize", "a"]

    assert importable(recorded, {"gone"}) == ("json", "a.b", "a")


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (["pkg", "pkg.train", "json"], ("pkg", "json")),
        (["pkg", "pkg.train", "pkg.train.__main__", "json"], ("pkg", "pkg.train", "json")),
    ],
)
def test_main_module_is_not_imported(recorded: list[str], expected: tuple[str, ...]) -> None:
    """It would run without being the main program; of a package, only `__main__` runs."""
    assert importable(recorded, (), "pkg.train") == expected


# --- The names that a worker notes for a forkserver: those that it imports ---

PROGRAM = """
import importlib.util, sys
assert importlib.util.find_spec("wave")
import colorsys
if importlib.util.find_spec("xml.dom.minidom"):
    import chunk_of_nowhere
"""


def test_module_that_is_only_looked_for_is_not_noted(tmp_path: Path) -> None:
    """Libraries ask which others are installed, and import few of them."""
    record = tmp_path / "record"
    record.touch()
    environ = {**os.environ, "PYTHONPATH": PRELOAD, RECORD_ENV: str(record)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, check=False)
    names = set(record.read_text().split())

    assert names & {"wave", "xml.dom.minidom"} == set()
    assert {"colorsys", "xml.dom", "chunk_of_nowhere"} <= names


# --- Variables that a forkserver has only for its imports, and those of a single worker ---

NAME = "PYTORCH_NVML_BASED_CUDA_CHECK"
IMPORT = """\
import json, os, sys
import rallypoint_checks
variables = rallypoint_checks.Variables()
while_importing = os.environ.get(sys.argv[1])
variables.end()
print(json.dumps([while_importing, os.environ.get(sys.argv[1])]))
"""


@pytest.mark.parametrize("own", [{}, {NAME: "0"}, {NAME: "1"}])
def test_imports_ask_for_devices_without_a_cuda_context(own: dict[str, str]) -> None:
    """A worker has its own value, or none."""
    environment = {"PATH": os.environ["PATH"], **own}
    done = subprocess.run(
        [sys.executable, "-S", "-c", IMPORT, NAME],
        cwd=PRELOAD,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(done.stdout) == ["1", own.get(NAME)]


def test_worker_may_see_another_gpu() -> None:
    """With --virtual-local-rank each worker sees another one; nothing else may differ."""
    worker = {"HOME": "/", "RANK": "1", "CUDA_VISIBLE_DEVICES": "1"}
    request = SpawnRequest(1, ("python", "x.py"), worker, "/tmp", stdout_fd=1, stderr_fd=2)
    first = {**worker, "RANK": "0", "CUDA_VISIBLE_DEVICES": "0"}
    server = request._replace(env=forkserver_environment(first, {}))
    other = request._replace(env={**worker, "HOME": "/root"})

    assert find_difference(server, request, Shape(1, 0, None)) == ""
    assert find_difference(server, other, Shape(1, 0, None)) == "its environment differs: HOME"
