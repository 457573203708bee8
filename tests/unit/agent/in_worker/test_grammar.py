"""What the workers' interpreter runs needs no newer Python than 3.8, and only its library."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rallypoint.agent import in_worker

OLDEST = (3, 8)
FILES = sorted(Path(in_worker.__file__).parent.glob("*.py"))


def parse(text: str) -> ast.Module:
    return ast.parse(text, feature_version=OLDEST)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_has_the_oldest_grammar(path: Path) -> None:
    """Each file parses as Python 3.8, and that tree runs as a module."""
    tree = parse(path.read_text(encoding="utf-8"))
    module = ModuleType("checked")
    module.__file__ = str(path)

    exec(compile(tree, path, "exec", dont_inherit=True), module.__dict__)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_annotations_are_not_evaluated(path: Path) -> None:
    """A file with an annotation postpones it: `str | None` fails in Python 3.8."""
    tree = parse(path.read_text(encoding="utf-8"))
    has_annotations = any(
        isinstance(node, ast.AnnAssign) or getattr(node, "returns", None) is not None
        for node in ast.walk(tree)
    )
    futures = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        for alias in node.names
    ]

    assert not has_annotations or futures == ["annotations"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_imports_are_of_the_standard_library(path: Path) -> None:
    """Only functions import torch or cloudpickle; all else is in the standard library.

    What the helper's own interpreter runs may use its neighbours.
    """
    tree = parse(path.read_text(encoding="utf-8"))
    if path.stem == "forked":
        assert _imports(list(ast.walk(tree))) <= sys.stdlib_module_names | {"rallypoint"}
        return

    assert _imports(tree.body) <= sys.stdlib_module_names
    assert _imports(list(ast.walk(tree))) <= sys.stdlib_module_names | {
        "cloudpickle",
        "torch",
    }


def _imports(nodes: list[ast.stmt] | list[ast.AST]) -> set[str]:
    """Return the top-level packages that these statements import."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


@pytest.mark.parametrize("text", ["match x:\n    case 1: pass", "try: pass\nexcept* OSError: pass"])
def test_newer_grammar_is_noticed(text: str) -> None:
    """The parser refuses what Python 3.8 does not have."""
    with pytest.raises(SyntaxError):
        parse(text)
