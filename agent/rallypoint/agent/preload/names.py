"""Names of modules and functions to preload, as people write them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rallypoint.base.values import BadValue

AUTO = "auto"
"""In place of names: what the workers import."""


def parse_modules(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return the modules in a list, or in a text with commas in between.

    Raises:
        BadValue: one is not the name of a module.
    """
    names = _split(value)
    for name in names:
        if not _is_dotted(name):
            raise BadValue(f"{name!r} is not the name of a module")
    if AUTO in names and len(names) > 1:
        raise BadValue(f"{AUTO} and names of modules exclude each other")
    return names


def parse_calls(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return the functions in a list, or in a text with commas, each as `pkg.mod:function`.

    Raises:
        BadValue: one does not have that form.
    """
    names = _split(value)
    for name in names:
        module, colon, function = name.partition(":")
        if not (colon and _is_dotted(module) and _is_dotted(function)):
            raise BadValue(f"{name!r} is not of the form pkg.mod:function")
    return names


def _split(value: str | Iterable[str]) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    return tuple(str(name).strip() for name in words) if value else ()


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
