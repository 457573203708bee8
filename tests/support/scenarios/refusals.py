"""Command lines that start nothing: the exit code, and what the last line names."""

from __future__ import annotations

from support.scenarios.launch import NO_GPU
from support.torchrun.launchers import Ran, scenario

USAGE = "a mistake on the command line ends with 2, as any other command's, and with one line"
SCRIPT = "what cannot be started is a mistake on the command line, known before anything is started"


@scenario("--start-method walk tell.py")
def unknown_choice(ran: Ran) -> None:
    """Where there is a choice, another word is refused; nothing is started."""
    assert ran.codes == [2]
    assert "'walk'" in ran.err.splitlines()[-1]
    assert ran.told == []


@scenario("--numa-binding node tell.py", env=NO_GPU)
def binding_without_gpus(ran: Ran) -> None:
    """There is nothing to be near to; nothing is started."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=USAGE)]
    assert ran.told == []


@scenario("tell.py", env={"PET_STANDALONE": "perhaps"})
def pet_switch_that_says_nothing(ran: Ran) -> None:
    """Another word is refused, and nothing is started."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=USAGE)]
    assert "'perhaps'" in ran.err
    assert ran.told == []


@scenario("--nproc-per-node gpu tell.py", env=NO_GPU)
def workers_gpu_where_there_is_none(ran: Ran) -> None:
    """Nothing is started, and the report says what is missing."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=USAGE)]
    assert "cuda is not available" in ran.err.lower()
    assert ran.told == []


@scenario("--nproc-per-node many tell.py")
def workers_unknown(ran: Ran) -> None:
    """A word that is no kind of device is refused by name."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=USAGE)]
    assert "many" in ran.err
    assert ran.told == []


@scenario("--virtual-local-rank --nproc-per-node 2 tell.py", env={"CUDA_VISIBLE_DEVICES": "5"})
def virtual_local_rank_of_too_few_devices(ran: Ran) -> None:
    """Two workers cannot share one device: nothing is started."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=USAGE)]
    assert "CUDA_VISIBLE_DEVICES=5" in ran.err
    assert ran.told == []


@scenario("missing.py")
def missing_script(ran: Ran) -> None:
    """The name is in what is printed."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=SCRIPT)]
    assert "missing.py" in ran.err


@scenario("--no-python ./missing.sh")
def missing_program(ran: Ran) -> None:
    """The name is in what is printed."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=SCRIPT)]
    assert "./missing.sh" in ran.err


@scenario("--no-such-flag tell.py")
def unknown_flag(ran: Ran) -> None:
    """It is named, and nothing is started."""
    assert ran.codes == [2]
    assert "--no-such-flag" in ran.err.splitlines()[-1]
    assert ran.told == []


@scenario("--nproc-per-node 2")
def no_script(ran: Ran) -> None:
    """What is missing is named."""
    assert ran.codes == [2]
    assert "script" in ran.err.splitlines()[-1]


@scenario("--nnodes 2:1 tell.py")
def more_nodes_at_least_than_at_most(ran: Ran) -> None:
    """It cannot be."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=USAGE)]
    assert ran.told == []


@scenario("--no-python -m tell.py")
def program_and_module_at_once(ran: Ran) -> None:
    """It cannot be."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=USAGE)]
    assert "--module" in ran.err.splitlines()[-1]
    assert ran.told == []


@scenario("--max-restarts -1 tell.py")
def negative_restarts(ran: Ran) -> None:
    """It cannot be."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=USAGE)]
    assert ran.told == []


@scenario("--signals-to-handle SIGTERM,SIGNOPE tell.py")
def unknown_signal(ran: Ran) -> None:
    """The name is in what is printed."""
    why = "torchrun ignores a signal in its list that it cannot handle"

    assert ran.codes == [ran.expected(torchrun=0, node_agent=2, why=why)]
    assert "SIGNOPE" in ran.err


@scenario("--logs-specs nobodys tell.py")
def unknown_logs_specs(ran: Ran) -> None:
    """The name is in what is printed, and nothing is started."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=USAGE)]
    assert "nobodys" in ran.err.splitlines()[-1]
    assert ran.told == []
