"""docs/python.md: the migration table has every public name of torch, and ours exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module

import pytest

from support.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "python.md"
ELASTIC = "torch.distributed.elastic"
SECTIONS = {
    "torch.distributed.launcher": ("", ".api"),
    f"{ELASTIC}.agent.server": ("", ".api", ".local_elastic_agent", ".health_check_server"),
    f"{ELASTIC}.multiprocessing": ("", ".api"),
    f"{ELASTIC}.multiprocessing.errors": ("", ".error_handler"),
    f"{ELASTIC}.rendezvous": ("", ".api", ".registry", ".dynamic_rendezvous"),
    f"{ELASTIC}.events": ("", ".api"),
    f"{ELASTIC}.metrics": ("", ".api"),
    f"{ELASTIC}.utils.store": ("",),
}
"""The headings of the table, and which modules below are walked."""
WALKS = """
import importlib, json, sys, types

def is_public(name, value):
    if name.startswith("_") or isinstance(value, types.ModuleType):
        return False
    is_defined_there = getattr(value, "__module__", "").startswith("torch.")
    return is_defined_there or name.isupper() or isinstance(value, types.UnionType)

found = {}
for section, modules in json.load(sys.stdin).items():
    names = set()
    for module in modules:
        known = vars(importlib.import_module(section + module))
        listed = known.get("__all__") or [n for n, v in known.items() if is_public(n, v)]
        names.update(listed)
    found[section] = sorted(names)
json.dump(found, sys.stdout)
"""


def read_table() -> dict[str, list[tuple[list[str], list[str], str]]]:
    """Return torch's names, ours and the verdict of each row, by section."""
    found: dict[str, list[tuple[list[str], list[str], str]]] = {}
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            section = line.strip("# `")
        elif line.startswith("| `") and section in SECTIONS:
            torchs, ours, verdict = line.strip("| ").split(" | ")
            names = [re.findall(r"`([\w.]+)`", cell) for cell in (torchs, ours)]
            found.setdefault(section, []).append((names[0], names[1], verdict))
    return found


ROWS = [
    pytest.param(torchs, ours, verdict, id=f"{section.rpartition('.')[2]}-{torchs[0]}")
    for section, rows in read_table().items()
    for torchs, ours, verdict in rows
]


@pytest.mark.parametrize(("torchs", "ours", "verdict"), ROWS)
def test_our_names_exist(torchs: list[str], ours: list[str], verdict: str) -> None:
    """What is the same has the same name here; what is different has a reason."""
    assert verdict.startswith(("same", "different: "))
    if verdict.startswith("same"):
        assert [name.rpartition(".")[2] for name in ours] == torchs
    for name in ours:
        module, _, last = name.rpartition(".")
        if module.startswith("rallypoint.torch"):
            continue  # it imports torch: see the long test

        assert hasattr(import_module(module), last), name


@pytest.mark.long
def test_every_public_name_of_torch_is_in_the_table() -> None:
    """None is missing, and none is there that torch does not have."""
    modules = json.dumps(SECTIONS)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WALKS],
        input=modules,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    table = {
        section: sorted(name for torchs, _, _ in rows for name in torchs)
        for section, rows in read_table().items()
    }

    assert table == json.loads(done.stdout)


@pytest.mark.long
def test_names_that_need_torch_exist() -> None:
    """Those of `rallypoint.torch`."""
    names = sorted(
        {
            name
            for rows in read_table().values()
            for _, ours, _ in rows
            for name in ours
            if name.startswith("rallypoint.torch")
        }
    )
    code = "\n".join(
        f"from {module} import {last}"
        for module, _, last in (name.rpartition(".") for name in names)
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert names
    assert done.returncode == 0, done.stderr
