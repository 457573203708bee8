"""Nothing is left after the agent or the helper was killed. Real processes, real SIGKILL."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from rallypoint.agent.helper.events import Spawned, Swept
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.helper.leftovers import AGENT_MARK_ENV, compute_mark
from support.processes.processes import DEADLINE_S, STUBBORN_TREE, Conversation, Lines, Witness

# An agent in small: starts the stubborn tree, prints what happens; when its helper is lost it
# starts gRPC, launches another, and runs a worker there.
AGENT = textwrap.dedent("""
    import asyncio, os, subprocess, sys
    from rallypoint.agent.helper.leftovers import AGENT_MARK_ENV, compute_mark
    from rallypoint.agent.helper.host import WorkerHost, become_subreaper
    from rallypoint.agent.helper.events import Clean, Exited, Spawned, SpawnRequest, Swept

    env = {**os.environ, AGENT_MARK_ENV: compute_mark("test")}

    def say(*words):  # in one write, also where Python's output has no buffer
        os.write(1, " ".join(map(str, words)).encode() + b"\\n")

    def ask(host, worker_id, *argv):
        host.spawn(SpawnRequest(
            worker_id=worker_id, argv=argv, env=env, cwd="/", stdout_fd=1, stderr_fd=2
        ))

    async def main(host, tree):
        events = asyncio.Queue()
        host.attach(events.put_nowait)
        own = subprocess.Popen(["sleep", "1000"])
        say("helper", host.pid)
        say("own", own.pid)
        ask(host, 1, sys.executable, "-c", tree)
        while (event := await events.get()) != Clean(0):
            # Swept: the helper has found what another test, beside this one, has left behind.
            if not isinstance(event, Spawned | Swept):
                say(event)
        say("clean; own process lives:", own.poll() is None)
        import concurrent.futures, grpc
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
        server.start()
        second = WorkerHost.launch()
        second.attach(events.put_nowait)
        ask(second, 2, "sh", "-c", "exit 5")
        while not isinstance(event := await events.get(), Exited):
            pass
        say("second host:", event.exit_code)
        server.stop(0).wait()
        own.kill()
        own.wait()
        await second.close()
        await host.close()

    become_subreaper()
    asyncio.run(main(WorkerHost.launch(), sys.argv[1]))
""")

# Prints the mark that its workers would have, and ends when its input does.
PRINT_MARK = textwrap.dedent("""
    import sys
    from rallypoint.agent.helper.leftovers import compute_mark
    print(compute_mark("dead"), flush=True)
    sys.stdin.read()
""")
ATTEMPTS = 10
"""With agents of other tests at work on this machine, see below."""


@pytest.fixture
def agent(output: Lines) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", AGENT, STUBBORN_TREE]
    with subprocess.Popen(command, stdout=output.write_fd) as process:
        yield process
        process.kill()


@pytest.fixture
def dead_mark() -> str:
    """The mark of an agent process that was there a moment ago."""
    program = [sys.executable, "-c", PRINT_MARK]
    return subprocess.check_output(program, text=True, stdin=subprocess.DEVNULL).strip()


def start_marked(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"], env={**os.environ, AGENT_MARK_ENV: mark})


async def launch_and_look(worker: subprocess.Popen[bytes]) -> bool:
    """Launch a host; return whether it reports that it swept this process."""
    talk = Conversation(WorkerHost.launch())
    talk.ask("true")
    swept: tuple[int, ...] = ()
    while not isinstance(event := await talk.next(with_swept=True), Spawned):
        if isinstance(event, Swept):
            swept += event.pids
    await talk.host.close()
    return worker.pid in swept


def test_killed_agent_leaves_nothing(
    agent: subprocess.Popen[bytes], output: Lines, witness: Witness
) -> None:
    """SIGKILL to the agent ends the helper, the workers and all their descendants."""
    pids = output.pids(5)
    witness.watch(*pids.values())
    own = pids.pop("own")
    agent.kill()

    assert witness.await_deaths(*pids.values()) == []
    assert witness.is_alive(own)  # the agent's own subprocess is not a worker


async def test_what_outlives_agent_and_helper_dies_with_the_next_launch(
    agent: subprocess.Popen[bytes], output: Lines, witness: Witness
) -> None:
    """Helper killed, agent frozen: workers die at once; the next agent kills the rest."""
    pids = output.pids(5)
    witness.watch(*pids.values())
    agent.send_signal(signal.SIGSTOP)
    os.kill(pids["helper"], signal.SIGKILL)

    assert witness.await_deaths(pids["worker"]) == []
    assert witness.is_alive(pids["daemon"])
    agent.kill()
    await launch_and_look(agent)
    assert witness.await_deaths(pids["child"], pids["daemon"]) == []


def test_killed_helper_is_lost_and_replaced(
    agent: subprocess.Popen[bytes], output: Lines, witness: Witness
) -> None:
    """After SIGKILL to the helper, the agent kills its orphans and can launch another helper.

    A subprocess of the agent's own is not taken for an orphan, and gRPC may run by then.
    """
    pids = output.pids(5)
    witness.watch(*pids.values())
    os.kill(pids["helper"], signal.SIGKILL)

    assert output.line() == f"HelperLost(pid={pids['helper']})"
    exited = f"Exited(worker_id=1, pid={pids['worker']}, exit_code=None, signal=9, "
    assert output.line().startswith(exited)
    assert output.line() == "clean; own process lives: True"
    assert witness.await_deaths() == []
    assert output.line() == "second host: 5"
    assert agent.wait(DEADLINE_S) == 0


async def test_leftover_of_a_dead_agent_is_swept(dead_mark: str) -> None:
    """The next helper kills a process that carries a dead agent's mark, and reports it."""
    # Another helper on this machine, of a test run beside this one, may be faster; so try again.
    for _ in range(ATTEMPTS):
        with start_marked(dead_mark) as worker:
            talk = Conversation(WorkerHost.launch())

            assert worker.wait(DEADLINE_S) == -signal.SIGKILL
        with contextlib.suppress(TimeoutError):
            swept = await talk.next(deadline_s=1, with_swept=True)
            assert isinstance(swept, Swept)
            if worker.pid in swept.pids:  # and maybe what other tests have left behind
                await talk.host.close()
                return
        await talk.host.close()
    pytest.fail("killed, but never reported")


async def test_leftover_whose_agents_pid_was_reused_is_swept() -> None:
    """A reused pid of a dead agent is recognised by its start time."""
    incarnation, pid, ticks, place = compute_mark("reused").split(":", 3)
    with start_marked(f"{incarnation}:{pid}:{int(ticks) - 1}:{place}") as worker:
        await launch_and_look(worker)

        assert worker.wait(DEADLINE_S) == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["live agent", "other namespace", "other boot", "not a mark"])
async def test_what_is_no_leftover_is_left_alone(dead_mark: str, kind: str) -> None:
    """The worker of a live agent, and one with a mark of another machine, are not killed."""
    incarnation, pid, ticks, inode, boot_id = dead_mark.split(":")
    marks = {
        "live agent": compute_mark("live"),
        "other namespace": f"{incarnation}:{pid}:{ticks}:{int(inode) + 1}:{boot_id}",
        "other boot": f"{incarnation}:{pid}:{ticks}:{inode}:{boot_id[::-1]}",
        "not a mark": f"{incarnation}:{pid}:{ticks}",
    }
    with start_marked(marks[kind]) as worker:
        was_swept = await launch_and_look(worker)
        status = worker.poll()
        worker.kill()

    assert (was_swept, status) == (False, None)


def test_agent_started_from_a_leftover_does_not_kill_itself(dead_mark: str) -> None:
    """An agent that inherited a dead agent's mark spares itself, its ancestors and its helper.

    The mark is of a place that only this agent's helper takes for its own. Agents of tests beside
    this one would kill it, with good reason.
    """
    code = textwrap.dedent("""
        import asyncio
        from rallypoint.agent.helper import processes
        from rallypoint.agent.helper.host import WorkerHost
        begin, call, end = processes._PROGRAM.partition("main(*")
        begin += "from rallypoint.agent.helper import leftovers; "
        begin += "leftovers._compute_place = lambda: '1:ours'; "
        processes._PROGRAM = begin + call + end
        async def main():
            host = WorkerHost.launch()
            host.attach(print)
            await host.close()
        asyncio.run(main())
    """)
    mark = ":".join((*dead_mark.split(":")[:-2], "1", "ours"))
    with start_marked(mark) as leftover:
        command = [sys.executable, "-c", code]
        environ = {**os.environ, AGENT_MARK_ENV: mark}
        agent = subprocess.run(command, env=environ, timeout=DEADLINE_S, check=False)

        assert leftover.wait(DEADLINE_S) == -signal.SIGKILL  # its helper looks for such marks
    assert agent.returncode == 0
