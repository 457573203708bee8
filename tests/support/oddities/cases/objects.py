"""Objects of the main program: pickles, classes, their sources, and processes that need them."""

from __future__ import annotations

from support.oddities.case import Case

CLASS = """
import dataclasses, multiprocessing, os, pickle, sys
class Point:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return type(self) is type(other) and self.x == other.x
    def __repr__(self): return f"{type(self).__module__}.{type(self).__qualname__}({self.x})"
def twice(x): return 2 * x
"""


def guarded(body: str, *, head: str = CLASS) -> str:
    """Return a program that does something only when it is the main program."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f'{head}\nif __name__ == "__main__":\n{lines}\n'


def started(method: str, body: str) -> str:
    """Return a main program that has a context of multiprocessing."""
    return guarded(f"context = multiprocessing.get_context({method!r})\n{body}")


METHODS = ("fork", "spawn", "forkserver")

PROCESSES = tuple(
    case
    for method in METHODS
    for case in (
        Case(
            f"object-process-{method}",
            started(
                method,
                "queue = context.SimpleQueue()\n"
                "process = context.Process(target=queue.put, args=(Point(3),))\n"
                "process.start(); print(queue.get()); process.join(); print(process.exitcode)",
            ),
            says="__main__.Point",
        ),
        Case(
            f"object-pool-{method}",
            started(
                method,
                "with context.Pool(1) as pool: print(pool.map(twice, [1, 2]))",
            ),
            says="2, 4",
        ),
        Case(
            f"object-process-main-{method}",
            started(
                method,
                "queue = context.SimpleQueue()\n"
                "process = context.Process(target=show, args=(queue,))\n"
                "process.start(); print(queue.get()); process.join()",
            ).replace(
                "def twice",
                "def show(queue):\n"
                "    main = sys.modules['__main__']\n"
                "    queue.put((__name__, main.__name__, getattr(main, '__file__', 0), sys.argv,\n"
                "        sys.path, str(sys.flags), os.environ['RANK'], "
                "os.environ.get('PYTHONPATH')))\n"
                "def twice",
            ),
            args=("a", "b"),
            env={"PYTHONPATH": "{here}/more"},
            says="train.py",
        ),
        Case(
            f"object-process-fails-{method}",
            started(
                method,
                "process = context.Process(target=twice, args=())\n"
                "process.start(); process.join(); print(process.exitcode)",
            ),
            hide=r"Process-\d+|Process \w+-\d+",
            says="TypeError",
        ),
    )
)

CASES = (
    *PROCESSES,
    Case("object-pickle", f"{CLASS}\nd = pickle.dumps(Point(1)); print(d, pickle.loads(d))"),
    Case(
        "object-pickle-function",
        f"{CLASS}\nprint(pickle.dumps(twice), pickle.loads(pickle.dumps(twice)) is twice)",
    ),
    Case("object-pickle-lambda", "import pickle; pickle.dumps(lambda: 1)", exit=1, says="lambda"),
    Case(
        "object-pickle-local",
        "import pickle\ndef f():\n    class A: pass\n    return A()\npickle.dumps(f())",
        exit=1,
        says="local object",
    ),
    Case(
        "object-dataclass",
        "import dataclasses, typing, pickle\n@dataclasses.dataclass(frozen=True, slots=True)\n"
        "class A:\n    x: int = 1\n    y: list = dataclasses.field(default_factory=list)\n"
        "print(A(), A.__module__, typing.get_type_hints(A), dataclasses.fields(A))\n"
        "print(pickle.loads(pickle.dumps(A(2))))",
    ),
    Case(
        "object-dataclass-future",
        "from __future__ import annotations\nimport dataclasses, typing\n@dataclasses.dataclass\n"
        "class Node:\n    next: Node | None = None\n    kind: typing.ClassVar[str] = 'k'\n"
        "print(typing.get_type_hints(Node), Node(Node()), "
        "[f.name for f in dataclasses.fields(Node)])",
    ),
    Case(
        "object-enum",
        "import enum, pickle\nclass E(enum.Flag):\n    A = 1\n    B = 2\n"
        "print(pickle.loads(pickle.dumps(E.A | E.B)), E.__module__)",
    ),
    Case(
        "object-named-tuple",
        "import collections, pickle\nP = collections.namedtuple('P', 'x y')\n"
        "print(pickle.loads(pickle.dumps(P(1, 2))), P.__module__)",
    ),
    Case(
        "object-source",
        "import inspect\ndef f():\n    return 1  # why\n"
        "print(inspect.getsource(f), inspect.getsourcefile(f))",
        says="# why",
    ),
    Case(
        "object-source-of-class",
        "import inspect\nclass A:\n    # note\n    def f(self): pass\n"
        "print(inspect.getsource(A), inspect.getmodule(A), inspect.getfile(A))",
    ),
    Case(
        "object-source-of-main",
        "import inspect, sys\nm = sys.modules['__main__']\n"
        "print(inspect.getsource(m), inspect.getfile(m), "
        "inspect.getmodulename(m.__file__))",
    ),
    Case(
        "object-lines",
        "import linecache\nprint(linecache.getlines(__file__), linecache.cache.keys())",
        preload=("linecache",),
    ),
    Case(
        "object-source-of-preloaded-module",
        "import inspect, own; print(inspect.getsource(own.f))",
        {"own.py": "def f():\n    return 1  # own"},
        preload=("own",),
        says="# own",
    ),
    Case(
        "object-type-hints",
        "import typing\ndef f(x: 'Late') -> 'list[Late]': ...\nclass Late: pass\n"
        "print(typing.get_type_hints(f))",
    ),
    Case(
        "object-doctest",
        "def f():\n    '''\n    >>> f()\n    1\n    '''\n    return 1\n"
        "import doctest; print(doctest.testmod())",
        says="attempted=1",
    ),
    Case(
        "object-unittest",
        "import unittest\nclass T(unittest.TestCase):\n"
        "    def test(self): self.assertEqual(1, 1)\nunittest.main()",
        hide=r"in \d\.\d+s",
        says="OK",
    ),
    Case(
        "object-argparse",
        "import argparse\n"
        "p = argparse.ArgumentParser(); p.add_argument('--x', type=int)\n"
        "print(p.parse_args(), p.prog)",
        args=("--x", "3"),
    ),
    Case(
        "object-argparse-fails",
        "import argparse\nargparse.ArgumentParser().parse_args()",
        args=("--no",),
        exit=2,
        says="train.py",
    ),
    Case(
        "object-import-of-main",
        "import sys\nif __name__ == '__main__':\n"
        "    import train; print(train is sys.modules['__main__'], train.__name__)",
        says="False train",
    ),
    Case(
        "object-run-path",
        "import runpy; print(runpy.run_path('other.py', run_name='__main__')['X'])",
        {"other.py": "X = __name__, __file__"},
        preload=("runpy",),
    ),
    Case(
        "object-run-module",
        "import runpy; print(runpy.run_module('other', run_name='__main__', alter_sys=True)['X'])",
        {"other.py": "import sys\nX = __name__, sys.argv"},
    ),
    Case("object-exec", "exec(compile('import sys; print(__name__, __file__)', 'x', 'exec'))"),
    Case("object-globals", "X = 1\ndef f(): global Y; Y = X\nf(); print(sorted(globals()), Y)"),
    Case(
        "object-logger-name",
        "import logging; print(logging.getLogger(__name__), logging.getLogger().handlers)",
    ),
    Case(
        "object-warning-registry",
        "import warnings\nwarnings.warn('x'); print(sorted(k for k in globals() if 'warn' in k))",
    ),
    Case(
        "object-weak",
        "import weakref\nclass A: pass\n"
        "a = A(); w = weakref.WeakValueDictionary(a=a); del a; print(dict(w))",
    ),
    Case(
        "object-garbage",
        "import gc\nclass A:\n    def __del__(self): print('collected')\n"
        "a = A(); a.a = a; del a; print(gc.collect() > 0)",
        says="collected",
    ),
    Case(
        "object-audit",
        "import sys\nsys.addaudithook(lambda e, a: print(e) if e in ('open', "
        "'import') else None)\nopen(__file__).close(); import colorsys",
        preload=(),
        says="open",
    ),
    Case(
        "object-contextvars", "import contextvars\nprint(list(contextvars.copy_context().items()))"
    ),
    Case(
        "object-executor-spawn",
        guarded(
            "from concurrent.futures import ProcessPoolExecutor as P\n"
            "with P(1, mp_context=multiprocessing.get_context('spawn')) as p: "
            "print(p.submit(twice, 4).result())"
        ),
        says="8",
    ),
    Case(
        "object-set-start-method",
        guarded(
            "multiprocessing.set_start_method('spawn'); print(multiprocessing.get_start_method())"
        ),
    ),
    Case(
        "object-executable",
        guarded(
            "import multiprocessing.spawn as s; "
            "print(s.get_executable(), s.get_command_line(pipe_handle=3))"
        ),
    ),
    Case(
        "object-manager",
        guarded("with multiprocessing.Manager() as m:\n    d = m.dict(x=1); print(dict(d))"),
        says="'x': 1",
    ),
    Case(
        "object-shared-memory",
        guarded(
            "from multiprocessing import shared_memory as s\n"
            "m = s.SharedMemory(create=True, size=9); m.buf[0] = 7; print(m.buf[0]); "
            "m.close(); m.unlink()"
        ),
    ),
)
