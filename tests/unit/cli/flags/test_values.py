"""Values of single flags."""

from __future__ import annotations

import pytest

from rallypoint.base.limits import COUNT_MAX
from rallypoint.base.values import BadValue, natural_int
from rallypoint.cli.commands.agent.command import build_parser
from rallypoint.cli.flags.values import endpoints, within


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h", "h:50051"),
        ("h:1", "h:1"),
        ("node-7.rack_2.example:29400", "node-7.rack_2.example:29400"),
        ("10.0.0.1", "10.0.0.1:50051"),
        ("::1", "[::1]:50051"),
        ("[::1]", "[::1]:50051"),
        ("[::1]:7", "[::1]:7"),
        ("[fe80::1%eth0]:7", "[fe80::1%eth0]:7"),
        ("a,b:7, [::1]:7,a:50051", "a:50051,b:7,[::1]:7"),
    ],
)
def test_endpoint(text: str, expected: str) -> None:
    """Hosts, perhaps with ports; an IPv6 address has brackets if it has a port."""
    assert endpoints(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", ":1", "h:", "h:0", "h:65536", "h:x", "h:-1", "a b", "g:h:1", "[h]:1", "[]"),
        *("http://h:2379", "/shared/file", "h:1/path", "user@h:1"),
    ],
)
def test_bad_endpoint_is_rejected(text: str) -> None:
    """A file, a URL, a port that cannot be connected to."""
    with pytest.raises(BadValue, match="is not HOST:PORT"):
        endpoints(text)
    with pytest.raises(BadValue, match="is not HOST:PORT"):
        endpoints(f"h:1,{text}")


@pytest.mark.parametrize(
    "flag",
    [
        *("--job-id", "--rdzv-id", "--launch-id", "--node-name", "--role"),
        *("--local-addr", "--master-addr", "--label", "--coordinator"),
    ],
)
def test_name_must_be_utf_8(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The coordinator and other nodes read these names."""
    with pytest.raises(SystemExit):
        build_parser().read([f"{flag}=rack=\udcff", "a.py"], {})

    assert f"{flag}: 'rack=\\udcff' is not " in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--join-timeout", "--coordinator-timeout"])
def test_wait_of_no_time_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be over before anything can answer."""
    with pytest.raises(SystemExit):
        build_parser().read([f"{flag}=0", "a.py"], {})

    assert f"{flag}: '0' is too short: give more than 0 s" in capsys.readouterr().err


def test_count_fits_into_the_contract() -> None:
    """A larger one would end the agent with a traceback when it says Hello."""
    assert natural_int("2147483647") == 2**31 - 1
    with pytest.raises(BadValue, match="is more than 2147483647"):
        natural_int("2147483648")


@pytest.mark.parametrize(
    ("low", "text", "why"),
    [
        (0, "-1", "'-1' is not 0 or more"),
        (0, "2147483648", "'2147483648' is more than 2147483647"),
        (-COUNT_MAX, "2147483648", "'2147483648' is more than 2147483647"),
    ],
)
def test_a_number_without_a_limit_of_its_own_is_refused_with_the_side(
    low: int, text: str, why: str
) -> None:
    """A number that is too large is not called too small."""
    with pytest.raises(BadValue) as refused:
        within(low, COUNT_MAX, int)(text)

    assert str(refused.value) == why
