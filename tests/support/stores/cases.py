"""What stores do: statements, and what the last one gives. All stores give the same, except where
the table in docs/torch.md says something else."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from support.docs.pages import REPOSITORY

TIMEOUT, PATIENCE = timedelta(milliseconds=300), timedelta(seconds=20)
TABLE = REPOSITORY / "docs" / "torch.md"
TORCH: Any = dist
"""torch.distributed, which has more names than its annotations."""
KINDS = ("TCPStore", "HashStore", "FileStore", "Store")
"""The columns of the table."""
CASES = {
    "s.get('a')": "b'x'",
    "s.get('missing')": "DistStoreError",
    "s.set('a', 'y'); s.get('a')": "b'y'",
    "s.set('a', b'\\x00\\xff'); s.get('a')": "b'\\x00\\xff'",
    "s.set('e', ''); [s.get('e'), s.check(['e'])]": "[b'', True]",
    "s.set('', 'v'); s.get('')": "b'v'",
    "s.set(' \\n\\x00é%/', 'v'); s.get(' \\n\\x00é%/')": "b'v'",
    "s.set(b'k', bytearray(b'v')); s.get('k')": "b'v'",
    "s.set('k', None)": "TypeError",
    "s.set('k', 5)": "TypeError",
    "s.set('k' * 2000, 'v'); s.get('k' * 2000)": "b'v'",
    "s.set('b', 'x' * 2**20); len(s.get('b'))": "1048576",
    "s.set('b', 'x' * 2**23); len(s.get('b'))": "8388608",
    "s.set('b', 'x' * (2**23 + 1)); len(s.get('b'))": "8388609",
    "s.set('b', 'x' * 2**20); s.set('b', 'y'); s.get('b')": "b'y'",
    "[s.add('n', 1), s.add('n', -3), s.get('n')]": "[1, -2, b'-2']",
    "s.set('n', '12'); [s.add('n', 1), s.get('n')]": "[13, b'13']",
    "s.set('n', ' 12x'); [s.add('n', 1), s.get('n')]": "[13, b'13']",
    "s.set('n', '+007'); s.add('n', 0); s.get('n')": "b'7'",
    "s.set('n', ''); s.add('n', 1)": "1",
    "s.set('n', 'zz'); s.add('n', 1)": "ValueError",
    "s.add('n', 2**62); s.add('n', 1)": "4611686018427387905",
    "s.add('n', 2**63 - 1); s.add('n', 1)": "-9223372036854775808",
    "s.add('n', 2**63)": "TypeError",
    "s.add('n', 4); s.append('n', '2'); s.add('n', 1)": "43",
    "[s.check([]), s.check(['a']), s.check(['a', 'missing'])]": "[True, True, False]",
    "s.wait([])": "None",
    "s.wait(['a'])": "None",
    "s.wait(['a', 'missing'])": "DistStoreError",
    "s.wait(['missing'], timedelta(seconds=0.2))": "DistStoreError",
    "[s.compare_set('k', '', 'v'), s.get('k')]": "[b'v', b'v']",
    "[s.compare_set('k', 'e', 'v'), s.check(['k'])]": "[b'e', False]",
    "[s.compare_set('a', 'x', 'v'), s.get('a')]": "[b'v', b'v']",
    "[s.compare_set('a', 'e', 'v'), s.get('a')]": "[b'x', b'x']",
    "[s.compare_set('a', '', 'v'), s.get('a')]": "[b'x', b'x']",
    "s.set('e', ''); [s.compare_set('e', '', 'v'), s.get('e')]": "[b'v', b'v']",
    "[s.compare_set('a', 'x', ''), s.get('a')]": "[b'', b'']",
    "s.set('b', 'x' * 10**5); len(s.compare_set('b', 'x' * 10**5, 'y' * 2**17))": "131072",
    "[s.delete_key('a'), s.check(['a'])]": "[True, False]",
    "[s.delete_key('a'), s.delete_key('a')]": "[True, False]",
    "s.set('b', 'v'); s.num_keys()": "2",
    "s.set('b c', 'v'); sorted(s.list_keys())": "['a', 'b c']",
    "s.set('k' * 600, 'v'); len(sorted(s.list_keys())[1])": "600",
    "s.append('k', 'v'); s.append('k', 'w'); s.get('k')": "b'vw'",
    "s.set('b', 'x' * 2**16); s.append('b', 'y'); len(s.get('b'))": "65537",
    "s.multi_set(['k', 'l'], ['1', '2']); s.multi_get(['l', 'k', 'l'])": "[b'2', b'1', b'2']",
    "s.multi_set(['k', 'k'], ['1', '2']); s.get('k')": "b'2'",
    "s.multi_set(['k'], ['1', '2'])": "DistStoreError",
    "s.multi_set([], []); s.multi_get([])": "[]",
    "s.multi_get(['a', 'missing'])": "DistStoreError",
    "s.multi_set([f'{i}' for i in range(2000)], ['v'] * 2000); s.num_keys()": "2001",
    "s.has_extended_api()": "True",
    "s.queue_push('q', '1'); s.queue_push('q', '2'); [s.queue_pop('q'), s.queue_len('q')]": (
        "[b'1', 1]"
    ),
    "s.queue_push('q', ''); s.queue_pop('q', False)": "b''",
    "s.queue_len('q')": "0",
    "s.queue_pop('q')": "DistStoreError",
    "s.queue_pop('q', False)": "QueueEmptyError",
    "s.queue_push('a', 'v'); [s.get('a'), s.queue_len('a')]": "[b'x', 1]",
    "s.queue_push('q', 'v'); [s.check(['q']), s.delete_key('q'), s.num_keys()]": "[True, False, 1]",
    "s.queue_push('q', 'v'); s.wait(['q'])": "None",
    "s.queue_push('q', 'v'); s.delete_key('q'); s.queue_len('q')": "1",
    "s.set_timeout(timedelta(seconds=9)); s.timeout": "datetime.timedelta(seconds=9)",
    "s.clone().get('a')": "b'x'",
    "c = s.clone(); c.set('k', 'v'); s.get('k')": "b'v'",
    "s.clone().timeout == s.timeout": "True",
    "c = s.clone(); c.set_timeout(timedelta(9)); s.timeout == c.timeout": "False",
    "s.barrier('b', 1)": "None",
    "s.barrier('b', 2, timedelta(seconds=0.2))": "DistStoreError",
    "dist.PrefixStore('p', s).queue_push('q', 'v')": "None",
    "dist.PrefixStore('p', s).list_keys()": "[]",
}
NEWER = ("barrier", "clone", "list_keys", "queue_len", "queue_pop", "queue_push")
"""Functions that the stores of an older torch do not have: there the cases of these do not run."""
for _name in (name for name in NEWER if not hasattr(TORCH.Store, name)):
    CASES = {case: result for case, result in CASES.items() if f".{_name}(" not in case}
"""By statements: `s` is a new store in which the key `a` holds `x`."""


def make(kind: str, folder: Path) -> Any:
    """Return a store of torch."""
    match kind:
        case "TCPStore":
            return TORCH.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        case "HashStore":
            return TORCH.HashStore()
        case _:
            return TORCH.FileStore(tempfile.mktemp(dir=folder), 1)


def run(case: str, store: Any) -> str:
    """Return what the last statement gives, or the name of its error."""
    # A clone of a TCPStore connects, which takes longer on a busy machine.
    store.set_timeout(PATIENCE if ".clone(" in case else TIMEOUT)
    store.set("a", "x")
    *first, last = case.split("; ")
    names = {"s": store, "dist": TORCH, "timedelta": timedelta}
    try:
        for statement in first:
            exec(statement, names)
        return repr(eval(last, names))
    except Exception as error:  # noqa: BLE001  # it is the result
        return type(error).__name__


def read_differences() -> dict[str, dict[str, str]]:
    """Return what the table says: by statements, the result of each kind of store."""
    found = {}
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 1 + len(KINDS) and cells[0].strip("`") in CASES:
            results = (cell.strip("`") for cell in cells[1:])
            found[cells[0].strip("`")] = dict(zip(KINDS, results, strict=True))
    return found
