"""Errors are found in what Python, torch and progress bars really print."""

from __future__ import annotations

import pytest

from rallypoint.base.tracebacks import (
    PrintedError,
    find_errors,
    find_last_chain,
    is_header,
    split_lines,
)

HEADER = "Traceback (most recent call last):"
FRAME = '  File "/src/train.py", line 3, in <module>\n    train()'
NAN = "ValueError: loss is nan"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
STACK = f"{HEADER}\n{FRAME}\n"
FROM = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[rank1]: ValueError: loss is nan", "ValueError: loss is nan"),
        ("[rank1]:   File", "  File"),
        ("[rank1]: ", ""),
        ("[rank1]:", ""),
        ("[rank511]:", ""),
        ("[rank1]:[W1121 TCPStore.cpp:125]", "[rank1]:[W1121 TCPStore.cpp:125]"),
        ("step [rank1]: 3", "step [rank1]: 3"),
        ("[rank]: x", "[rank]: x"),
        ("", ""),
    ],
)
def test_line_without_its_rank(line: str, expected: str) -> None:
    """Torch's prefix goes, also a bare one; the prefix of its log lines stays."""
    assert ["a", expected, "b"] == split_lines(f"a\n{line}\nb\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (HEADER, True),
        (f" 50%|#####     | 5/10 [00:01<00:01, 4.9it/s]{HEADER}", True),
        (f"Original {HEADER}", False),
        (f"  {HEADER}", False),
        (f"  + Exception Group {HEADER}", False),
        (f"    | {HEADER}", False),
        (f"{HEADER} ...", False),
        ("", False),
    ],
)
def test_header(line: str, expected: bool) -> None:
    """A header begins a stack, unless it belongs to the message of an error or to a group."""
    assert expected is is_header(line)


def describe(error: PrintedError) -> str:
    facts = {"chained": error.is_chained, "elsewhere": error.is_elsewhere, "cut": error.is_cut}
    return " ".join(name for name, holds in facts.items() if holds)


@pytest.mark.parametrize(
    ("claim", "text", "expected"),
    [
        ("nothing", "", []),
        ("no error", "step 3\n  loss 0.3\n", []),
        ("one", STACK + NAN, [(NAN, "")]),
        ("one among other lines", f"step 3\n{STACK}{NAN}\nbye\n", [(NAN, "")]),
        ("two", f"{STACK}{RESET}\nretrying\n{STACK}{NAN}\n", [(RESET, ""), (NAN, "")]),
        ("a cause", f"{STACK}{RESET}\n{FROM}{STACK}{NAN}\n", [(RESET, ""), (NAN, "chained")]),
        ("a handler", f"{STACK}{RESET}\n{DURING}{STACK}{NAN}\n", [(RESET, ""), (NAN, "chained")]),
        ("a thread", f"Exception in thread T-1 (f):\n{STACK}{NAN}\n", [(NAN, "elsewhere")]),
        ("a child", f"Process SpawnProcess-1:\n{STACK}{NAN}\n", [(NAN, "elsewhere")]),
        ("a destructor", f"Exception ignored in: <f>\n{STACK}{NAN}\n", [(NAN, "elsewhere")]),
        (
            "a thread after a progress bar",
            f"9it/s]Exception in thread T-1:\n{STACK}{NAN}\n",
            [(NAN, "elsewhere")],
        ),
        (
            "a thread's handler",
            f"Exception in thread T-1:\n{STACK}{RESET}\n{DURING}{STACK}{NAN}\n",
            [(RESET, "elsewhere"), (NAN, "chained elsewhere")],
        ),
        ("a head that was cut", f"{FRAME}\n{NAN}\n", [(NAN, "cut")]),
        ("a cut one, then another", f"{FRAME}\n{RESET}\n{STACK}{NAN}", [(RESET, "cut"), (NAN, "")]),
        ("half a stack", STACK, []),
        ("half a stack after an error", f"{STACK}{NAN}\n{STACK}", [(NAN, "")]),
        ("a progress bar", f"9it/s]{STACK}{NAN}\n", [(NAN, "")]),
        ("a child's stack in the message", f"{STACK}{NAN}\nOriginal {STACK}{RESET}", [(NAN, "")]),
    ],
)
def test_errors_in_a_text(claim: str, text: str, expected: list[tuple[str, str]]) -> None:
    """Every stack with a headline is an error, with what its surroundings say of it."""
    ranked = "\n".join(f"[rank7]: {line}".rstrip() for line in text.splitlines())

    for lines in (split_lines(text), split_lines(ranked)):
        errors = list(find_errors(lines))
        assert expected == [(error.headline, describe(error)) for error in errors], claim
        assert [error.headline for error in errors] == [lines[error.end - 1] for error in errors]


@pytest.mark.parametrize(
    ("claim", "text", "expected"),
    [
        ("nothing", "", []),
        ("one error", STACK + NAN, [NAN]),
        ("an earlier error", f"{STACK}{RESET}\nretrying\n{STACK}{NAN}\n", [NAN]),
        ("a cause", f"{STACK}{RESET}\n{FROM}{STACK}{NAN}\n", [RESET, NAN]),
        (
            "a chain of three",
            f"{STACK}{RESET}\n{DURING}{STACK}KeyError\n{FROM}{STACK}{NAN}\n",
            [RESET, "KeyError", NAN],
        ),
        ("a thread after it", f"{STACK}{NAN}\nException in thread T:\n{STACK}{RESET}\n", [NAN]),
        ("only a thread", f"Exception in thread T:\n{STACK}{RESET}\n", []),
        ("a child before it", f"Process Loader-1:\n{STACK}{RESET}\n{STACK}{NAN}\n", [NAN]),
    ],
)
def test_last_chain(claim: str, text: str, expected: list[str]) -> None:
    """The last error of the main thread counts, with the errors that led to it."""
    chain = find_last_chain(split_lines(text))

    assert expected == [error.headline for error in chain], claim


def test_positions_enclose_the_stack() -> None:
    """From the header up to the headline: the error as Python printed it."""
    lines = split_lines(f"step 3\n{STACK}{NAN}\nbye\n")
    (error,) = find_errors(lines)

    assert STACK + NAN == "\n".join(lines[error.begin : error.end])
