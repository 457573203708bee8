"""What a planted bug is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Patch = tuple[Any, str, Any]
"""Module or class, name, and replacement."""
Bug = tuple[Callable[[], list[Patch]], frozenset[str]]
"""How a bug is planted, and the rules that may notice it."""
