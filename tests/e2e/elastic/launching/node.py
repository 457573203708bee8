"""A program that launches the workers of one node: `python node.py OPTIONS`, with OPTIONS in JSON.

    config   fields of LaunchConfig
    entry    name of a function below, or a program
    args     its arguments

It prints what came of it as one line of JSON, and ends with 1 if that was no success.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from rallypoint.elastic import (
    ChildFailedError,
    LaunchConfig,
    RendezvousError,
    SignalException,
    elastic_launch,
)


def describe(*args: Any) -> dict[str, Any]:
    """Return the arguments, and the place in the round."""
    names = ("RANK", "WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_RANK")
    return {"args": list(args), **{name: int(os.environ[name]) for name in names}}


def refuse(text: str) -> None:
    """Fail as rank 1; the others wait for that."""
    if os.environ["RANK"] == "1":
        raise ValueError(text)
    time.sleep(60)


def obey() -> None:
    """Become the worker that obeys the test."""
    import runpy

    runpy.run_path(os.environ["OBEDIENT"], run_name="__main__")


FUNCTIONS = {one.__name__: one for one in (describe, refuse, obey)}


def main() -> None:
    options = json.loads(sys.argv[1])
    entry = FUNCTIONS.get(options["entry"], options["entry"])
    try:
        values = elastic_launch(LaunchConfig(**options["config"]), entry)(*options["args"])
    except ChildFailedError as error:
        failures = {
            rank: [failure.local_rank, failure.exitcode, failure.message]
            for rank, failure in error.failures.items()
        }
        found: dict[str, Any] = {"failures": failures, "first": error.get_first_failure()[0]}
    except (RendezvousError, SignalException, KeyboardInterrupt) as error:
        found = {"raised": type(error).__name__, "text": str(error)}
    else:
        print(json.dumps({"values": values}), flush=True)
        return
    print(json.dumps(found), flush=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
