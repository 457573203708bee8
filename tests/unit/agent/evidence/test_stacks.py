"""Texts of faulthandler become threads and frames, whatever the version, and whatever they hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.agent.evidence.collect import RANK_BYTES_MAX, bound
from rallypoint.agent.evidence.stacks import FRAMES_MAX, THREADS_MAX, parse_stacks
from rallypoint.v1 import evidence_pb2

LIB = "/usr/lib/python3.8/threading.py"
# Recorded from CPython 3.8 to 3.13: all of them write the same.
TWO_THREADS = f"""Thread 0x00007f8186ed46c0 (most recent call first):
  File "/home/me/train.py", line 4 in \\xfcnner
  File "{LIB}", line 870 in run

Current thread 0x00007f8187fbfb80 (most recent call first):
  File "/home/me/train.py", line 16 in <module>
"""
# The main thread blocks the signal, so another one handles it.
HANDLED_ELSEWHERE = """Current thread 0x00007f81876d56c0 (most recent call first):
  File "st.py", line 4 in inner

Thread 0x00007f8187fbfb80 (most recent call first):
  File "st.py", line 11 in g
  File "st.py", line 16 in <module>
"""
NAMED = """Current thread 0x00007f8187fbfb80 [python] (most recent call first):
  Garbage-collecting
  File ???, line ??? in collect
  File "a \\u20ac\\U0001f600\\udcff.py", line 99999999999 in <module>
  File "b.py", line 4294967296 in f
"""
PROGRAM = """
import faulthandler, os, signal, sys, threading
fd = os.open(sys.argv[1], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
faulthandler.register(signal.SIGURG, file=fd, all_threads=True, chain=False)
begun, event = threading.Semaphore(0), threading.Event()
def wait():
    begun.release()
    event.wait()
for _ in range(2):
    threading.Thread(target=wait, daemon=True).start()
    begun.acquire()
def deep(depth):
    if depth:
        return deep(depth - 1)
    os.kill(os.getpid(), signal.SIGURG)
deep(2)
"""
VERSIONS = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))


def names(text: str) -> list[list[str]]:
    """Return the functions of each thread."""
    return [[frame.function for frame in thread.frames] for thread in parse_stacks(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TWO_THREADS, [["<module>"], ["ünner", "run"]]),
        (HANDLED_ELSEWHERE, [["g", "<module>"], ["inner"]]),
        (TWO_THREADS + TWO_THREADS, [["<module>"], ["ünner", "run"]]),
        (TWO_THREADS.partition("Current")[0] + TWO_THREADS, [["<module>"], ["ünner", "run"]]),
        ("Current thread 0x1 (most recent call first):\n  <no Python frame>\n", [[]]),
        ("", []),
        ('  File "a", line 1 in f\nnonsense\n\x00\x01...', []),
    ],
    ids=["two", "elsewhere", "late answer", "half a late answer", "no frame", "none", "nonsense"],
)
def test_threads(text: str, expected: list[list[str]]) -> None:
    """The main thread is the last one that was listed, and the first one here."""
    assert names(text) == expected
    assert [thread.is_main for thread in parse_stacks(text)][:1] == [True][: len(expected)]


def test_odd_texts() -> None:
    """Escapes are undone, numbers that nothing can hold are cut, half a pair becomes a mark."""
    (main,) = parse_stacks(NAMED)

    assert [(one.function, one.file, one.line) for one in main.frames] == [
        ("collect", "", 0),
        ("f", "b.py", (1 << 32) - 1),
    ]
    assert parse_stacks(NAMED.replace("99999999999", "9"))[0].frames[1].file == "a €😀\ufffd.py"


def test_list_that_stops_has_no_main_thread() -> None:
    """faulthandler leaves out the oldest threads."""
    block = 'Thread 0x{:x} (most recent call first):\n  File "a", line 1 in f\n\n'
    threads = parse_stacks("".join(map(block.format, range(100))) + "...\n")

    assert len(threads) == THREADS_MAX
    assert not any(thread.is_main for thread in threads)


def test_hostile_text_is_bounded() -> None:
    """However long it is, and however long its names are."""
    frame = f'  File "{"d" * 700}", line 1 in {"f" * 300}\n'
    block = "Thread 0x{:x} (most recent call first):\n" + frame * (FRAMES_MAX + 5)
    threads = parse_stacks("".join(map(block.format, range(THREADS_MAX + 5))))

    assert len(threads) == THREADS_MAX
    assert len(threads[0].frames) == FRAMES_MAX
    assert (len(threads[0].frames[0].file), len(threads[0].frames[0].function)) == (512, 256)
    one = bound(evidence_pb2.RankEvidence(threads=threads, stderr_tail="x" * 4096))
    assert one.ByteSize() <= RANK_BYTES_MAX
    assert len(one.threads) == 1 and one.threads[0].is_main
    assert list(one.gaps) == ["not all: it has over 64 KiB"]


@pytest.mark.parametrize("python", [sys.executable, *map(str, VERSIONS)])
def test_every_version_writes_what_is_read(python: str, tmp_path: Path) -> None:
    """The interpreters of this machine."""
    path = tmp_path / "stacks"
    path.touch()
    subprocess.run([python, "-c", PROGRAM, str(path)], check=True, timeout=60)

    main, *others = names(path.read_text())
    assert main == ["deep", "deep", "deep", "<module>"]
    assert [other[-3] for other in others] == ["run", "run"]
