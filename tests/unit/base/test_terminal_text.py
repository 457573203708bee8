"""Terminals that have only ASCII get nothing else, and every character has its number there."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from rallypoint.base import terminal_text
from rallypoint.base.terminal_text import find_encoding, has_unicode, open_text

LIMIT_S = 60
TEXT = "a… → b é 漢 😀\n"
PLAIN = b"a... -> b \\xe9 \\u6f22 \\U0001f600\n"


@pytest.mark.parametrize(
    ("environment", "encoding"),
    [
        ({}, "utf-8"),
        ({"LC_ALL": "C"}, "ascii"),
        ({"LANG": "POSIX"}, "ascii"),
        ({"LC_ALL": "", "LC_CTYPE": "C.UTF-8", "LANG": "C"}, "utf-8"),
        ({"LANG": "de_DE.ISO-8859-15@euro"}, "iso8859-15"),
        ({"LANG": "de_DE"}, "utf-8"),
        ({"LC_ALL": "en_US.UTF-8", "PYTHONIOENCODING": "ascii:strict"}, "ascii"),
        ({"LC_ALL": "C", "PYTHONIOENCODING": "utf8"}, "utf-8"),
        ({"LC_ALL": "C", "PYTHONUTF8": "1"}, "utf-8"),
        ({"PYTHONIOENCODING": "rot13"}, "utf-8"),
        ({"LANG": "xx.NO-SUCH"}, "utf-8"),
    ],
)
def test_the_environment_names_the_encoding(environment: dict[str, str], encoding: str) -> None:
    """Without a word of it, it is UTF-8: most containers say nothing."""
    assert find_encoding(environment) == encoding


@pytest.mark.parametrize(("locale", "written"), [("C", PLAIN), ("C.UTF-8", TEXT.encode())])
def test_characters_are_replaced(
    locale: str, written: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours by what one would type, others by their numbers."""
    monkeypatch.setenv("LC_ALL", locale)
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    monkeypatch.delenv("PYTHONUTF8", raising=False)
    raw = io.BytesIO()
    file = open_text(raw)
    file.write(TEXT)

    assert raw.getvalue() == terminal_text.encode(TEXT) == written
    assert has_unicode(file) == (locale != "C")


@pytest.mark.parametrize("variables", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_commands_write_ascii(variables: dict[str, str]) -> None:
    """Their help, their tables and their JSON."""

    def run(*words: str) -> bytes:
        argv = [sys.executable, "-m", "rallypoint", *words]
        env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **variables}
        return subprocess.run(argv, env=env, capture_output=True, timeout=LIMIT_S).stdout

    assert b"HOST[:PORT],..." in run("jobs", "--help")
    checked = run("doctor", "-c", "localhost:1")
    assert b"-> check the port" in checked
    assert checked.isascii()
    assert json.loads(run("doctor", "--local", "-o", "json"))["problems"] >= 0
