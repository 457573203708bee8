"""Ways to start a program, its flags and its objects, and programs that need numpy or torch."""

from __future__ import annotations

import os

from support.oddities.case import STOCK, Case, Difference, zipped

WHOLE = """
import os, sys
main = sys.modules["__main__"]
print(sys.argv, sys.orig_argv, sys.path, sys.flags)
print(__name__, __file__, __package__, __cached__, type(__loader__).__name__)
print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent, __spec__.cached))
print(os.getcwd(), sorted(vars(main)), main.__dict__ is globals())
"""


STARTS = (
    Case("start-script", WHOLE, args=("a", "b c"), says="train.py"),
    Case("start-relative-script", WHOLE, script="train.py"),
    Case(
        "start-script-in-folder",
        WHOLE,
        {"jobs/near.py": "print('near is here')", "jobs/run.py": f"import near\n{WHOLE}"},
        script="jobs/run.py",
        preload=("near",),
        says="near is here",
    ),
    Case(
        "start-link-to-folder",
        "",
        {
            "real/train.py": f"import beside\n{WHOLE}",
            "real/beside.py": "",
            "->link.py": "real/train.py",
        },
        script="{here}/link.py",
        preload=("beside",),
        says="real",
    ),
    Case("start-odd-argv", WHOLE, args=("-c", "--", "-m", "\udce9", "ü", "$X", "${local_rank}")),
    Case(
        "start-other-argv",
        WHOLE,
        args=("--round", "2", "result-2"),
        args_before=("--round", "1", "result-1"),
        says=r"orig|result-2.*result-2",
    ),
    Case(
        "start-argv-of-import",
        "import own; print(own.ARGV)",
        {"own.py": "import sys\nARGV = sys.argv"},
        args=("2",),
        args_before=("1",),
        preload=("own",),
        says="'2'",
    ),
    Case(
        "start-argv-taken-by-import",
        "import own, sys; print(own.TAKEN, sys.argv, sys.orig_argv[-3:])",
        {"own.py": "import sys\nTAKEN = sys.argv.pop(1)"},
        args=("--own", "1", "2"),
        preload=("own",),
        says="--own",
    ),
    Case("start-module", "", {"tool.py": WHOLE}, script="tool", is_module=True, args=("1",)),
    Case(
        "start-module-of-preloaded-package",
        "",
        {
            "pkg/__init__.py": "print('pkg', __name__)",
            "pkg/mod.py": f"from . import x\n{WHOLE}",
            "pkg/x.py": "",
        },
        script="pkg.mod",
        is_module=True,
        preload=("pkg", "pkg.x"),
    ),
    Case(
        "start-module-already-imported",
        "",
        {"pkg/__init__.py": "", "pkg/mod.py": WHOLE},
        script="pkg.mod",
        is_module=True,
        preload=("pkg.mod",),
        differs=Difference("RuntimeWarning", "^((?!RuntimeWarning)[^\\0])*$", "RuntimeWarning"),
    ),
    Case(
        "start-package",
        "",
        {
            "pkg/__init__.py": "HERE = __path__",
            "pkg/__main__.py": f"{WHOLE}\nfrom . import HERE\nprint(HERE)",
        },
        script="pkg",
        is_module=True,
        preload=("pkg",),
    ),
    Case(
        "start-folder-preloaded",
        "",
        {"app/__main__.py": f"import lib\n{WHOLE}", "app/lib.py": "print(__file__)"},
        script="{here}/app",
        preload=("lib",),
    ),
    Case(
        "start-zip-preloaded",
        "",
        {"app.pyz": zipped(__main__=f"import lib\n{WHOLE}", lib="print(__file__)")},
        script="app.pyz",
        preload=("lib",),
    ),
    Case("start-run-path", WHOLE, run_path=True, args=("x",)),
    Case("start-missing", "", script="{here}/gone.py", exit=2, says="can't open file"),
    Case(
        "start-shebang-file",
        "#!/usr/bin/env python\nimport sys; print(sys.argv, __file__)",
        later={"train.py": "import sys; print('rewritten', sys.argv)"},
        says="rewritten",
    ),
    Case("start-deleted-later", "print(1)", later={"train.py": None}, exit=2, says="can't open"),
    Case("start-made-later", "", script="{here}/new.py", later={"new.py": WHOLE}, says="new.py"),
)

SHOW = """
import sys, warnings
print(sys.flags, sys.warnoptions, sys._xoptions, sys.orig_argv)
print([str(one) for one in warnings.filters])
"""
WARNS = """
import warnings, sys
def f(): warnings.warn("old", DeprecationWarning)
f(); f()
warnings.warn("user")
print(sys.warnoptions)
"""
LEAKS = "open(__file__)\nimport sys; print(sys.flags.dev_mode)"

FLAGS = (
    Case(
        "flag-O-of-imports",
        "import own; print(own.DEBUG, own.__cached__)",
        {"own.py": "DEBUG = __debug__"},
        flags=("-O",),
        preload=("own",),
        says="False",
    ),
    Case(
        "flag-B-of-imports",
        "import own, os; print(os.path.exists('__pycache__'))",
        {"own.py": ""},
        flags=("-B",),
        preload=("own",),
        says="False",
    ),
    Case("flag-bb", "print(str(b'x'))", flags=("-bb",), exit=1, says="BytesWarning"),
    Case("flag-W-error", WARNS, flags=("-W", "error"), exit=1, says="DeprecationWarning: old"),
    Case("flag-W-error-numbers", SHOW, flags=("-Werror",), preload=(*STOCK, "decimal", "asyncio")),
    Case(
        "flag-W-error-of-imports",
        "import old; print('never')",
        {"old.py": "import warnings\nwarnings.warn('old', DeprecationWarning)"},
        flags=("-Werror",),
        preload=("old",),
        exit=1,
        says="DeprecationWarning: old",
    ),
    Case("flag-X-dev", f"{LEAKS}{SHOW}", flags=("-X", "dev"), says="ResourceWarning: unclosed"),
    Case("flag-X-faulthandler", "import os; os.abort()", flags=("-Xfaulthandler",), exit=-6),
    Case(
        "flag-X-tracemalloc",
        "import tracemalloc as t; x = bytearray(99_999); print(t.get_traceback_limit())\n"
        "print(t.get_object_traceback(x))",
        flags=("-Xtracemalloc=5",),
        says="train.py",
    ),
    Case(
        "flag-X-importtime",
        "import sys; print('script')",
        flags=("-Ximporttime",),
        preload=(),
        differs=Difference(
            "`-X importtime`", r"^((?!rallypoint_)[^\0])*$", "rallypoint_forkserver"
        ),
    ),
    Case("flag-X-warn-encoding", "open(__file__)", flags=("-Xwarn_default_encoding",)),
    Case("variable-unbuffered", SHOW, env={"PYTHONUNBUFFERED": "1"}),
    Case("variable-utf16", "print('ü'); print('x')", env={"PYTHONIOENCODING": "utf-16"}),
    Case("variable-locale-C", f"print('x'){SHOW}", env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}),
    Case("variable-coerced", SHOW, env={"LC_ALL": "-", "LANG": "-"}),
    Case(
        "variable-coerced-environment",
        "import os; print(os.environ.get('LC_CTYPE'), os.environb.get(b'LC_CTYPE'))",
        env={"LC_ALL": "-", "LANG": "C"},
        says="C.UTF-8",
    ),
)

CLASS = """
import dataclasses, multiprocessing, os, pickle, sys
class Point:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return type(self) is type(other) and self.x == other.x
    def __repr__(self): return f"{type(self).__module__}.{type(self).__qualname__}({self.x})"
def show(queue):
    main = sys.modules["__main__"]
    names = __name__, main.__name__, getattr(main, "__file__", 0)
    environ = os.environ["RANK"], os.environ.get("PYTHONPATH")
    queue.put((names, sys.argv, sys.path, str(sys.flags), environ))
"""


def guarded(body: str) -> str:
    """Return a program that does something only when it is the main program."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f'{CLASS}\nif __name__ == "__main__":\n{lines}\n'


def started(method: str, body: str) -> str:
    """Return a main program that has a context of multiprocessing."""
    return guarded(f"context = multiprocessing.get_context({method!r})\n{body}")


STARTED = tuple(
    case
    for method in ("fork", "spawn", "forkserver")
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
            f"object-process-main-{method}",
            started(
                method,
                "queue = context.SimpleQueue()\n"
                "process = context.Process(target=show, args=(queue,))\n"
                "process.start(); print(queue.get()); process.join()",
            ),
            args=("a", "b"),
            env={"PYTHONPATH": "{here}/more"},
            says="train.py",
        ),
    )
)

OBJECTS = (
    *STARTED,
    Case("object-pickle", f"{CLASS}\nd = pickle.dumps(Point(1)); print(d, pickle.loads(d))"),
    Case(
        "object-source",
        "import inspect\ndef f():\n    return 1  # why\n"
        "print(inspect.getsource(f), inspect.getsourcefile(f))",
        says="# why",
    ),
    Case(
        "object-source-of-main",
        "import inspect, sys\nm = sys.modules['__main__']\n"
        "print(inspect.getsource(m), inspect.getfile(m), "
        "inspect.getmodulename(m.__file__))",
    ),
    Case(
        "object-import-of-main",
        "import sys\nif __name__ == '__main__':\n"
        "    import train; print(train is sys.modules['__main__'], train.__name__)",
        says="False train",
    ),
    Case(
        "object-warning-registry",
        "import warnings\nwarnings.warn('x'); print(sorted(k for k in globals() if 'warn' in k))",
    ),
    Case(
        "object-garbage",
        "import gc\nclass A:\n    def __del__(self): print('collected')\n"
        "a = A(); a.a = a; del a; print(gc.collect() > 0)",
        says="collected",
    ),
)

TORCH = ("torch", "numpy")
TRACKER = "multiprocessing.resource_tracker"
"""It warns on a busy machine, when it hears of the end of a semaphore too late."""
LOADER = """
import torch, sys
from torch.utils.data import DataLoader, Dataset, get_worker_info
class Squares(Dataset):
    def __len__(self): return 6
    def __getitem__(self, n):
        return torch.tensor([n * n, get_worker_info().id, len(sys.argv)])
def collate(items): return torch.stack(items).tolist()
if __name__ == "__main__":
    loader = DataLoader(
        Squares(), 2, num_workers=1, collate_fn=collate, multiprocessing_context=METHOD
    )
    print(list(loader))
"""

FRAMEWORKS = (
    *(
        Case(
            f"framework-loader-{method}",
            LOADER.replace("METHOD", repr(method)),
            args=("a", "b"),
            env={"PYTHONWARNINGS": f"ignore::UserWarning:{TRACKER}"},
            preload=TORCH,
            says=r"\[25, 0, 3\]",
        )
        for method in ("fork", "spawn", "forkserver")
    ),
    Case(
        "framework-seeded-by-import",
        "import own, torch, numpy; print(torch.rand(2), numpy.random.rand(2))",
        {"own.py": "import torch, numpy\ntorch.manual_seed(1); numpy.random.seed(1)"},
        preload=(*TORCH, "own"),
        says=r"0\.7576, 0\.2793.*0\.417",
    ),
    Case(
        "framework-threads",
        "import torch; print(torch.get_num_threads(), torch.get_num_interop_threads())\n"
        "print((torch.ones(400, 400) @ torch.ones(400, 400)).sum().item())",
        env={"OMP_NUM_THREADS": "1"},
        preload=TORCH,
        says="64000000",
    ),
    Case(
        "framework-threads-of-bound-worker",
        "import os, torch; print(torch.get_num_threads(), os.sched_getaffinity(0))",
        cpus=(min(os.sched_getaffinity(0)),),
        preload=TORCH,
        says="^1 {",
    ),
    Case(
        "framework-gloo",
        "import os, torch, torch.distributed as d\n"
        "d.init_process_group('gloo', init_method='file://' + os.path.abspath('store'),\n"
        "    rank=0, world_size=1)\n"
        "t = torch.ones(1); d.all_reduce(t); print(t); d.destroy_process_group()",
        preload=(*TORCH, "torch.distributed"),
        says="tensor",
    ),
)

CASES = (*STARTS, *FLAGS, *OBJECTS)
