"""What a planted bug is, and how it is planted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Patch = tuple[Any, str, Any]
"""Module or class, name, and replacement."""
Bug = tuple[Callable[[], list[Patch]], frozenset[str]]
"""How a bug is planted, and the rules that may notice it."""


@contextmanager
def patched(*patches: Patch) -> Iterator[None]:
    """Replace what the patches name while the context is open."""
    kept = [(owner, name, inspect.getattr_static(owner, name)) for owner, name, _ in patches]
    try:
        for owner, name, replacement in patches:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)


def planted(bug: Bug) -> AbstractContextManager[None]:
    """Plant a bug while the context is open."""
    return patched(*bug[0]())
