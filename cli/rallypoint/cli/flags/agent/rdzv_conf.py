"""The keys of --rdzv-conf: what torch's back ends know, and which of our flags says the same."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rallypoint.cli.agent_flags.job import (
    HEARTBEAT_MS_MAX,
    HEARTBEAT_MS_MIN,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
)
from rallypoint.cli.flags import positive_int, seconds_ms

INTERVAL, ATTEMPTS = "keep_alive_interval", "keep_alive_max_attempt"
INTERVAL_MS, ATTEMPTS_COUNT = 5_000, 3
"""What torch takes for the one of these two that is not given."""
HEARD = ("join_timeout", "timeout", "last_call_timeout", INTERVAL, ATTEMPTS)
UNHEARD = frozenset(
    {
        "ca_cert",
        "cacert",
        "cert",
        "close_timeout",
        "etcd_prefix",
        "heartbeat",
        "heartbeat_timeout",
        "is_host",
        "key",
        "protocol",
        "rank",
        "read_timeout",
        "ssl_cert",
        "ssl_cert_key",
        "store_type",
        "use_libuv",
    }
)
"""About stores that are not there: a connection, a certificate, a prefix of keys."""


class BadConf(Exception):
    """A key that nobody knows, or a value that its flag would not take."""


def parse(text: str) -> dict[str, str]:
    """Parse `key=value,…`; a value may contain `=`.

    Raises:
        ArgumentTypeError: for a part without key or value.
    """
    found: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not key or not equals or not value:
            raise argparse.ArgumentTypeError(f"{part!r} is not KEY=VALUE")
        found[key] = value
    return found


def apply(args: argparse.Namespace) -> None:
    """Set the flags that the configuration speaks of, except those that were given themselves.

    Raises:
        BadConf: with words for a person.
    """
    conf: dict[str, str] = args.rdzv_conf
    for key in conf:
        if key not in HEARD and key not in UNHEARD:
            known = ", ".join(sorted((*HEARD, *UNHEARD)))
            raise BadConf(f"{key!r} is unknown; known are {known}")
    for dest, value in _translate(conf).items():
        if dest not in args.given:
            setattr(args, dest, value)


def _translate(conf: dict[str, str]) -> dict[str, int]:
    """Return the values of our flags, in ms."""
    found: dict[str, int] = {}
    for key, dest in (
        ("timeout", "join_timeout"),
        ("join_timeout", "join_timeout"),  # the clearer word, so it is the later
        ("last_call_timeout", "last_call"),
        (INTERVAL, "heartbeat_interval"),
    ):
        if key in conf:
            found[dest] = _convert(key, conf, seconds_ms)
    if INTERVAL in conf or ATTEMPTS in conf:
        interval_ms = found.get("heartbeat_interval", INTERVAL_MS)
        attempts = _convert(ATTEMPTS, conf, positive_int) if ATTEMPTS in conf else ATTEMPTS_COUNT
        _require(INTERVAL, interval_ms, HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX)
        # What works under torchrun is no error here: the nearest lease that a job may have.
        found["lease"] = min(max(interval_ms * attempts, LEASE_MS_MIN), LEASE_MS_MAX)
    return found


def _convert(key: str, conf: dict[str, str], parse_value: Callable[[str], int]) -> int:
    try:
        return parse_value(conf[key])
    except argparse.ArgumentTypeError as error:
        raise BadConf(f"{key}: {error}") from None


def _require(what: str, value_ms: int, low_ms: int, high_ms: int) -> None:
    if not low_ms <= value_ms <= high_ms:
        raise BadConf(f"{what} must be {low_ms / 1000:g} to {high_ms / 1000:g} seconds")


def unheard(conf: dict[str, str]) -> list[str]:
    """Return the keys that have no meaning here, sorted."""
    return sorted(UNHEARD & conf.keys())
