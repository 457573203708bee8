"""Which signals the agent handles for its workers, and how it leaves when one tells it to."""

from __future__ import annotations

import argparse
import signal

from rallypoint.agent.core.signals import TELLING
from rallypoint.cli.flags import Parser, fail, seconds_ms, signal_number

USUAL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Handled when nothing else is said, as by torchrun."""
OWN = frozenset(
    {
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGCHLD,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGPIPE,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    }
)
"""What the agent gets for its own doings: no news for its workers."""


def add(parser: Parser) -> None:
    """Add the flags."""
    add = parser.add_argument_group("signals").add_argument
    add(
        "--signals-to-handle",
        type=signal_list,
        metavar="NAME,…",
        help="signals to the agent that its workers get too; then it ends, but not of SIGUSR1 and "
        "others that only tell something (default: SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
    )
    add(
        "--drain-timeout",
        type=seconds_ms,
        default=0,
        metavar="S",
        help="seconds workers go on after a SIGTERM to this agent; 0: stop them (0)",
    )
    add(
        "--drain-signal",
        type=signal_number,
        default=signal.SIGTERM,
        metavar="NAME",
        help="tells workers that their node drains (default: SIGTERM)",
    )


def check(args: argparse.Namespace, prog: str) -> None:
    """Refuse a drain that nothing begins; fill in which signals are handled."""
    if args.signals_to_handle is None:
        # Who ignores SIGHUP (nohup) wants the job to outlive the terminal; torchrun ends.
        is_unwanted = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        args.signals_to_handle = tuple(
            one for one in USUAL if one is not signal.SIGHUP or not is_unwanted
        )
    if args.drain_timeout and signal.SIGTERM not in args.signals_to_handle:
        fail(prog, "--drain-timeout needs SIGTERM among --signals-to-handle")


def signal_list(text: str) -> tuple[signal.Signals, ...]:
    """Parse names of signals, separated by commas, each with or without SIG in any case.

    Returns:
        Each signal once, in the order given; one or more.
    """
    found = dict.fromkeys(signal.Signals(signal_number(name.strip())) for name in text.split(","))
    own = next((one for one in found if one in OWN), None)
    if own is not None:
        raise argparse.ArgumentTypeError(f"{own.name} comes of the agent's own doings")
    return tuple(found)


def ignore_telling(args: argparse.Namespace) -> None:
    """Let no signal that only tells something end the agent before it can handle it."""
    for one in args.signals_to_handle:
        if one in TELLING:
            signal.signal(one, signal.SIG_IGN)
