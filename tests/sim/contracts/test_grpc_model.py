"""The model of grpc.aio's calls and streams does what grpc.aio does.

A script has the steps of a client and of a handler. What each step ends with is noted: a message,
the end, or an exception. The notes of grpc.aio, over a real connection, must be among those of the
model, which draws what the network leaves open.
"""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has the error of a write

from sim.shells.calls import READY, Call, Channel, Context, Server
from sim.shells.loop import NS, START_NS, Schedule, new_loop
from sim.shells.stream import Stream
from support.machines.proxy import Proxy

REPOSITORY = Path(__file__).parents[3]
METHOD = "/test.Test/Call"
LIMIT_S = 30.0
SEEDS = 40
ENDED = "ended"
"""The mark that is set when the handler has returned."""
FLOOD = b"x" * (1 << 20)
"""Written until the window is full."""

SCRIPTS = {
    "messages": ("write a; write b; read; read; read; read; code", "read; read; write c; write d"),
    "server ends at once": ("read; code; write a; read", ""),
    "write after ok": ("read; write a; read", ""),
    "write after the status": ("read; write a; write b; read", "abort"),
    "write after an unread status": ("wait ended; code; write a; read; read", "abort"),
    "read of an unread ok": ("wait ended; code; read; read", ""),
    "messages before the status": ("read; read; read; read", "write a; write b; abort"),
    "unread messages before the status": ("wait ended; read; read; read", "write a; abort"),
    "status": ("read; code; details; trailing; initial", "abort"),
    "status of ok": ("read; code; details; trailing; initial", ""),
    "code before the end": ("code&; write a; join", "read; abort"),
    "status while the client reads": ("read&; mark m; join", "wait m; abort"),
    "status while the client writes": ("flood&; mark m; join; write a; read", "wait m; abort"),
    "ok while the client writes": ("flood&; mark m; join; write a; read; code", "wait m"),
    "status while it reads and writes": ("read&; flood&; mark m; join", "wait m; abort"),
    "server writes after an abort": ("read; read", "try abort; write a; read; try abort; done"),
    "exception in the handler": ("read; code; details; write a", "read&; raise"),
    "exception after a message": ("read; read; read", "write a; raise"),
    "cancelled by the client": ("write a; read; cancel; read; write b", "read; write c; hang"),
    "cancelled twice": ("cancel; cancel; code; details; read; write a", "hang"),
    "cancelled after the end": ("read; cancel; code; read; write a", ""),
    "cancelled after the status": ("read; cancel; code; read", "abort"),
    "cancelled while it reads": ("wait m; read&; cancel; join; code; read", "mark m; hang"),
    "cancelled while it writes": ("flood&; wait m; cancel; join; write a", "mark m; hang"),
    "read is interrupted": ("wait m; read&; interrupt; join; code; read; write a", "mark m; hang"),
    "write is interrupted": ("wait m; flood&; interrupt; join; code; read", "mark m; hang"),
    "server reads when cancelled": ("wait m; cancel", "read&; mark m; try hang; join; done"),
    "server reads after a cancel": (
        "wait m; cancel",
        "mark m; try hang; read; read; write a; done",
    ),
    "server aborts after a cancel": ("wait m; cancel", "mark m; try hang; try abort; done"),
    "server writes when cancelled": ("wait m; cancel", "flood&; mark m; try hang; join; done"),
    "server reads a message of the past": ("write a; wait m; cancel", "mark m; try hang; read"),
    "server is cancelled while it writes": ("wait m; cancel", "mark m; try flood; done"),
    "write before an unread message": (
        "wait ended; write a; write b; read; read",
        "write x; abort",
    ),
    "done callback at the end": ("read", "watch; write a"),
    "done callback at an abort": ("read", "watch; watch; try abort; done"),
    "done callback at an exception": ("read", "watch; raise"),
    "done callback of a cancel": ("wait m; cancel", "watch; mark m; try hang; done"),
    "done callback after the end": ("read", "try abort; watch; done"),
    "read is interrupted at the server": ("wait m; read", "read&; interrupt; join; mark m; abort"),
    "handler returns while it reads": ("read; read", "read&; mark m; write a"),
    "server goes": ("wait m; read&; stop; join; read; write a", "mark m; try hang; done"),
    "server goes while the client writes": ("wait m; flood&; stop; join; write a", "mark m; hang"),
    "server goes in order": ("wait m; read&; stop 9; join", "mark m; write a"),
    "call of a server that is gone": ("stop; open; read; code; write a", ""),
    "channel is closed": (
        "wait m; read&; close; join; code; read; write a",
        "mark m; try hang; done",
    ),
    "connection breaks": (
        "wait m; read&; reset; join; read; write a",
        "mark m; try hang; read; done",
    ),
    "connection breaks between": ("wait m; reset; read; read; write a", "mark m; try hang; read"),
    "connection breaks in a write": (
        "wait m; flood&; reset; join; write a; read; mark gone",
        "mark m; wait gone",
    ),
}
"""Steps of the client, and of the handler.

`&` makes a step a task, and `join` waits for all tasks; `interrupt` cancels them. The handler goes
on after a `try`, whatever it raises. `wait ended` waits until the handler has returned.

No handler hangs or writes in a connection that breaks while its window is full: in one of some 200
such calls grpc.aio on a busy machine neither cancels the handler nor ends the write. The
product gives every write a limit.
"""


class Actor:
    """One side of a script."""

    def __init__(self, stage: Stage, call: Any) -> None:
        self.stage = stage
        self.call = call
        self.notes: list[str] = []
        self._tasks: list[asyncio.Task[str]] = []

    async def play(self, script: str) -> None:
        """Do all steps."""
        try:
            for step in filter(None, script.split("; ")):
                await self._step(step)
        finally:
            for task in self._tasks:
                task.cancel()

    async def _step(self, step: str) -> None:  # noqa: C901  # a table of steps
        step, is_tried = step.removeprefix("try "), step.startswith("try ")
        match step.partition(" "):
            case "join", _, _:
                for task in self._tasks:
                    self.notes.append(await task)
                self._tasks.clear()
            case "interrupt", _, _:
                await self.stage.settle()
                for task in self._tasks:
                    task.cancel()
            case "mark" | "wait", _, name:
                mark = self.stage.marks.setdefault(name, asyncio.Event())
                if step.startswith("mark"):
                    await self.stage.settle()
                    mark.set()
                await mark.wait()
                if name == ENDED:
                    await self.stage.pass_time()
            case "abort" | "raise" | "hang", _, _ if not is_tried:
                try:
                    await self._do(step)
                except BaseException as error:
                    self.notes.append(f"{step}: {_show(error)}")
                    raise
            case _ if step.endswith("&"):
                loop = asyncio.get_running_loop()
                self._tasks.append(loop.create_task(self._try(step[:-1])))
            case _:
                self.notes.append(await self._try(step))

    async def _try(self, step: str) -> str:
        try:
            return f"{step}: {_show(await self._do(step))}"
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # all are compared
            return f"{step}: {_show(error)}"

    async def _do(self, step: str) -> object:  # noqa: C901  # the same
        call, (verb, _, text) = self.call, step.partition(" ")
        match verb:
            case "open":
                self.call = self.stage.call()
            case "read" | "code" | "details":
                return await getattr(call, verb)()
            case "initial" | "trailing":
                return tuple(await getattr(call, f"{verb}_metadata")())
            case "write":
                await call.write(text.encode())
            case "flood":
                while True:
                    await call.write(FLOOD)
            case "cancel" | "done":
                return call.cancel() if verb == "cancel" else call.done()
            case "abort":
                code = grpc.StatusCode.ABORTED
                await call.abort(code, "enough", (("why", "text"), ("raw-bin", b"\0")))
            case "raise":
                raise ValueError("a bug")
            case "hang":
                await asyncio.Event().wait()
            case "watch":
                call.add_done_callback(lambda one: self.notes.append(f"ended: {one.done()}"))
            case "stop" | "close" | "reset":
                await getattr(self.stage, verb)(*map(float, text.split()))
            case _:
                raise AssertionError(step)
        return None


def _show(end: object) -> str:
    """Return what a step has ended with; a broken connection has many texts."""
    match end:
        case grpc.aio.AioRpcError():
            code, trailing = end.code(), tuple(end.trailing_metadata() or ())
            details = "" if code is grpc.StatusCode.UNAVAILABLE else end.details()
            return f"{code.name} {details!r} {trailing if trailing else ''}"
        case BaseException():
            # What a batch was to do is in its text.
            has_text = str(end) and not isinstance(end, cygrpc.ExecuteBatchError)
            return f"{type(end).__name__}: {end}" if has_text else type(end).__name__
        case bytes():
            return "a flood" if end == FLOOD else end.decode()
    return "EOF" if end is grpc.aio.EOF else str(end)


class Stage(grpc.GenericRpcHandler):
    """Where a script is played. The two differ in what they make calls with."""

    def __init__(self, script: str) -> None:
        self.steps = SCRIPTS[script]
        self.marks: dict[str, asyncio.Event] = {}
        self.channel: Any = None
        self.server: Any = None
        self.handler: Actor | None = None
        self.has_ended = asyncio.Event()

    async def play(self) -> tuple[list[str], list[str]]:
        """Return the notes of the client and of the handler."""
        client = Actor(self, self.call())
        async with asyncio.timeout(LIMIT_S):
            await client.play(self.steps[0])
            client.call.cancel()
            if self.handler is not None:
                await self.has_ended.wait()
        return client.notes, [] if self.handler is None else self.handler.notes

    def call(self) -> Any:
        return self.channel.stream_stream(METHOD, bytes, bytes)(metadata=())

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._handle)

    async def _handle(self, _: object, context: Any) -> None:
        self.handler = Actor(self, context)
        try:
            await self.handler.play(self.steps[1])
        finally:
            self.has_ended.set()
            self.marks.setdefault(ENDED, asyncio.Event()).set()

    async def settle(self) -> None:
        """Let tasks begin what they wait for."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def pass_time(self) -> None:
        """Wait for what may be on its way, or not."""

    async def stop(self, grace: float = 0) -> None:
        await self.server.stop(grace)

    async def close(self) -> None:
        await self.channel.__aexit__(None, None, None)


Notes = tuple[tuple[str, ...], tuple[str, ...]]


class RealStage(Stage):
    """grpc.aio, over a connection that can be broken."""

    async def run(self) -> Notes:
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((self,))
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        with Proxy(f"127.0.0.1:{port}") as self.proxy:
            async with grpc.aio.insecure_channel(self.proxy.address) as self.channel:
                await self.channel.channel_ready()
                client, handler = await self.play()
        await self.server.stop(0)
        return tuple(client), tuple(handler)

    async def reset(self) -> None:
        await asyncio.to_thread(self.proxy.cut)


class ModelStage(Stage):
    """The model, on virtual time."""

    def __init__(self, script: str, seed: int) -> None:
        super().__init__(script)
        self._rng = Random(seed)
        self._schedule = Schedule(Random(seed))
        self._loop = new_loop(self._schedule, "test", self._rng)
        self._streams: list[Stream] = []

    def run(self) -> Notes:
        task = self._loop.create_task(self._run())
        self._schedule.run(START_NS + int(2 * LIMIT_S) * NS)
        for left in self._loop.pending():
            left.cancel()
        self._schedule.run(START_NS + int(3 * LIMIT_S) * NS)
        return task.result()

    async def _run(self) -> Notes:
        self.server = Server(self._loop, ())
        self.server.add_generic_rpc_handlers((self,))
        await self.server.start()
        self.channel = Channel(self, "test")
        client, handler = await self.play()
        return tuple(client), tuple(handler)

    def _delay_s(self) -> float:
        return self._rng.uniform(0, 0.01)

    async def pass_time(self) -> None:
        await asyncio.sleep(self._delay_s() * 5)

    def connect(self, channel: Channel) -> None:
        channel.settle(READY)

    def open(self, channel: Channel) -> Stream:
        stream = Stream(self._schedule, Random(self._rng.random()), 2, self._delay_s)
        self._streams.append(stream)
        self._schedule.after(self._delay_s(), lambda: self.server.accept(stream, "test"))
        return stream

    async def reset(self) -> None:
        for stream in self._streams:
            stream.cut(client_s=self._delay_s(), server_s=self._delay_s())


PRODUCT = (
    "agent/rallypoint/agent/session",
    "server/rallypoint/relay",
    "server/rallypoint/server/access",
    "server/rallypoint/server/agents",
    "server/rallypoint/server/api",
    "server/rallypoint/server/contract",
    "server/rallypoint/server/fleet",
)
OUTSIDE = (
    "relay/forwarding.py",
    "server/access/",
    "server/fleet/",
    "agents/relays/access.py",
    "api/barriers/",
    "api/keys/",
)
"""Code that no seed of the shells runs: calls of workers and between coordinators, and access."""
STAND_INS = {"call": Call, "context": Context}


def find_uses() -> set[tuple[str, str]]:
    """Return what the code that the seeds run takes from calls and contexts."""
    paths = (path for folder in PRODUCT for path in (REPOSITORY / folder).rglob("*.py"))
    used = set()
    for path in paths:
        if any(part in path.as_posix() for part in OUTSIDE):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                of = node.value
                name = getattr(of, "attr", getattr(of, "id", "")).removeprefix("_")
                if name in STAND_INS:
                    used.add((name, node.attr))
    return used


def test_model_has_what_the_product_uses() -> None:
    """A method that the model lacks would first fail in some seed."""
    used = find_uses()

    assert ("call", "write") in used and ("context", "abort") in used
    assert {(of, name) for of, name in used if not hasattr(STAND_INS[of], name)} == set()


@pytest.mark.parametrize("script", SCRIPTS)
async def test_model_does_what_grpc_does(script: str) -> None:
    """What grpc.aio does in a script is among what the model does."""
    actual = await RealStage(script).run()
    expected = await asyncio.to_thread(
        lambda: {ModelStage(script, seed).run() for seed in range(SEEDS)}
    )

    assert actual in expected
