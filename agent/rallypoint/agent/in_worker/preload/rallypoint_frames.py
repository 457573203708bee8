"""JSON of the frames between a forkserver and its agent, without the module json.

A program may have a json.py, or a re.py, beside its script, so a forkserver imports neither before
it imports what the program asks for. See sitecustomize.py for the frames.
Standard library only, and Python 3.8 or newer. The agent never imports this file.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take a millisecond of every start
if TYPE_CHECKING:
    from typing import Any

_json: Any = None
try:
    import _json
except ImportError:  # not CPython
    pass


class _Settings:
    """What make_scanner asks for: those of json.loads."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float = parse_constant = float
    parse_int = int


def decode(text: str) -> Any:
    """Return what a frame says."""
    if _json is None:
        import json

        return json.loads(text)
    return _json.make_scanner(_Settings)(text, 0)[0]


def encode(value: Any) -> str:
    """Return the text of a value that consists of dicts, lists, texts, integers and None."""
    if _json is None:
        import json

        return json.dumps(value)
    if isinstance(value, dict):
        return "{" + ",".join(encode(key) + ":" + encode(value[key]) for key in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(encode, value)) + "]"
    if isinstance(value, str):
        text: str = _json.encode_basestring_ascii(value)
        return text
    return "null" if value is None else str(value)
