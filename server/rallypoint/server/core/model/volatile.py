"""Marks the facts that no journal keeps, in the struct that has them.

Agents report them again with their Hello, or they are only waits that begin again. So a Ready, a
Started, a heartbeat and an exit after a stop cost no record.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

_T = TypeVar("_T")
_MARK = "volatile"
Volatile = Annotated[_T, _MARK]
"""Type of a field that is not journalled. It has a default, which it has after a restart."""


@cache
def volatile_fields(kind: Any) -> frozenset[str]:
    """Return the names of the fields of a struct that no journal keeps."""
    hints = get_type_hints(kind, include_extras=True).items()
    return frozenset(
        name for name, hint in hints if get_origin(hint) is Annotated and _MARK in hint.__metadata__
    )
