"""Values of single flags."""

from __future__ import annotations

import argparse

import pytest

from rallypoint.cli.commands.node_agent import build_parser
from rallypoint.cli.flags import endpoint


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h", "h:50051"),
        ("h:1", "h:1"),
        ("node-7.rack_2.example:29400", "node-7.rack_2.example:29400"),
        ("10.0.0.1", "10.0.0.1:50051"),
        ("::1", "[::1]:50051"),
        ("[::1]", "[::1]:50051"),
        ("[::1]:7", "[::1]:7"),
        ("[fe80::1%eth0]:7", "[fe80::1%eth0]:7"),
    ],
)
def test_endpoint(text: str, found: str) -> None:
    """A host, perhaps with a port; an IPv6 address has brackets if it has a port."""
    assert endpoint(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", ":1", "h:", "h:0", "h:65536", "h:x", "h:-1", "a b", "g:h:1", "[h]:1", "[]"),
        *("http://h:2379", "/shared/file", "h:1/path", "user@h:1"),
    ],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    """A file, a URL, a port that nobody can connect to."""
    with pytest.raises(argparse.ArgumentTypeError, match="is not HOST:PORT"):
        endpoint(text)


@pytest.mark.parametrize(
    "flag",
    [
        *("--job-id", "--rdzv-id", "--launch-id", "--node-name", "--role"),
        *("--local-addr", "--master-addr", "--label", "--coordinator"),
    ],
)
def test_bytes_that_mean_nothing_are_no_name(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the coordinator and other nodes are told is UTF-8."""
    with pytest.raises(SystemExit):
        build_parser().read([f"{flag}=rack=\udcff", "a.py"], {})

    assert f"{flag}: 'rack=\\udcff' is not " in capsys.readouterr().err
