"""What cannot work is refused: one line that says what to do, the right exit code, nothing left."""

import errno
import os
import socket
from pathlib import Path

import pytest

from rallypoint.agent.helper.host import WorkerHost
from rallypoint.cli.commands.agent import command as node_agent
from rallypoint.v1 import job_pb2, verdict_pb2
from support.processes.commands import COORDINATOR, NODE_AGENT
from support.processes.world import NOT_INHERITED, OBEDIENT, World

HERE = "--coordinator=localhost:1"
BAD_USAGE: list[tuple[tuple[str, ...], str]] = [
    ((HERE, "--nnodes=3:1", OBEDIENT), "--nnodes: '3:1' does not satisfy 1 <= MIN <= MAX"),
    ((HERE, "--nnodes=0", OBEDIENT), "--nnodes: '0' does not satisfy 1 <= MIN <= MAX"),
    ((HERE, "--nnodes=x", OBEDIENT), "--nnodes: 'x' is not N or MIN:MAX"),
    ((HERE, "--nproc-per-node=0", OBEDIENT), "--nproc-per-node: '0' is not 1 or more"),
    ((HERE, "--nproc-per-node=2.5", OBEDIENT), "--nproc-per-node: '2.5' is not a whole number"),
    ((HERE, "--numa-binding=all", OBEDIENT), "'all' is not one of node, socket"),
    ((HERE, "--start-method=thread", OBEDIENT), "'thread' is not one of spawn, fork"),
    ((HERE, "--max-restarts=-1", OBEDIENT), "--max-restarts: '-1' is not 0 or more"),
    ((HERE, "--join-timeout=soon", OBEDIENT), "'soon' is not a number of seconds"),
    ((HERE, "--label=rack", OBEDIENT), "--label: 'rack' is not KEY=VALUE"),
    ((HERE, "--no-such-flag", OBEDIENT), "unknown flag --no-such-flag"),
    (("--no-such-flag",), "unknown flag --no-such-flag"),
    ((HERE, "--n-nodes=1", OBEDIENT), "unknown flag --n-nodes; did you mean --nnodes?"),
    ((HERE, "--join=1", OBEDIENT), "unknown flag --join; did you mean --join-timeout?"),
    (
        (HERE, "--rdzv=1", OBEDIENT),
        "--rdzv is ambiguous: --rdzv-backend, --rdzv-conf, --rdzv-endpoint, --rdzv-id",
    ),
    ((HERE, "--max-restarts", "-1", OBEDIENT), "--max-restarts: '-1' is not 0 or more"),
    ((HERE, "--role", "-x", OBEDIENT), "--role needs a value; if -x is meant, write --role=-x"),
    ((HERE, "--nnodes"), "--nnodes needs a value"),
    (
        (HERE, "--signals-to-handle=TERM,KILL", OBEDIENT),
        "--signals-to-handle: 'KILL' is not a signal that a program can catch",
    ),
    (
        (HERE, "--signals-to-handle=INT", "--drain-timeout=5", OBEDIENT),
        "--drain-timeout needs SIGTERM among --signals-to-handle",
    ),
    ((HERE,), "no script given ("),
    ((HERE, "missing.py"), "missing.py: no such script in /"),
    ((HERE, "env", "train.py"), "env: no such script in "),
    ((HERE, "--no-python", "no-such-program"), "no-such-program: no such program"),
    ((HERE, "--no-python", "-m", OBEDIENT), "--module and --no-python exclude each other"),
    ((HERE, "--run-path", "-m", OBEDIENT), "--module and --run-path exclude each other"),
    (
        (HERE, "--run-path", "--no-python", OBEDIENT),
        "--no-python and --run-path exclude each other",
    ),
    (
        ("--nnodes=2", OBEDIENT),
        "several nodes need a place to meet: give every node the same --rdzv-endpoint HOST",
    ),
    (
        ("--rdzv-endpoint=http://h:2379", OBEDIENT),
        "--rdzv-endpoint: 'http://h:2379' is not HOST:PORT of a coordinator",
    ),
    (
        ("--rdzv-endpoint=h:0", "--nnodes=2", OBEDIENT),
        "--rdzv-endpoint: 'h:0' is not HOST:PORT of a coordinator",
    ),
    ((HERE, "--rdzv-conf=join_timeout", OBEDIENT), "'join_timeout' is not KEY=VALUE"),
    ((HERE, "--rdzv-conf=join_timeout=x", OBEDIENT), "--rdzv-conf: join_timeout: 'x' is not a"),
    (
        (HERE, "--rdzv-conf=join_timeout=soon", OBEDIENT),
        "--rdzv-conf: join_timeout: 'soon' is not a number of seconds",
    ),
    ((HERE, "--master-port=65536", OBEDIENT), "--master-port: '65536' is not a port"),
    (("--coordinator=a:b", OBEDIENT), "'a:b' is not HOST:PORT"),
    (("--standalone", "--nnodes=2", OBEDIENT), "--standalone is for a single node"),
    ((HERE, "--nnodes=1:2", OBEDIENT), "give every node the same --job-id"),
    ((HERE, "--job-id=", OBEDIENT), "--job-id must have 1 to 255 bytes"),
    ((HERE, "--rdzv-id=", OBEDIENT), "--rdzv-id must have 1 to 255 bytes"),
    ((HERE, "--rdzv-id=a\nb", OBEDIENT), "--rdzv-id: 'a\\nb' is not printable"),
    ((HERE, "--lease=1.4", OBEDIENT), "--lease: '1.4' is not 1.5 to 3600 seconds"),
    ((HERE, "--lease=0", OBEDIENT), "--lease: '0' is not 1.5 to 3600 seconds"),
    ((HERE, "--heartbeat-interval=301", OBEDIENT), "--heartbeat-interval: '301' is not 0.1 to 300"),
    (
        (HERE, "--fence-after=32", "--shutdown-timeout=30", OBEDIENT),
        "--fence-after must be at least 33: --shutdown-timeout + 3",
    ),
    (
        (HERE, "--fence-after=40", "--heartbeat-interval=5", OBEDIENT),
        "--fence-after must be at least 45: --shutdown-timeout + 15",
    ),
]
BAD_VARIABLES = [
    (("PET_NNODES", "abc"), "PET_NNODES: 'abc' is not N or MIN:MAX"),
    (("PET_STANDALONE", "maybe"), "PET_STANDALONE: 'maybe' is neither true nor false"),
    (("PET_LABEL", "rack=1,x"), "PET_LABEL: 'x' is not KEY=VALUE"),
    (("PET_LOG_LEVEL", "loud"), "PET_LOG_LEVEL: 'loud' is not one of debug, info"),
    (("PET_RDZV_CONF", "=1"), "PET_RDZV_CONF: '=1' is not KEY=VALUE"),
    (("PET_RDZV_CONF", "timeout=a"), "PET_RDZV_CONF: timeout: 'a' is not a number"),
    (("PET_RDZV_ENDPOINT", "a:b"), "PET_RDZV_ENDPOINT: 'a:b' is not HOST:PORT"),
    (("PET_LEASE", "1"), "PET_LEASE: '1' is not 1.5 to 3600 seconds"),
    (("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "x"), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: 'x' is not a"),
]
BY_PROCESS = slice(None, None, 12)
"""Of BAD_USAGE, those that are tried on the command itself; the others in this process."""


@pytest.fixture
def nothing_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as the command's own, just before it would start anything."""

    def launch() -> WorkerHost:
        pytest.fail("the command would continue")

    monkeypatch.setattr(WorkerHost, "launch", launch)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(NOT_INHERITED)]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("nothing_started")
@pytest.mark.parametrize(("argv", "words"), BAD_USAGE)
def test_bad_usage_of_node_agent_is_one_line(
    argv: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line that names the flag and the value, before anything is started."""
    with pytest.raises(SystemExit) as ended:
        node_agent.main("node-agent", argv)
    out, err = capsys.readouterr()

    assert (ended.value.code, out) == (2, "")
    assert err.startswith("node-agent: error: ")
    assert words in err
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("nothing_started")
@pytest.mark.parametrize(("variable", "words"), BAD_VARIABLES)
def test_bad_variable_is_one_line(
    variable: tuple[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2 and one line that names the variable and its value."""
    monkeypatch.setenv(*variable)
    with pytest.raises(SystemExit) as ended:
        node_agent.main("node-agent", [OBEDIENT])
    out, err = capsys.readouterr()

    assert (ended.value.code, out) == (2, "")
    assert err.startswith(f"node-agent: error: {words}")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(("argv", "words"), BAD_USAGE[BY_PROCESS])
def test_command_with_bad_usage_leaves_nothing(
    world: World, argv: tuple[str, ...], words: str
) -> None:
    """The same of the command itself, and no process is left."""
    done = world.run(NODE_AGENT, *argv)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("node-agent: error: ")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert world.left() == []


def test_master_port_of_somebody_else_is_refused(world: World) -> None:
    """A port on which another program listens: one line at the start, exit code 2, nothing left."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = world.run(*world.standalone(f"--master-port={port}"))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"node-agent: error: --master-port: {port}: {os.strerror(errno.EADDRINUSE)}\n"
    )
    assert world.left() == []


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--port=x",), "--port: 'x' is not a whole number"),
        (("--port=65536",), "--port: '65536' is not a port"),
        (("--no-such-flag",), "--no-such-flag"),
        (("--host=192.0.2.1", "--port=0"), "cannot listen on 192.0.2.1:0"),
    ],
)
def test_bad_usage_of_coordinator_is_one_line(
    world: World, argv: tuple[str, ...], words: str
) -> None:
    """Exit code 2 and one line on standard error, nothing on standard output."""
    done = world.run(COORDINATOR, *argv)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("coordinator: error: ")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert world.left() == []


def test_second_coordinator_on_a_port_is_refused(world: World) -> None:
    """The port of a running coordinator is not shared: one line names it and the likely reason."""
    port = world.target.rpartition(":")[2]
    done = world.run(COORDINATOR, "--host=127.0.0.1", f"--port={port}")

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"coordinator: error: cannot listen on 127.0.0.1:{port}: ")
    assert "the port is in use" in line


def test_agent_without_a_coordinator_gives_up_with_75(world: World) -> None:
    """It logs at once how long it will try, then that no coordinator answered; exit code 75."""
    world.target = f"127.0.0.1:{world.ports.reserve()}"
    agent = world.agent("a", "--coordinator-timeout=1")

    assert agent.wait() == 75
    (first,) = agent.events("coordinator_not_reached")
    assert first["then"] == "no workers run yet; retrying for 1 s (--coordinator-timeout)"
    why = f"no coordinator answered for 1 s ({world.target})"
    hint = f"start one there: rallypoint coordinator --port {world.target.rpartition(':')[2]}"
    assert first["hint"] == hint
    assert agent.said() == [f"node-agent: {why}; {hint}"]
    assert world.left() == []


def test_agent_with_another_specification_is_refused(world: World) -> None:
    """It ends with 2 and the names and both values of what differs; the job runs on."""
    first = world.agent("a")
    (worker,) = world.mailbox.workers(1)
    second = world.agent("b", "--max-restarts=7", nnodes="1:2")

    assert second.wait() == 2
    (line,) = second.said()
    assert "--nnodes is 1:1 there and 1:2 here; --max-restarts is 0 there and 7 here" in line
    assert line.count(" there and ") == 2
    worker.tell("exit", "0")
    assert first.wait() == 0
    assert len(world.mailbox.started()) == 1


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--node-name=a", "another agent of job {job} is attached as node a"),
        ("--node-rank=3", "node a of job {job} already has --node-rank 3; choose another one"),
        ("--local-addr=192.0.2.7", "node b has the address 192.0.2.7, but a has 127.0.0.1"),
    ],
)
def test_agent_that_cannot_join_is_refused(world: World, flag: str, words: str) -> None:
    """A name, rank or address that does not go with the job's nodes: exit code 2, and which."""
    first = world.agent("a", "--node-rank=3", nnodes="2")
    first.wait_event("coordinator_reached")
    second = world.agent("b", flag, nnodes="2")

    assert second.wait() == 2
    (line,) = second.said()
    assert words.format(job=world.job_id) in line
    assert first.is_running()


def test_crash_loop_ends_the_job_early(world: World) -> None:
    """The same early death five times in a row is a verdict, whatever --max-restarts allows.

    The first two restarts are immediate, the next two wait for the pause and for twice the pause.
    """
    script = Path(world.folder, "dies.py")
    script.write_text("import no_such_thing")
    flags = ("--max-restarts=256", "--restart-backoff=0.3")
    agent = world.agent("a", *flags, nproc=2, script=[str(script)])
    agent.wait_event("coordinator_reached")
    seen = world.jobs.history(world.job_id)

    assert agent.wait() == 1
    assert "ModuleNotFoundError: No module named 'no_such_thing'" in agent.stderr()
    assert "the same failure 5 times in a row, each within 10 s of the start" in agent.stderr()
    assert [event["round"] for event in agent.events("round_began")] == [1, 2, 3, 4, 5]
    pauses = {
        job.restart_count: job.waiting.time_left.ToTimedelta().total_seconds()
        for job in reversed(seen)
        if job.waiting.kind == job_pb2.WAIT_KIND_BACKOFF
    }
    assert sorted(pauses) == [3, 4]
    assert pauses[3] <= 0.375 < pauses[4] <= 0.75  # give or take a quarter
    job = seen[-1]
    assert (job.outcome, job.restart_count) == (job_pb2.OUTCOME_FAILED, 4)
    assert job.verdict.consequence == verdict_pb2.VERDICT_CONSEQUENCE_CRASH_LOOP


def test_program_that_cannot_be_executed_ends_the_job(world: World) -> None:
    """Found only at the start: the verdict names node, path and reason, and no restart is used."""
    program = Path(world.folder, "train")
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    agents = [world.agent("a", "--max-restarts=3", nnodes="2")]
    flags = ("--no-python", "--allow-different-programs", "--max-restarts=3")
    agents.append(world.agent("b", *flags, nnodes="2", script=[str(program)]))

    assert [agent.wait() for agent in agents] == [1, 1]
    for agent in agents:
        cause = next(line for line in agent.said() if line.startswith("  cause"))
        assert "node b could not start its workers: " in cause
        assert f"cannot run {program}: {os.strerror(errno.ENOENT)}; no restart can cure" in cause
        assert [event["round"] for event in agent.events("round_began")] == [1]
    assert world.left() == []


def test_joining_takes_no_longer_than_its_timeout(world: World) -> None:
    """A job that stays short of its minimum fails, and says how many nodes there were."""
    agent = world.agent("a", "--join-timeout=0.5", nnodes="2")

    assert agent.wait() == 1
    assert "only 1 node was ready after 0.5 s; 2 are required (--nnodes)" in agent.stderr()
    assert not world.mailbox.started()


def test_name_that_nobody_knows_is_called_so(world: World) -> None:
    """A typing error in the coordinator's name reads otherwise than a coordinator that is down."""
    flags = ("--join-timeout=3", "--log-level=warning")
    agent = world.start("agent", [NODE_AGENT, "--coordinator=no.such.invalid:7", *flags, OBEDIENT])
    why = agent.wait_event("coordinator_not_reached")["why"]

    assert agent.wait() == 75
    assert why == "no.such.invalid cannot be resolved: is it spelled right?"
