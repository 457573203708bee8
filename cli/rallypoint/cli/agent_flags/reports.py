"""Who is told of what happens, besides the person who reads the log."""

from __future__ import annotations

import argparse

from rallypoint.cli.flags import Parser

EVENT_LOG_HANDLERS = ("null", "console", "dynamic_rendezvous")
"""As torchrun has them; the last one records nothing there either."""


def add(parser: Parser) -> None:
    """Add the flags."""
    add = parser.add_argument_group("reports").add_argument
    add(
        "--event-log-handler",
        choices=EVENT_LOG_HANDLERS,
        default="null",
        help="console: torchrun's events as JSON lines on standard error (default: null)",
    )


def check(args: argparse.Namespace, prog: str) -> None:
    """Refuse nothing: the choices do."""
