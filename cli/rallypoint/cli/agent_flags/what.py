"""What every worker runs."""

from __future__ import annotations

import argparse
import os
import shutil

from rallypoint.cli.flags import Parser, fail


def add(parser: Parser) -> None:
    """Add the flags, and the program with its arguments."""
    add = parser.add_argument_group("what").add_argument
    add("-m", "--module", action="store_true", help="run the script as python -m")
    add("--no-python", action="store_true", help="run the program itself")
    add("script", help="the program of every worker")
    add("args", nargs=argparse.REMAINDER, help="its arguments")


def check(args: argparse.Namespace, prog: str) -> None:
    """Refuse a program that is not there."""
    if args.module and args.no_python:
        fail(prog, "--module and --no-python exclude each other")
    if args.no_python and shutil.which(args.script) is None:
        fail(prog, f"{args.script}: no such program; give a path or a name on PATH")
    if not args.module and not args.no_python and not os.path.isfile(args.script):
        fail(prog, f"{args.script}: no such script in {os.getcwd()}")
