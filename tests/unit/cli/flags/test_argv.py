"""Which words of a command line are flags, however spelt, and where the program begins."""

from __future__ import annotations

import argparse

import pytest

from rallypoint.cli.words import BadWord, read_line

SHORTENED = frozenset({"--nnodes", "--node-rank", "--nproc-per-node", "--no-python", "--redirects"})


def known() -> dict[str, argparse.Action]:
    """Flags of every kind; `--node-name` and `--no-grow` are of those that are never shortened."""
    parser = argparse.ArgumentParser()
    for name in ("--nnodes", "--node-rank", "--nproc-per-node", "--node-name"):
        parser.add_argument(name)
    parser.add_argument("-r", "--redirects")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("--no-python", action="store_true")
    parser.add_argument("--no-grow", action="store_true")
    parser.add_argument("--job-id", "--run-id")
    return parser._option_string_actions


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
        ("--run-id x --job_id y a", "--job-id=x --job-id=y", "a"),
        ("-r3 a.py", "--redirects=3", "a.py"),
        ("-r 3 a.py", "--redirects=3", "a.py"),
        ("-r=3 a.py", "--redirects=3", "a.py"),
        ("-redirects 3 a.py", "--redirects=edirects", "3 a.py"),
        ("-r0:1,1:2 a.py", "--redirects=0:1,1:2", "a.py"),
        ("-m a.b -x", "--module", "a.b -x"),
        ("-mr3 a", "--module --redirects=3", "a"),
        ("-mr 3 a", "--module --redirects=3", "a"),
        ("--module=1 a", "--module=1", "a"),
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
    found = read_line(line.split(), known(), SHORTENED)

    assert ([given.word() for given in found.flags], list(found.program)) == (
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
        ("--no a.py", "--no may be --no-python, --node-rank"),
        ("--n=1 a.py", "--n may be --nnodes, --no-python, --node-rank, --nproc-per-node"),
        ("-x a.py", "unknown flag -x"),
        ("-1 a.py", "unknown flag -1"),
        ("-mx a.py", "unknown flag -mx"),
        ("--nnodes", "--nnodes needs a value"),
        ("-mr", "-r needs a value"),
        ("--nproc", "--nproc needs a value"),
        ("--nnodes -x a.py", "--nnodes needs a value; if -x is meant, write --nnodes=-x"),
        ("--nnodes -- a.py", "--nnodes needs a value; if -- is meant, write --nnodes=--"),
        ("--nnodes --no-python a", "--nnodes needs a value; if --no-python is meant, write "),
    ],
)
def test_word_without_sense_is_named(line: str, text: str) -> None:
    """The first one, as it was typed, with what may have been meant."""
    with pytest.raises(BadWord) as refused:
        read_line(line.split(), known(), SHORTENED)

    assert str(refused.value).startswith(text)
