"""Flags that come from the environment, as torchrun takes them: PET_ and the name of the flag.

A flag on the command line wins, also over several values of one that may be repeated. An empty
variable is one that is not set: that is what a template leaves behind that had nothing to fill in.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

PREFIX = "PET_"
FURTHER = {
    "shutdown_timeout": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    "log_level": "LOGLEVEL",
}
"""Variables with names of their own, for flags without a PET_ variable."""
_SAYS_YES = frozenset({"1", "true", "yes", "on"})
_SAYS_NO = frozenset({"0", "false", "no", "off"})
_LOG_LEVELS = {
    "NOTSET": "debug",
    "DEBUG": "debug",
    "INFO": "info",
    "WARN": "warning",
    "WARNING": "warning",
    "ERROR": "error",
    "FATAL": "error",
    "CRITICAL": "error",
}
"""Ours for each of Python's."""


def find_variable(flag: argparse.Action, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the variable that sets this flag, and its text, or None if none is set."""
    for name in variables_of(flag):
        if environment.get(name):
            return name, environment[name]
    further = FURTHER.get(flag.dest, "")
    text = environment.get(further, "")
    if flag.dest == "log_level":
        text = _LOG_LEVELS.get(text.upper(), "")  # it is for every program: ours need not know it
    return (further, text) if text else None


def variables_of(flag: argparse.Action) -> Iterator[str]:
    """Yield the PET_ variables of a flag, one for each of its long names."""
    for name in flag.option_strings:
        if name.startswith("--"):
            yield PREFIX + name[2:].replace("-", "_").upper()


def switch(text: str) -> bool:
    """Parse the value of a switch's variable.

    Raises:
        ArgumentTypeError: if it is neither a yes nor a no.
    """
    word = text.strip().lower()
    if word not in _SAYS_YES | _SAYS_NO:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 1 nor 0")
    return word in _SAYS_YES
