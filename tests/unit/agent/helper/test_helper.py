"""The helper process as its agent uses it: spawn, exit, signal, sweep, close. Real processes."""

import errno
import os
import signal
import textwrap
from collections.abc import Callable

import pytest

from rallypoint.agent.helper.descendants import is_descendant, list_descendants
from rallypoint.agent.helper.events import (
    Blocked,
    Clean,
    Exited,
    Spawned,
    SpawnFailed,
    SpawnRequest,
)
from rallypoint.agent.helper.host import HostClosed, WorkerHost
from support.processes.processes import (
    PYTHON,
    STUBBORN_TREE,
    Conversation,
    Lines,
    Witness,
    exited,
    read_pss_kb,
    release_dead,
    trace,
)

# --- spawn, exit, signal ---


@pytest.mark.parametrize(
    ("code", "exit_code", "signum"),
    [("pass", 0, None), ("raise SystemExit(3)", 3, None), ("import os; os.kill(0, 9)", None, 9)],
)
async def test_exit_is_reported(
    talk: Conversation, code: str, exit_code: int | None, signum: int | None
) -> None:
    """A worker's exit code or killing signal arrives, after its Spawned."""
    pid = await talk.start(*PYTHON, code)

    assert await talk.next() == exited(1, pid, exit_code, signum)


async def test_output_goes_to_the_given_descriptors(talk: Conversation, output: Lines) -> None:
    """Stdin, stdout and stderr are the descriptors of the request."""
    errors, words = Lines(), os.memfd_create("words")
    os.write(words, b"in\n")
    os.lseek(words, 0, os.SEEK_SET)
    command = "cat; echo out; echo err >&2"
    talk.host.spawn(
        SpawnRequest(
            worker_id=1,
            argv=("sh", "-c", command),
            env={"PATH": os.environ["PATH"]},
            cwd="/",
            stdout_fd=output.write_fd,
            stderr_fd=errors.write_fd,
            stdin_fd=words,
        )
    )
    os.close(words)

    assert (output.all(), errors.all()) == (b"in\nout\n", b"err\n")
    errors.close()


async def test_worker_is_bound_to_its_cpus(talk: Conversation, output: Lines) -> None:
    """A worker starts on the CPUs of the request, or not at all if it may not use them."""
    allowed = os.sched_getaffinity(0)
    out = output.write_fd
    program = "import os; print(sorted(os.sched_getaffinity(0)))"
    for cpus in ((min(allowed),), (1_000,), ()):
        argv = (*PYTHON, program)
        request = SpawnRequest(1, argv, {}, "/", stdout_fd=out, stderr_fd=out, cpus=cpus)
        talk.host.spawn(request)
        event = await talk.next()
        if isinstance(event, Spawned):
            await talk.next()
            assert output.line() == str([*cpus] or sorted(allowed))
            continue

        assert (cpus, type(event)) == ((1_000,), SpawnFailed)
        assert isinstance(event, SpawnFailed)
        assert event.errno == errno.EINVAL
        assert "cannot be bound to CPUs [1000]: Invalid argument" in event.message


async def test_many_workers_start_and_end(talk: Conversation) -> None:
    """Of fifty workers at once, each has one Spawned and one Exited, before Clean."""
    for worker_id in range(50):
        talk.ask("sleep", "1000", worker_id=worker_id)
    spawned = [await talk.next() for _ in range(50)]
    talk.host.sweep(1, 5000)
    ended = [await talk.next() for _ in range(50)]

    assert all(isinstance(event, Spawned) for event in spawned)
    assert sorted(e.worker_id for e in ended if isinstance(e, Exited)) == list(range(50))
    assert await talk.next() == Clean(1)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("no-such-program",), errno.ENOENT),
        (("/no/such/program",), errno.ENOENT),
        ((os.devnull,), errno.EACCES),
        (("true", "a\0b"), errno.EINVAL),
        ((), errno.EINVAL),
        (("true", "x" * 200_000), errno.E2BIG),
    ],
)
async def test_exec_failure_is_answered(
    talk: Conversation, argv: tuple[str, ...], code: int
) -> None:
    """A program that cannot be executed is SpawnFailed with the errno, without Exited."""
    talk.ask(*argv)
    failed = await talk.next()
    talk.host.sweep(1, 5000)

    assert isinstance(failed, SpawnFailed) and failed.errno == code, failed
    assert code == errno.EINVAL or f"cannot run {argv[0]}" in failed.message
    assert await talk.next() == Clean(1)


async def test_missing_working_directory_is_named(talk: Conversation) -> None:
    """A missing working directory is SpawnFailed with its name."""
    talk.ask("true", cwd="/no/such/folder")
    failed = await talk.next()

    assert isinstance(failed, SpawnFailed) and failed.errno == errno.ENOENT
    assert "/no/such/folder" in failed.message


async def test_live_id_is_refused(talk: Conversation) -> None:
    """A second spawn with the id of a live worker is refused; the first worker keeps running."""
    pid = await talk.start("sleep", "1000")
    talk.ask("true")
    failed = await talk.next()
    talk.host.signal(signal.SIGTERM, [1])

    assert isinstance(failed, SpawnFailed) and failed.errno == errno.EEXIST
    assert await talk.next() == exited(1, pid, None, signal.SIGTERM)


async def test_environment_is_exact_also_beyond_utf8(talk: Conversation, output: Lines) -> None:
    """The worker's environment is exactly the request's, byte for byte."""
    raw = b"\xff\xfe \xc3\xa4"
    talk.ask(
        "env", "-0", env={"PATH": os.environ["PATH"], "RAW": os.fsdecode(raw)}, out=output.write_fd
    )

    expected = {b"PATH=" + os.environb[b"PATH"], b"RAW=" + raw, b""}
    assert set(output.all().split(b"\0")) == expected


async def test_worker_inherits_no_descriptor(talk: Conversation, output: Lines) -> None:
    """Only 0, 1 and 2 are open in a worker, also beside others; 3 is the listing itself."""
    for worker_id in range(2, 6):
        await talk.start("sleep", "1000", worker_id=worker_id)
    talk.ask("ls", "/proc/self/fd", out=output.write_fd)

    assert output.all().split() == [b"0", b"1", b"2", b"3"]


async def test_signal_state_is_reset(output: Lines) -> None:
    """A worker ignores, catches and blocks no signal, whatever agent and helper do."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGINT})
    try:
        talk = Conversation(WorkerHost.launch())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    talk.ask("cat", "/proc/self/status", out=output.write_fd)
    status = dict(line.split(b":\t") for line in output.all().splitlines())
    await talk.host.close()

    # Signals 32 and 33 are the C library's own and cannot be unblocked through it; GNU make starts
    # its children with one of them blocked.
    kernel_mask = ~(0b11 << 31)
    found = {int(status[key], 16) & kernel_mask for key in (b"SigIgn", b"SigCgt", b"SigBlk")}
    assert found == {0}


async def test_worker_leads_its_own_session(talk: Conversation, output: Lines) -> None:
    """A worker is leader of its session and group, below the helper."""
    pid = await talk.start("cat", "/proc/self/stat", out=output.write_fd)

    assert output.all().rpartition(b") ")[2].split()[1:4] == [
        b"%d" % number for number in (talk.host.pid, pid, pid)
    ]


async def test_signal_reaches_the_group(talk: Conversation, output: Lines) -> None:
    """TERM to a worker reaches the children in its group too."""
    await talk.start("sh", "-c", "sleep 1000 & echo up; wait", out=output.write_fd)
    output.line()
    talk.host.signal(signal.SIGTERM)

    assert output.all() == b""  # ends only when the sleep, which holds it too, is gone


async def test_signal_right_after_spawn_is_not_lost(talk: Conversation) -> None:
    """A signal that is sent before exec is delivered after it."""
    talk.ask("sleep", "1000")
    talk.host.signal(signal.SIGTERM, [1])
    spawned = await talk.next()

    assert isinstance(spawned, Spawned)
    assert await talk.next() == exited(1, spawned.pid, None, signal.SIGTERM)


# A parent that reports USR1, and has its child, which would die of it, report that it lives.
USR1_PARENT = textwrap.dedent("""
    import os, signal, sys
    usr1 = {signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, usr1)  # so that it may come before the parent waits
    ready, tell = os.pipe()
    if (child := os.fork()) == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, usr1)
        os.write(1, b"up\\n")
        os.read(ready, 1)
        os.write(1, b"child lives\\n")
        os._exit(0)
    signal.sigwait(usr1)
    os.write(1, b"parent signalled\\n")
    os.write(tell, b"x")
    os.waitpid(child, 0)
""")


async def test_signal_for_a_worker_alone(talk: Conversation, output: Lines) -> None:
    """The worker's children get no signal, and the worker gets it after exec."""
    await talk.start(*PYTHON, USR1_PARENT, out=output.write_fd)
    output.line()
    talk.host.signal(signal.SIGUSR1, alone=True)
    await talk.next()
    talk.ask("sleep", "1000", worker_id=2)
    talk.host.signal(signal.SIGUSR1, alone=True)
    spawned = await talk.next()

    assert output.all() == b"parent signalled\nchild lives\n"
    assert isinstance(spawned, Spawned)
    assert await talk.next() == exited(2, spawned.pid, None, signal.SIGUSR1)


async def test_signal_for_a_worker_alone_spares_what_it_left(
    talk: Conversation, witness: Witness
) -> None:
    """After the worker has ended, no process of its group gets the signal."""
    await talk.start("sh", "-c", "sleep 1000 & exit 0")
    await talk.next()
    (child,) = list_descendants(talk.host.pid)
    witness.watch(child)
    talk.host.signal(signal.SIGUSR1, alone=True)
    assert await talk.start("true", worker_id=2)  # so the helper has taken the signal

    assert witness.is_alive(child)


async def test_signal_reaches_a_group_whose_leader_is_gone(
    talk: Conversation, output: Lines
) -> None:
    """A group still gets signals after its leader was reaped, until it is empty."""
    await talk.start("sh", "-c", "sleep 1000 & exit 0", out=output.write_fd)
    assert isinstance(await talk.next(), Exited)
    talk.host.signal(signal.SIGTERM, [1])

    assert output.all() == b""
    talk.host.signal(signal.SIGTERM, [1, 99])  # no such worker: skipped
    assert await talk.start("true")


# --- sweep and end ---


async def test_sweep_kills_every_descendant(
    talk: Conversation, output: Lines, witness: Witness
) -> None:
    """Own sessions, double forks and an ignored TERM save no process from a sweep."""
    pid = await talk.start(*PYTHON, STUBBORN_TREE, out=output.write_fd)
    pids = output.pids(3)
    witness.watch(*pids.values())
    talk.host.signal(signal.SIGTERM)
    talk.host.sweep(7, 5000)

    assert await talk.next() == exited(1, pid, None, signal.SIGKILL)
    assert await talk.next() == Clean(7)
    assert [witness.is_alive(pid) for pid in pids.values()] == [False] * 3
    assert await talk.start("true"), "a worker can start after the sweep"


async def test_sweep_that_cannot_finish_says_so(talk: Conversation, witness: Witness) -> None:
    """A process that cannot be reaped makes a sweep Blocked, once; Clean follows its end.

    A tracer holds the death of its tracee back from the parent, as uninterruptible sleep would.
    """
    pid = await talk.start("sleep", "1000")
    witness.watch(pid)
    if not trace(pid):
        pytest.skip("ptrace is not allowed here")
    talk.host.sweep(7, 50)

    assert await talk.next() == Blocked(7, (pid,))
    talk.ask("true", worker_id=2)
    refused = await talk.next()
    assert isinstance(refused, SpawnFailed) and refused.errno == errno.EBUSY
    assert witness.await_deaths() == []
    release_dead(pid)
    assert await talk.next() == exited(1, pid, None, signal.SIGKILL)
    assert await talk.next() == Clean(7)


async def test_close_kills_everything(output: Lines, witness: Witness) -> None:
    """After close() no descendant and no helper is left, and requests are refused."""
    talk = Conversation(WorkerHost.launch())
    await talk.start(*PYTHON, STUBBORN_TREE, out=output.write_fd)
    witness.watch(talk.host.pid, *output.pids(3).values())
    await talk.host.close()

    assert witness.await_deaths() == []
    with pytest.raises(HostClosed):
        talk.host.signal(signal.SIGTERM)


async def test_helper_is_deaf(talk: Conversation) -> None:
    """Signals that a terminal or an init sends to all processes do not end the helper."""
    for signum in (1, 2, 3, 10, 12, 13, 15):
        os.kill(talk.host.pid, signum)

    assert await talk.start("true")


async def test_helper_is_small(
    talk: Conversation, record_property: Callable[[str, object], None]
) -> None:
    """The helper uses little of the 60 MB that it and the agent may use together."""
    await talk.start("true")
    pss_kb = read_pss_kb(talk.host.pid)
    record_property("helper_pss_kb", pss_kb)

    assert pss_kb < 10_000


async def test_descendants_are_found_with_and_without_children_files(
    talk: Conversation, output: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways to read /proc find the same processes, and only true ancestors count as such."""
    pid = await talk.start(*PYTHON, STUBBORN_TREE, out=output.write_fd)
    expected = {talk.host.pid, pid, *output.pids(3).values()}
    quick = list_descendants(os.getpid())
    monkeypatch.setattr("os.path.exists", lambda path: False)
    thorough = list_descendants(os.getpid())

    assert expected <= set(quick) and expected <= set(thorough)
    assert is_descendant(pid, os.getpid()) and is_descendant(pid, talk.host.pid)
    assert not is_descendant(talk.host.pid, pid) and not is_descendant(pid, pid)
