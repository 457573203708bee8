"""Which words of a command line are flags, however spelled, and where the program begins."""

from __future__ import annotations

import pytest

from rallypoint.cli.flags.argv import BadArgument, split_argv
from rallypoint.cli.flags.flag import Flag

SHORTENED = frozenset({"--nnodes", "--node-rank", "--nproc-per-node", "--no-python", "--redirects"})


def known() -> dict[str, Flag]:
    """Flags of every kind; `--node-name`, `--job-id` and `--no-grow` cannot be shortened."""
    values = (("--nnodes",), ("--node-rank",), ("--nproc-per-node",), ("--node-name",))
    flags = [
        *(Flag(names=names, help="", parse=str) for names in values),
        *(
            Flag(names=names, help="", parse=str)
            for names in (("-r", "--redirects"), ("--job-id",))
        ),
        *(Flag(names=names, help="") for names in (("-m", "--module"), ("--no-python",))),
        Flag(names=("--no-grow",), help=""),
    ]
    return {name: flag for flag in flags for name in flag.names}


def spell(name: str, value: str | None) -> str:
    return name if value is None else f"{name}={value}"


@pytest.mark.parametrize(
    ("line", "flags", "program"),
    [
        ("", "", ""),
        ("a.py", "", "a.py"),
        ("a.py --nnodes 2 -m -- --nope --a_b", "", "a.py --nnodes 2 -m -- --nope --a_b"),
        ("--nnodes 2 a.py", "--nnodes=2", "a.py"),
        ("--nnodes=2 a.py", "--nnodes=2", "a.py"),
        ("--nnodes= a.py", "--nnodes=", "a.py"),
        ("--nnodes=a=b a.py", "--nnodes=a=b", "a.py"),
        ("--nproc_per_node 2 --node_rank=1 a_b.py", "--nproc-per-node=2 --node-rank=1", "a_b.py"),
        ("--nproc_per-node=a_b x", "--nproc-per-node=a_b", "x"),
        ("--job-id x --job_id y a", "--job-id=x --job-id=y", "a"),
        ("-r3 a.py", "--redirects=3", "a.py"),
        ("-r 3 a.py", "--redirects=3", "a.py"),
        ("-r=3 a.py", "--redirects=3", "a.py"),
        ("-redirects 3 a.py", "--redirects=edirects", "3 a.py"),
        ("-r0:1,1:2 a.py", "--redirects=0:1,1:2", "a.py"),
        ("-m a.b -x", "--module", "a.b -x"),
        ("-mr3 a", "--module --redirects=3", "a"),
        ("-mr 3 a", "--module --redirects=3", "a"),
        ("--no-python --no-grow true", "--no-python --no-grow", "true"),
        ("--nproc 2 a", "--nproc-per-node=2", "a"),
        ("--nproc_p=2 a", "--nproc-per-node=2", "a"),
        ("--no- a", "--no-python", "a"),
        ("--node 1 a", "--node-rank=1", "a"),
        ("--red 3 a", "--redirects=3", "a"),
        ("--nnodes -1 a", "--nnodes=-1", "a"),
        ("--nnodes -.5 a", "--nnodes=-.5", "a"),
        ("--nnodes=-x a", "--nnodes=-x", "a"),
        ("--nnodes - a", "--nnodes=-", "a"),
        ("-- --nnodes 2", "", "--nnodes 2"),
        ("--nnodes 2 -- a -- b", "--nnodes=2", "a -- b"),
        ("- a", "", "- a"),
    ],
)
def test_line_is_split_where_the_program_begins(line: str, flags: str, program: str) -> None:
    """Our flags come out in one spelling, whatever theirs was; the program's words as they were."""
    split = split_argv(line.split(), known(), SHORTENED)

    assert (
        [spell(given.flag.name, given.value) for given in split.flags],
        list(split.program),
    ) == (
        flags.split(),
        program.split(),
    )


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--nope", "unknown flag --nope"),
        ("--nope a.py", "unknown flag --nope"),
        ("--nope=1 a.py", "unknown flag --nope"),
        ("--n-nodes 2 a.py", "unknown flag --n-nodes; did you mean --nnodes?"),
        (
            "--nprocs_per_node 2 a.py",
            "unknown flag --nprocs_per_node; did you mean --nproc-per-node?",
        ),
        ("--job x a.py", "unknown flag --job; did you mean --job-id?"),
        ("--node-n x a.py", "unknown flag --node-n; did you mean --node-name?"),
        ("--no-g x a.py", "unknown flag --no-g; did you mean --no-grow?"),
        ("--no a.py", "--no is ambiguous: --no-python, --node-rank"),
        ("--n=1 a.py", "--n is ambiguous: --nnodes, --no-python, --node-rank, --nproc-per-node"),
        ("-x a.py", "unknown flag -x"),
        ("-1 a.py", "unknown flag -1"),
        ("-mx a.py", "unknown flag -mx"),
        ("--nnodes", "--nnodes needs a value"),
        ("--module=1 a", "--module takes no value"),
        ("-m=1 a", "-m takes no value"),
        ("-mr", "-r needs a value"),
        ("--nproc", "--nproc needs a value"),
        ("--nnodes -x a.py", "--nnodes needs a value; if -x is meant, write --nnodes=-x"),
        ("--nnodes -- a.py", "--nnodes needs a value; if -- is meant, write --nnodes=--"),
        ("--nnodes --no-python a", "--nnodes needs a value; if --no-python is meant, write "),
    ],
)
def test_bad_word_is_named(line: str, text: str) -> None:
    """The first one, as it was typed, with what may have been meant."""
    with pytest.raises(BadArgument) as refused:
        split_argv(line.split(), known(), SHORTENED)

    assert str(refused.value).startswith(text)
