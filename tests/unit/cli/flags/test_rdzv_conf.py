"""--rdzv-conf: which keys set flags of ours, and what is rejected."""

from __future__ import annotations

import pytest

from rallypoint.base.values import BadValue
from rallypoint.cli.commands.agent.command import build_parser
from rallypoint.cli.flags.agent import rendezvous
from rallypoint.cli.flags.agent.job import read_options

TIMES = ("join_timeout", "last_call", "heartbeat_interval", "lease")
DEFAULTS = (600_000, 5_000, None, None)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("  ", {}),
        ("a=1", {"a": "1"}),
        ("a=1,b=2", {"a": "1", "b": "2"}),
        (" a = 1 , b=2", {"a": "1", "b": "2"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=1,a=2", {"a": "2"}),
    ],
)
def test_pairs(text: str, found: dict[str, str]) -> None:
    """Separated by commas; a value may hold `=`; the last one of a key counts."""
    assert rendezvous.pairs(text) == found


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a=1,", ",", "a=1,,b=2", "a=1,b"])
def test_part_without_key_or_value_is_refused(text: str) -> None:
    """As torchrun refuses it."""
    with pytest.raises(BadValue, match="is not KEY=VALUE"):
        rendezvous.pairs(text)


@pytest.mark.parametrize(
    ("line", "times"),
    [
        ("", DEFAULTS),
        ("--rdzv-conf=join_timeout=60", (60_000, 5_000, None, None)),
        ("--rdzv-conf=timeout=900", (900_000, 5_000, None, None)),
        ("--rdzv-conf=join_timeout=60,timeout=900", (60_000, 5_000, None, None)),
        ("--rdzv-conf=timeout=900,join_timeout=60", (60_000, 5_000, None, None)),
        ("--rdzv-conf=last_call_timeout=0.5", (600_000, 500, None, None)),
        ("--rdzv-conf=keep_alive_interval=2", (600_000, 5_000, 2_000, 6_000)),
        ("--rdzv-conf=keep_alive_max_attempt=6", (600_000, 5_000, None, 30_000)),
        (
            "--rdzv-conf=keep_alive_interval=2,keep_alive_max_attempt=4",
            (600_000, 5_000, 2_000, 8_000),
        ),
        (
            "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=1",
            (600_000, 5_000, 1_000, 1_500),
        ),
        ("--rdzv-conf=keep_alive_max_attempt=1000", (600_000, 5_000, None, 3_600_000)),
        ("--rdzv-conf=join_timeout=60 --join-timeout=7", (7_000, 5_000, None, None)),
        ("--join-timeout=600 --rdzv-conf=join_timeout=60", (600_000, 5_000, None, None)),
        ("--rdzv-conf=keep_alive_interval=2 --lease=9", (600_000, 5_000, 2_000, 9_000)),
        (
            "--rdzv-conf=keep_alive_interval=2 --heartbeat-interval=1",
            (600_000, 5_000, 1_000, 6_000),
        ),
        ("--rdzv-conf=close_timeout=9,is_host=1,read_timeout=x", DEFAULTS),
    ],
)
def test_times_that_follow(line: str, times: tuple[int | None, ...]) -> None:
    """Its keys are our flags, and lose against them; three missed intervals are torch's lease."""
    args = build_parser().read([*line.split(), "a.py"], {})
    rendezvous.check(args)

    assert tuple(getattr(args, name) for name in TIMES) == times


def test_variable_of_our_own_flag_wins_too() -> None:
    """PET_JOIN_TIMEOUT sets our flag, not a key of torch's backends."""
    variables = {"PET_JOIN_TIMEOUT": "7", "PET_RDZV_CONF": "join_timeout=60,last_call_timeout=8"}
    args = build_parser().read(["a.py"], variables)
    rendezvous.check(args)

    assert (args.join_timeout, args.last_call) == (7_000, 8_000)


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ("join_timeout=soon", "join_timeout: 'soon' is not a number of seconds"),
        ("join_timeout=0", "join_timeout: '0' is too short: give more than 0 s"),
        ("timeout=0.0001", "timeout: '0.0001' is too short"),
        ("timeout=-1", "timeout: '-1' is not between 0 s and 30 days"),
        ("last_call_timeout=x", "last_call_timeout: 'x' is not a number"),
        ("keep_alive_max_attempt=0", "keep_alive_max_attempt: '0' is not 1 or more"),
        ("is_host=maybe", "is_host: 'maybe' is neither true nor false"),
    ],
)
def test_what_makes_no_sense_is_refused(
    conf: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the key, and what it would take."""
    args = build_parser().read([f"--rdzv-conf={conf}", "a.py"], {})
    with pytest.raises(SystemExit):
        rendezvous.check(args)

    assert f"error: --rdzv-conf: {words}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "interval_ms", "lease_ms"), [("0", 100, 1_500), ("1000", 300_000, 3_000_000)]
)
def test_heartbeats_are_clamped_as_leases_are(
    seconds: str, interval_ms: int, lease_ms: int
) -> None:
    """torchrun takes any interval."""
    args = build_parser().read([f"--rdzv-conf=keep_alive_interval={seconds}", "a.py"], {})
    rendezvous.check(args)

    assert (interval_ms, lease_ms) == (args.heartbeat_interval, args.lease)


@pytest.mark.parametrize(
    ("text", "is_host"),
    [
        ("", None),
        ("is_host=1", True),
        ("is_host=True", True),
        ("is_host=y", True),
        ("is_host=0", False),
        ("is_host=no", False),
    ],
)
def test_is_host(text: str, is_host: bool | None) -> None:
    """torch's words for yes and no."""
    args = build_parser().read([f"--rdzv-conf={text}", "a.py"], {})
    rendezvous.check(args)

    assert read_options(args).is_host is is_host
