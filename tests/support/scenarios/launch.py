"""What workers of one node are started as: command line, environment, ranks."""

from __future__ import annotations

import re
import sys

from rallypoint.cli.commands.agent.command import build_parser
from support.torchrun.launchers import Launcher, Ran, scenario

NAMES = frozenset(
    """
    RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE GROUP_WORLD_SIZE
    ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
    TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE
    TORCHELASTIC_SIGNALS_TO_HANDLE TORCH_NCCL_ASYNC_ERROR_HANDLING
    """.split()
)
PLACE = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE".split()
ROLE = "ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE".split()
FLAGS = """
    --nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --standalone
    --max-restarts --monitor-interval --start-method --event-log-handler --role --module --no-python
    --run-path --log-dir --redirects --tee --local-ranks-filter --duplicate-stdout-filters
    --duplicate-stderr-filters --node-rank --master-addr --master-port --local-addr --logs-specs
    --numa-binding --signals-to-handle --shutdown-timeout --virtual-local-rank
""".split()
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def added(ran: Ran) -> set[str]:
    """Return the names that workers have and launchers had not, without those with our prefix."""
    parent = ran.nodes[0].env
    names = {name for told in ran.told for name in told.env if name not in parent}
    return {name for name in names if not name.startswith("RALLYPOINT_")}


def ours(ran: Ran) -> set[str]:
    """Return the names without our prefix that only node-agent gives."""
    return ran.expected(
        torchrun=set(),
        node_agent={"TORCH_WORKER_SERVER_SOCKET"},
        why="a worker that opens torch's control-plane server there can be asked for its stacks",
    )


@scenario("--help")
def every_flag_is_known(ran: Ran) -> None:
    """torchrun's help names all of its flags; ours the basic ones, and where all of them are."""
    assert ran.codes == [0]
    named = {flag.replace("_", "-") for flag in re.findall(r"--[a-z_-]+\w", " ".join(ran.out))}
    if ran.launcher is Launcher.TORCHRUN:
        assert named - {*FLAGS} == {"--help", "--redirect"}  # the help of --tee says --redirect
    else:
        assert named >= {"--nnodes", "--nproc-per-node", "--max-restarts", "--help-all"}
        named = {flag.name for flag in build_parser().flags()}
    assert named >= {*FLAGS}


@scenario("--nproc-per-node 2 tell.py one 'two words'")
def single_node(ran: Ran) -> None:
    """Two workers run `python -u tell.py` in separate sessions, with exactly these variables."""
    assert ran.codes == [0]
    assert ran.out == []
    assert ran.values(*PLACE) == ["0 0 2 2 0 1", "1 1 2 2 0 1"]
    assert ran.values(*ROLE) == ["default 0 2", "default 1 2"]
    assert added(ran) == NAMES | {"OMP_NUM_THREADS"} | ours(ran)
    assert {value for told in ran.told for value in (told.env["OMP_NUM_THREADS"],)} == {"1"}
    armed = ran.expected(
        torchrun=[], node_agent=[61], why="a worker writes its stacks there when its agent asks"
    )
    for told in ran.told:
        assert told.command == [sys.executable, "-u", "tell.py", "one", "two words"]
        assert told.session == told.pid
        assert told.files == [0, 1, 2, *armed]
        assert told.cwd == str(ran.folder)
        assert told.env["TORCHELASTIC_RESTART_COUNT"] == "0"
        assert told.env["TORCHELASTIC_MAX_RESTARTS"] == "0"
        assert told.env["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
        assert told.env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
        assert told.env["TORCHELASTIC_ERROR_FILE"].endswith(f"/{told.rank}/error.json")
        assert told.env["TORCHELASTIC_USE_AGENT_STORE"] == ran.expected(
            torchrun="True",
            node_agent="False",
            why="rank 0 hosts a new store in every round, without keys of an earlier one",
        )
    assert len(set(ran.values("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))) == 1


@scenario("tell.py")
def one_worker(ran: Ran) -> None:
    """A single worker may use all processors: OMP_NUM_THREADS stays unset."""
    assert ran.codes == [0]
    assert ran.values(*PLACE) == ["0 0 1 1 0 1"]
    assert added(ran) == NAMES | ours(ran)
    assert (ran.err == "") == ran.expected(
        torchrun=True, node_agent=False, why="the log says when a round begins and with which ranks"
    )


@scenario(
    "--nproc-per-node 2 tell.py",
    env={"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "RANK": "77", "MINE": "ü"},
)
def operators_environment(ran: Ran) -> None:
    """What the operator has set is passed on, except for what the launcher decides."""
    names = ("RANK", "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "MINE")
    (parent,) = (dict(node.env) for node in ran.nodes)
    del parent["RANK"]

    assert all(parent.items() <= told.env.items() for told in ran.told)
    assert ran.values(*names) == ["0 3 0 ü", "1 3 0 ü"]


@scenario(
    "tell.py",
    prefix="bash -c 'umask 027; ulimit -Sn 300; ulimit -c 0; exec nice -n 3 \"$@\"' - "
    "taskset -c @processor",
)
def limits(ran: Ran) -> None:
    """Umask, priority, resource limits and processors are inherited."""
    (told,) = ran.told
    inherited = {**told.limits}

    assert inherited.pop("files")[0] == 300
    assert inherited == {
        "nice": ran.machine.limits["nice"] + 3,
        "umask": 0o27,
        "oom": ran.machine.limits["oom"],
        "core": [0, 0],
        "processors": ran.machine.processors[:1],
    }


@scenario("--standalone --rdzv-id mine --nproc-per-node 2 tell.py")
def standalone(ran: Ran) -> None:
    """A single node needs no rendezvous elsewhere, and its run a fresh name."""
    assert ran.codes == [0]
    assert ran.values(*PLACE) == ["0 0 2 2 0 1", "1 1 2 2 0 1"]
    assert ran.values("TORCHELASTIC_RUN_ID")[0] not in ("", "-", "none", "mine")


@scenario("--rdzv-id mine tell.py")
def name_of_a_single_node(ran: Ran) -> None:
    """A name alone makes no rendezvous."""
    assert ran.codes == [0]
    assert (ran.values("TORCHELASTIC_RUN_ID") == ["mine"]) == ran.expected(
        torchrun=False, node_agent=True, why="who names a job wants it to have that name"
    )


@scenario("--nproc-per-node=2 -m package.tell one")
def module(ran: Ran) -> None:
    """`-m` runs a module, looked for in the working directory."""
    assert ran.codes == [0]
    assert [told.command for told in ran.told] == [
        [sys.executable, "-u", "-m", "package.tell", "one"]
    ] * 2


@scenario("--no-python @python tell.py one")
def no_python(ran: Ran) -> None:
    """`--no-python` runs the program itself."""
    assert ran.codes == [0]
    assert [told.command for told in ran.told] == [[sys.executable, "tell.py", "one"]]


C_LIBRARYS_OWN = 1 << 31 | 1 << 32
"""Signals 32 and 33, ignored below a `make` that uses posix_spawn; no program can change that."""


@scenario("--no-python cat /proc/self/status", prefix="env --default-signal")
def signals_at_the_start(ran: Ran) -> None:
    """A program of $PATH begins with no signal blocked or ignored."""
    assert ran.codes == [0]
    facts = dict(line.split(":\t", 1) for line in ran.out if ":\t" in line)
    assert int(facts["SigBlk"], 16) == 0
    assert int(facts["SigIgn"], 16) & ~C_LIBRARYS_OWN == 0


@scenario("--nproc-per-node 2 --no-python ./tell.sh 'a  b' '' -x")
def bash_script(ran: Ran) -> None:
    """A shell script is a program like any other."""
    assert ran.codes == [0]
    assert [(ran.folder / f"shell-{rank}.txt").read_text() for rank in (0, 1)] == [
        f"rank {rank} of 2: a  b  -x\n" for rank in (0, 1)
    ]
    assert [told.argv for told in ran.told] == [["a  b", "", "-x"]] * 2


@scenario("--run-path tell.py one two")
def run_path(ran: Ran) -> None:
    """`--run-path` runs the script as `__main__` of an interpreter that is already there."""
    assert ran.codes == [0]
    assert ran.values(*PLACE) == ["0 0 1 1 0 1"]
    assert [(told.main, told.argv) for told in ran.told] == [("__main__", ["one", "two"])]


@scenario("--nproc-per-node 2 package one")
def folder_with_a_main(ran: Ran) -> None:
    """What Python runs as a script may be a folder."""
    assert ran.codes == [0]
    assert [told.argv for told in ran.told] == [["one"]] * 2


@scenario("tell.py", env={"PYTHON_EXEC": "./python.sh", "PET_NPROC_PER_NODE": "2"})
def python_exec(ran: Ran) -> None:
    """$PYTHON_EXEC is the interpreter of the workers."""
    assert ran.codes == [0]
    assert sorted(path.name for path in ran.folder.glob("interpreter-*")) == [
        "interpreter-0.txt",
        "interpreter-1.txt",
    ]


@scenario(
    "package.tell one",
    env={
        "PET_NPROC_PER_NODE": "2",
        "PET_NNODES": "1:1",
        "PET_ROLE": "judge",
        "PET_MAX_RESTARTS": "4",
        "PET_MODULE": "1",
    },
)
def pet_variables(ran: Ran) -> None:
    """A flag that is left out is taken from PET_<FLAG>."""
    assert ran.codes == [0]
    assert ran.values(*ROLE, "TORCHELASTIC_MAX_RESTARTS") == ["judge 0 2 4", "judge 1 2 4"]


@scenario(
    "--nproc-per-node 1 --role line tell.py",
    env={"PET_NPROC_PER_NODE": "3", "PET_ROLE": "judge", "PET_MODULE": "0", "PET_NNODES": "1"},
)
def command_line_wins(ran: Ran) -> None:
    """A flag that is there is not taken from the environment."""
    assert ran.codes == [0]
    assert ran.values(*ROLE) == ["line 0 1"]


@scenario("tell.py", env={"PET_STANDALONE": "true"})
def pet_switch_that_is_no_number(ran: Ran) -> None:
    """A switch is on or off in the environment."""
    why = "a word that can only be meant one way is taken for what it means"
    assert ran.codes == [ran.expected(torchrun=1, node_agent=0, why=why)]
    assert len(ran.told) == ran.expected(torchrun=0, node_agent=1, why=why)


@scenario("--nproc-per-node auto tell.py", env=NO_GPU)
def workers_auto(ran: Ran) -> None:
    """Without an accelerator `auto` means a worker for each processor."""
    assert ran.codes == [0]
    assert len(ran.told) == len(ran.machine.processors)


@scenario("--nproc-per-node cpu tell.py", env=NO_GPU)
def workers_cpu(ran: Ran) -> None:
    """`cpu` means a worker for each processor."""
    assert ran.codes == [0]
    assert len(ran.told) == len(ran.machine.processors)


@scenario(
    "--nproc-per-node 2 tell.py '' 'shard-${local_rank}.bin' '$HOME' -- --nnodes 7 -m --role=x"
)
def arguments_of_the_script(ran: Ran) -> None:
    """What follows the script is its own, empty words and flags too, with `${local_rank}` filled
    in."""
    assert ran.codes == [0]
    assert [told.argv for told in ran.told] == [
        ["", f"shard-{rank}.bin", "$HOME", "--", "--nnodes", "7", "-m", "--role=x"]
        for rank in (0, 1)
    ]


@scenario("--nproc-per-node 2 -- tell.py --role x")
def double_dash(ran: Ran) -> None:
    """`--` ends the launcher's flags."""
    assert ran.codes == [0]
    assert [told.argv for told in ran.told] == [["--role", "x"]] * 2


@scenario("--nproc-per-node 9 --nproc_per_node 2 --max_restarts=3 --no_python @python tell.py")
def underscores(ran: Ran) -> None:
    """`--a_b` is `--a-b`; what comes last counts."""
    assert ran.codes == [0]
    assert ran.values("WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS") == ["2 3", "2 3"]


@scenario("--nproc-per 2 --max-res 3 --ro short tell.py --ro")
def abbreviations(ran: Ran) -> None:
    """A flag may be cut short where it stays clear which one is meant."""
    assert ran.codes == [0]
    assert ran.values(*ROLE, "TORCHELASTIC_MAX_RESTARTS") == ["short 0 2 3", "short 1 2 3"]
    assert [told.argv for told in ran.told] == [["--ro"]] * 2


@scenario(
    "--monitor-interval 0.5 --start-method fork --event-log-handler null --logs-specs default "
    "--local-addr 127.0.0.1 --shutdown-timeout 5 --signals-to-handle SIGTERM,SIGUSR1 tell.py"
)
def flags_without_effect_here(ran: Ran) -> None:
    """What has nothing to do in this run is taken; workers see which signals are handled."""
    assert ran.codes == [0]
    assert ran.values("TORCHELASTIC_SIGNALS_TO_HANDLE") == ["SIGTERM,SIGUSR1"]


@scenario("tell.py stdin", prefix="""bash -c 'exec "$@" < <(echo one line; echo and another)' -""")
def standard_input(ran: Ran) -> None:
    """Workers inherit standard input."""
    assert ran.codes == [0]
    assert [told.stdin for told in ran.told] == ["one line\nand another\n"]


@scenario("- one", prefix="bash -c 'cat tell.py | \"$@\"' -")
def script_of_standard_input(ran: Ran) -> None:
    """`-` is a script that comes from standard input, as for Python itself."""
    assert ran.codes == [0]
    assert [told.argv for told in ran.told] == [["one"]]


@scenario("/dev/stdin one", prefix="bash -c 'cat tell.py | \"$@\"' -")
def script_that_is_no_plain_file(ran: Ran) -> None:
    """A script is whatever Python can read."""
    assert ran.codes == [0]
    assert [told.argv for told in ran.told] == [["one"]]


@scenario("tell.py", env={"LOGLEVEL": "ERROR"})
def quiet(ran: Ran) -> None:
    """A launcher that is to speak of errors only says nothing of a success."""
    assert ran.codes == [0]
    assert (ran.out, ran.err) == ([], "")


@scenario("tell.py", prefix="@python terminal.py")
def terminal(ran: Ran) -> None:
    """Workers have the launcher's terminal, so they may draw on it."""
    assert ran.codes == [0]
    assert [told.terminals for told in ran.told] == [[True, True, True]]


@scenario("--virtual-local-rank --nproc-per-node 2 tell.py 'number ${local_rank}'")
def virtual_local_rank(ran: Ran) -> None:
    """Every worker has local rank 0 and sees one device; `${local_rank}` stays what it is."""
    assert ran.codes == [0]
    assert [told.argv for told in ran.told] == [["number 0"], ["number 1"]]
    assert ran.values("LOCAL_RANK", "CUDA_VISIBLE_DEVICES") == ["0 0", "0 1"]


@scenario("--virtual-local-rank --nproc-per-node 2 tell.py", env={"CUDA_VISIBLE_DEVICES": "5, 7"})
def virtual_local_rank_of_some_devices(ran: Ran) -> None:
    """The operator's choice of devices is what the workers share."""
    assert ran.codes == [0]
    assert ran.values("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES") == ["0 0 5", "1 0 7"]


@scenario("tell.py", env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
def timer(ran: Ran) -> None:
    """With the watchdog turned on, workers find the path of its pipe in a variable."""
    assert ran.codes == [0]
    assert added(ran) == NAMES | {"TORCHELASTIC_TIMER_FILE"} | ours(ran)
