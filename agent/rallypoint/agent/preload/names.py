"""Names of modules and functions to preload, as people write them. Pure."""

from __future__ import annotations

AUTO = "auto"
"""In place of names: what the workers import."""


def parse_modules(text: str) -> tuple[str, ...]:
    """Return the modules in a text with commas in between.

    Raises:
        ValueError: one is no name of a module.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not _is_dotted(name):
            raise ValueError(f"{name!r} is not the name of a module")
    if AUTO in names and len(names) > 1:
        raise ValueError(f"{AUTO} and names of modules exclude each other")
    return names


def parse_calls(text: str) -> tuple[str, ...]:
    """Return the functions in a text with commas in between, each as `pkg.mod:function`.

    Raises:
        ValueError: one does not have that form.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        module, colon, function = name.partition(":")
        if not (colon and _is_dotted(module) and _is_dotted(function)):
            raise ValueError(f"{name!r} is not of the form pkg.mod:function")
    return names


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
