"""`rallypoint kv`: the keys of a job, for one of its workers.

The coordinator shows keys to the workers of a job alone, so every command needs the token of one:
see `workers`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.operator.failures import CommandFailed, NotFound, TimedOut
from rallypoint.cli.operator.hints import recommend
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import Command, Job, argument, option
from rallypoint.client.values import Scope

if TYPE_CHECKING:
    from rallypoint.client import Client

COLUMNS = ("KEY", "REVISION", "VERSION", "VALUE")
VALUE_BYTES_MAX = 65_536
"""As much as the contract allows; more of standard input is not read."""
STANDARD_INPUT = "-"
WAIT_S_MAX = 86_400.0


class ScopeName(Enum):
    """What a key belongs to, as an option."""

    ROUND = "round"
    RUN = "run"


Worker = Annotated[
    int,
    option(
        "--worker",
        "-w",
        metavar="PID",
        min=0,
        help="use the token of this local process; without it: RALLYPOINT_WORKER_TOKEN",
    ),
]
InScope = Annotated[
    ScopeName, option("--scope", metavar="round|run", help="what the keys belong to")
]
Key = Annotated[str, argument("KEY", help="the key")]
Prefix = Annotated[str, argument("PREFIX", help="only keys that begin with this")]


@Command
def get(
    invocation: Invocation,
    job: Job,
    key: Key,
    worker: Worker = 0,
    scope: InScope = ScopeName.ROUND,
    wait: Annotated[
        float,
        option("--wait", metavar="SECONDS", min=0.0, max=WAIT_S_MAX, help="wait until it exists"),
    ] = 0.0,
) -> None:
    """Print the value of a key.

    In a pipe its bytes are printed as they are, on a terminal as a line of text.
    """
    from rallypoint.client.errors import KeysMissing

    with _client(invocation, worker) as client:
        try:
            answer = client.get_keys(job, [key], wait_s=wait, scope=_scope(scope))
        except KeysMissing:
            raise TimedOut(f"{job} has no key {key!r} after {wait:g} s") from None
        if not answer.kvs:
            raise NotFound(_describe_missing(client, job, key, scope))
    if invocation.output.is_json:
        invocation.output.print_json(answer.kvs[0])
    else:
        _print_value(answer.kvs[0].value)


@Command
def put(
    invocation: Invocation,
    job: Job,
    key: Key,
    value: Annotated[
        str,
        argument("VALUE", help="its value; -: standard input"),
    ],
    worker: Worker = 0,
    scope: InScope = ScopeName.ROUND,
) -> None:
    """Set a key."""
    content = _read_value() if value == STANDARD_INPUT else value.encode("utf-8", "surrogateescape")
    with _client(invocation, worker) as client:
        answer = client.put_key(job, key, content, scope=_scope(scope))
    text = f"{job}: key {key} is set, with revision {answer.revision}"
    invocation.output.print_result(answer, text)


@Command
def list_keys(
    invocation: Invocation,
    job: Job,
    prefix: Prefix = "",
    worker: Worker = 0,
    scope: InScope = ScopeName.ROUND,
) -> None:
    """List keys with their values, ordered by their bytes."""
    from rallypoint.cli.operator.sharing.words import describe_key

    with _client(invocation, worker) as client:
        found = list(client.list_keys(job, prefix, scope=_scope(scope)))
    which = f" that begin with {prefix!r}" if prefix else ""
    empty = f"this {scope.value} of {job} has no keys{which}"
    invocation.output.print_list(found, COLUMNS, describe_key, flexible="VALUE", empty=empty)


@Command
def delete(
    invocation: Invocation,
    job: Job,
    key: Key,
    worker: Worker = 0,
    scope: InScope = ScopeName.ROUND,
) -> None:
    """Delete a key. It is not an error if there is none."""
    with _client(invocation, worker) as client:
        answer = client.delete_key(job, key, scope=_scope(scope))
    text = "is deleted" if answer.was_changed else "does not exist; there is nothing to delete"
    invocation.output.print_result(answer, f"{job}: key {key} {text}")


@Command
def watch(
    invocation: Invocation,
    job: Job,
    prefix: Prefix = "",
    worker: Worker = 0,
    scope: InScope = ScopeName.ROUND,
) -> None:
    """Print every change of keys from now on.

    It ends with the round, or with Ctrl-C.
    """
    from rallypoint.cli.operator.sharing.words import describe_event

    with _client(invocation, worker) as client:
        for event in client.watch_keys(job, prefix, scope=_scope(scope)):
            if invocation.output.is_json:
                invocation.output.print_json_line(event)
            else:
                invocation.output.print_line(describe_event(event))


@contextmanager
def _client(invocation: Invocation, worker: int) -> Iterator[Client]:
    """Yield a client that calls for a worker."""
    from rallypoint.cli.operator.sharing.workers import find_proof

    proof = find_proof(worker)
    invocation.check_reachable()
    limit_s = invocation.timeout_s
    with invocation.open_client(limit_s, token=proof.token, epoch=proof.epoch) as client:
        yield client


def _scope(name: ScopeName) -> Scope:
    return Scope[name.name]


def _describe_missing(client: Client, job: str, key: str, scope: ScopeName) -> str:
    from rallypoint.cli.operator.explanations import suggest
    from rallypoint.client.errors import RallypointError

    text = f"this {scope.value} of {job} has no key {key!r}"
    try:
        names = [one.key for one in client.list_keys(job, scope=_scope(scope), keys_only=True)]
    except RallypointError:
        return text
    near = suggest(key, names)
    return f"{text}; {near or recommend('list them: {rallypoint} kv list {job}', job=job)}"


def _print_value(value: bytes) -> None:
    from rallypoint.cli.operator.sharing.words import describe_value_whole

    if sys.stdout.isatty():
        print(describe_value_whole(value))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()


def _read_value() -> bytes:
    content = sys.stdin.buffer.read(VALUE_BYTES_MAX + 1)
    if len(content) > VALUE_BYTES_MAX:
        raise CommandFailed(f"a value has at most {VALUE_BYTES_MAX} bytes", EXIT_USAGE)
    return content


GROUPS = {"kv": {"get": get, "put": put, "list": list_keys, "delete": delete, "watch": watch}}
"""The commands of each group."""
