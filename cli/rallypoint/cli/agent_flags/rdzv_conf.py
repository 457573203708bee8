"""The keys of --rdzv-conf: what torch's back ends know, and which of our flags says the same."""

from __future__ import annotations

import argparse

from rallypoint.cli.flags import seconds_ms

HEARD = {
    "join_timeout": "join_timeout",
    "timeout": "join_timeout",
    "last_call_timeout": "last_call",
}
"""The flag of each key, stronger keys of a flag first. All are seconds."""
UNHEARD = frozenset(
    {
        "ca_cert",
        "cacert",
        "cert",
        "close_timeout",
        "etcd_prefix",
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
    heard: set[str] = set()
    for key, dest in HEARD.items():
        if key in conf:
            value_ms = _seconds(key, conf[key])
            if dest not in heard | args.given:
                setattr(args, dest, value_ms)
            heard.add(dest)


def unheard(conf: dict[str, str]) -> list[str]:
    """Return the keys that have no meaning here, sorted."""
    return sorted(UNHEARD & conf.keys())


def _seconds(key: str, text: str) -> int:
    try:
        return seconds_ms(text)
    except argparse.ArgumentTypeError as error:
        raise BadConf(f"{key}: {error}") from None
