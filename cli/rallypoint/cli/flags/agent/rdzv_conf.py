"""The keys of --rdzv-conf: those of torch's backends, and our flags that mean the same."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from rallypoint.base.limits import (
    HEARTBEAT_MS_MAX,
    HEARTBEAT_MS_MIN,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
)
from rallypoint.cli.flags.flag import BadValue, Values
from rallypoint.cli.flags.values import positive_int, positive_seconds_ms, seconds_ms

INTERVAL, ATTEMPTS = "keep_alive_interval", "keep_alive_max_attempt"
INTERVAL_MS, ATTEMPTS_COUNT = 5_000, 3
"""torch's defaults, for when only one of the two is given."""
IS_HOST = "is_host"
USED = ("join_timeout", "timeout", "last_call_timeout", INTERVAL, ATTEMPTS, IS_HOST)
UNUSED = frozenset(
    {
        "ca_cert",
        "cacert",
        "cert",
        "close_timeout",
        "etcd_prefix",
        "heartbeat",
        "heartbeat_timeout",
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
"""Settings of stores, which do not exist here: connections, certificates, prefixes of keys."""
_WORDS = {
    **dict.fromkeys(("1", "true", "t", "yes", "y"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n"), False),
}
"""What torch takes for yes and no."""


class BadConf(Exception):
    """A value that its flag does not accept; with a text for the user."""


def parse(text: str) -> dict[str, str]:
    """Parse `key=value,…`; a value may contain `=`.

    Raises:
        BadValue: for a part without key or value.
    """
    conf: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not key or not equals or not value:
            raise BadValue(f"{part!r} is not KEY=VALUE")
        conf[key] = value
    return conf


def apply(args: Values) -> None:
    """Set the flags that the keys stand for, except those that were given directly.

    Raises:
        BadConf: for the first bad value.
    """
    conf: dict[str, str] = args.rdzv_conf
    is_host(conf)
    for dest, value in _translate(conf).items():
        if dest not in args.given:
            setattr(args, dest, value)


def is_host(conf: dict[str, str]) -> bool | None:
    """Return whether this node hosts the coordinator of its job; None: the keys do not say.

    Raises:
        BadConf: for a value that is neither yes nor no.
    """
    if IS_HOST not in conf:
        return None
    word = conf[IS_HOST].lower()
    if word not in _WORDS:
        raise BadConf(f"{IS_HOST}: {conf[IS_HOST]!r} is neither true nor false")
    return _WORDS[word]


def _translate(conf: dict[str, str]) -> dict[str, int]:
    """Return the values of our flags, by `Flag.dest`, in ms."""
    values: dict[str, int] = {}
    for key, dest, parse in (
        ("timeout", "join_timeout", positive_seconds_ms),
        ("join_timeout", "join_timeout", positive_seconds_ms),  # the clearer key wins
        ("last_call_timeout", "last_call", seconds_ms),
        (INTERVAL, "heartbeat_interval", seconds_ms),
    ):
        if key in conf:
            values[dest] = _convert(key, conf, parse)
    if INTERVAL in conf or ATTEMPTS in conf:
        interval_ms = values.get("heartbeat_interval", INTERVAL_MS)
        attempts = _convert(ATTEMPTS, conf, positive_int) if ATTEMPTS in conf else ATTEMPTS_COUNT
        # torchrun accepts any value, so use the nearest that a job may have.
        if INTERVAL in conf:
            values["heartbeat_interval"] = min(max(interval_ms, HEARTBEAT_MS_MIN), HEARTBEAT_MS_MAX)
        values["lease"] = min(max(interval_ms * attempts, LEASE_MS_MIN), LEASE_MS_MAX)
    return values


def _convert(key: str, conf: dict[str, str], parse_value: Callable[[str], int]) -> int:
    try:
        return parse_value(conf[key])
    except BadValue as error:
        raise BadConf(f"{key}: {error}") from None


def unused(conf: dict[str, str]) -> list[str]:
    """Return the keys of torch that have no effect here, sorted."""
    return sorted(UNUSED & conf.keys())


def unknown(conf: dict[str, str]) -> list[str]:
    """Return the keys that are not known, sorted. torchrun ignores them, so they end no launch."""
    return sorted(conf.keys() - UNUSED - set(USED))


def find_near(keys: list[str]) -> str:
    """Return the key with an effect that one of these may have been meant for; "" if none."""
    return next((near for key in keys for near in get_close_matches(key, USED, n=1)), "")
