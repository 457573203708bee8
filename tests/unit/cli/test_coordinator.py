"""Flags of `coordinator` that contradict each other."""

from __future__ import annotations

import pytest

from rallypoint.cli.commands.coordinator import build_parser, prepare

NOWHERE = "etcd://127.0.0.1:1/p"


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ((f"--state={NOWHERE}",), "needs --advertise HOST:PORT"),
        ((f"--state={NOWHERE}", "--host=::"), "needs --advertise HOST:PORT"),
        ((f"--state={NOWHERE}", "--advertise=0.0.0.0:1"), "every address of a host"),
        ((f"--state={NOWHERE}", "--advertise=a:b"), "'a:b' is not HOST or HOST:PORT"),
        ((f"--state={NOWHERE}", "--advertise=h", "--shards=0"), "not 1 or more"),
        ((f"--state={NOWHERE}", "--advertise=h", "--shards=1025"), "1 to 1024"),
        (("--state=etcd://h:2379", "--advertise=h"), "has no prefix"),
        (("--state=etcd://h/p?password=x", "--advertise=h"), "unknown option 'password'"),
        (("--state=memory", "--advertise=h"), "--advertise is only for --state etcd://"),
        (
            (f"--state={NOWHERE}", "--advertise=h", "--until-idle=1"),
            "--until-idle is not for --state etcd://",
        ),
        (("--until-idle=soon", "--port=0"), "'soon' is not a number of seconds"),
        (("--shards=4", "--port=0"), "--shards is only for --state etcd://"),
    ],
)
def test_flags_that_do_not_fit(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], part: str
) -> None:
    """Each is a mistake on the command line: one line, and 2."""
    with pytest.raises(SystemExit) as ended:
        prepare(build_parser().read(flags, {}))
    lines = capsys.readouterr().err.splitlines()

    assert (2, 1) == (ended.value.code, len(lines))
    assert part in lines[0]
