"""Which signals the agent handles, and how it leaves the job after one."""

from __future__ import annotations

import signal

from rallypoint.agent.core.leaving.signals import (
    DEFAULT_SIGNAL_NAMES,
    DEFAULT_SIGNALS,
    FORWARDED_ONLY,
)
from rallypoint.base.values import BadValue, seconds_ms
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import fail
from rallypoint.cli.flags.values import signal_number

RESERVED = frozenset(
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
"""Signals that the kernel sends because of the agent's own actions. They mean nothing to workers.
"""


def signal_list(value: str) -> tuple[signal.Signals, ...]:
    """Parse names of signals, separated by commas, each with or without SIG, in any case.

    Returns:
        Each signal once, in the order given; one or more.
    """
    numbers = (signal_number(name.strip()) for name in value.split(","))
    signals = dict.fromkeys(signal.Signals(number) for number in numbers)
    reserved = next((one for one in signals if one in RESERVED), None)
    if reserved is not None:
        raise BadValue(f"{reserved.name} cannot be forwarded: the agent uses it itself")
    return tuple(signals)


def drain_signal(value: str) -> int | None:
    """Parse the name of a signal, or `none`."""
    return None if value.strip().lower() == "none" else signal_number(value)


GROUPS = (
    Group(
        "Signals and draining",
        (
            Flag(
                names=("--signals-to-handle",),
                parse=signal_list,
                metavar="NAME,…",
                help="signals forwarded to the workers; all but notifications (USR1, USR2, …) "
                "then end the agent",
                default_text=DEFAULT_SIGNAL_NAMES,
            ),
            Flag(
                names=("--drain-timeout",),
                parse=seconds_ms,
                metavar="SECONDS",
                default=0,
                default_text="0",
                help="how long workers may run after a SIGTERM to this agent; 0: stop them",
            ),
            Flag(
                names=("--drain-signal",),
                parse=drain_signal,
                metavar="NAME",
                default=None,
                default_text="none",
                help="signal to the workers of a draining node; it ends those without a handler",
            ),
        ),
    ),
)


def check(args: Values) -> None:
    """Reject a drain that no signal begins; fill in the default signals."""
    if args.signals_to_handle is None:
        # nohup ignores SIGHUP so that the job outlives the terminal; torchrun still ends.
        is_hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        args.signals_to_handle = tuple(
            one for one in DEFAULT_SIGNALS if one is not signal.SIGHUP or not is_hangup_ignored
        )
    if args.drain_timeout and signal.SIGTERM not in args.signals_to_handle:
        fail(args.prog, "--drain-timeout needs SIGTERM among --signals-to-handle")


def ignore_notifications(args: Values) -> None:
    """Keep notification signals from ending the agent before it can forward them."""
    for one in args.signals_to_handle:
        if one in FORWARDED_ONLY:
            signal.signal(one, signal.SIG_IGN)
