"""The installed torchrun's own parser, asked about the same command lines as ours."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from rallypoint.cli.commands.agent.command import build_parser
from rallypoint.cli.flags.torchrun_names import TORCHRUN_FLAGS

ASKS_TORCHRUN = """
import json, os, sys
from torch.distributed.run import get_args_parser

names = [name for name in get_args_parser()._option_string_actions if name.startswith("--")]
found = []
for line, variables in json.load(sys.stdin):
    os.environ.update(variables)
    try:
        found.append(vars(get_args_parser().parse_args(line)))
    except SystemExit:
        found.append(None)
    for name in variables:
        del os.environ[name]
json.dump([names, found], sys.stdout)
"""
# Shortened here beyond the first dash: to older argparse `--nproc` is two flags, `--nproc-per-node`
# and `--nproc_per_node`. Ours takes it, as newer ones do.
LINES: tuple[tuple[str, dict[str, str]], ...] = (
    ("a.py", {}),
    ("a.py --role x -m --nnodes", {}),
    ("--role x a.py", {}),
    ("--role=x a.py --role=y", {}),
    ("--rol x a.py", {}),
    ("--max_restarts 3 a.py b_c --d_e", {}),
    ("--max_r=3 --no-p prog", {}),
    ("--max-restarts=3 -m a.b", {}),
    ("-m --role m a.b -m", {}),
    ("--standa a.py - x", {}),
    ("-- a.py --role x", {}),
    ("--role x -- a.py -- x", {}),
    ("--rdzv_endp=h:1 --rdzv_i=7 a.py", {}),
    ("--rdzv-id= a.py", {}),
    ("--rdzv_id a=b a.py", {}),
    ("--node_r 2 --master_p 3 --master-a h a.py", {}),
    ("--local_a l a.py", {}),
    ("-r 3 -t3 a.py -t 9", {}),
    ("-r0:1,1:2 --tee=3 a.py", {}),
    ("-mt3 a.b", {}),
    ("--red 1 --te 2 --log_d x a.py", {}),
    ("--duplicate_stdout a,b --local_ranks 0,1 a.py", {}),
    ("--run-p --virtual-l /a.py b", {}),
    ("--start-m fork --event_l console --signals_to SIGTERM,SIGINT a.py", {}),
    ("--numa-b node --monitor-i 0.5 --nproc-p auto --shutdown_t 7 a.py", {}),
    ("--duplicate x a.py", {}),
    ("--s x a.py", {}),
    ("--no a.py", {}),
    ("--m 3 a.py", {}),
    ("--rdzv_e", {}),
    ("--nope a.py", {}),
    ("--nope=1 a.py", {}),
    ("-z a.py", {}),
    ("--role", {}),
    ("--role -x a.py", {}),
    ("--standalone=1 a.py", {}),
    ("", {}),
    ("a.py", {"PET_ROLE": "x", "PET_MAX_RESTARTS": "2", "PET_MODULE": "1"}),
    ("--role y --max-restarts=1 a.py", {"PET_ROLE": "x", "PET_MAX_RESTARTS": "2"}),
    ("a.py --role y", {"PET_ROLE": "x"}),
    ("a.py", {"PET_STANDALONE": "0", "PET_NO_PYTHON": "1"}),
    ("--standalone a.py", {"PET_STANDALONE": "0"}),
    ("a.py", {"PET_RDZV_ENDPOINT": "h:1", "PET_RDZV_ID": "7", "PET_NODE_RANK": "2"}),
    ("a.py", {"PET_MASTER_ADDR": "h", "PET_MASTER_PORT": "3", "PET_LOCAL_ADDR": "l"}),
    ("a.py", {"PET_MAX_RESTARTS": "x"}),
    ("a.py", {"PET_ROLE": "x", "ROLE": "y", "PET_TRAINING_SCRIPT": "z"}),
)
SAME = ("role", "max_restarts", "module", "no_python", "standalone", "local_addr")
OPEN = {"rdzv_id": "none", "rdzv_endpoint": "", "node_rank": 0, "master_port": None}
"""What has no value here unless one was given, and torchrun's default for it."""


@pytest.fixture(scope="module")
def torchrun() -> Any:
    """What torchrun calls its flags, and what it makes of every line."""
    asked = json.dumps([(line.split(), variables) for line, variables in LINES])
    command = [sys.executable, "-c", ASKS_TORCHRUN]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_names_are_those_of_torchrun(torchrun: Any) -> None:
    """All of them and no other, with dashes."""
    names, _ = torchrun

    assert {name.replace("_", "-") for name in names} == TORCHRUN_FLAGS


def test_every_flag_of_torchrun_is_ours(torchrun: Any) -> None:
    """By its name; underscores and variables follow from that."""
    known = {name for flag in build_parser().flags() for name in flag.names}

    assert {name.replace("_", "-") for name in torchrun[0]} <= known


@pytest.mark.parametrize("index", range(len(LINES)), ids=[line or "-" for line, _ in LINES])
def test_line_means_what_it_means_to_torchrun(torchrun: Any, index: int) -> None:
    """The same program with the same words, the same values, and the same lines refused."""
    line, variables = LINES[index]
    theirs = torchrun[1][index]
    try:
        args = build_parser().read(line.split(), variables)
    except SystemExit as refused:
        assert (refused.code, theirs) == (2, None)
        return
    ours = {name: getattr(args, name) for name in SAME}
    ours |= {name: getattr(args, name) for name in OPEN if name in args.given}

    assert theirs is not None
    assert args.script == theirs["training_script"]
    assert args.args == theirs["training_script_args"]
    assert {name: theirs[name] for name in ours} == ours
    assert {name: theirs[name] for name in OPEN if name not in args.given} == {
        name: default for name, default in OPEN.items() if name not in args.given
    }
