"""Ways to start a program, its flags and its objects, and programs that need numpy or torch."""

from __future__ import annotations

import os

from support.oddities.case import STOCK, Case, Difference, own, zipped

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
    Case(
        "start-script-in-folder",
        WHOLE,
        {"jobs/near.py": "print('near is here')", "jobs/run.py": f"import near\n{WHOLE}"},
        script="jobs/run.py",
        preload=("near",),
        says="near is here",
    ),
    Case("start-odd-argv", WHOLE, args=("-c", "--", "-m", "\udce9", "ü", "$X", "${local_rank}")),
    Case(
        "start-other-argv",
        WHOLE,
        args=("--round", "2", "result-2"),
        args_before=("--round", "1", "result-1"),
        says=r"orig|result-2.*result-2",
    ),
    own(
        "start-argv-of-import",
        "import own; print(own.ARGV)",
        "import sys\nARGV = sys.argv",
        args=("2",),
        args_before=("1",),
        says="'2'",
    ),
    own(
        "start-argv-taken-by-import",
        "import own, sys; print(own.TAKEN, sys.argv, sys.orig_argv[-3:])",
        "import sys\nTAKEN = sys.argv.pop(1)",
        args=("--own", "1", "2"),
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
    Case(
        "start-shebang-file",
        "#!/usr/bin/env python\nimport sys; print(sys.argv, __file__)",
        later={"train.py": "import sys; print('rewritten', sys.argv)"},
        says="rewritten",
    ),
    Case("start-made-later", "", script="{here}/new.py", later={"new.py": WHOLE}, says="new.py"),
)

SHOW = """
import sys, warnings
print(sys.flags, sys.warnoptions, sys._xoptions, sys.orig_argv)
print([str(one) for one in warnings.filters])
"""

FLAGS = (
    own(
        "flag-O-of-imports",
        "import own; print(own.DEBUG, own.__cached__)",
        "DEBUG = __debug__",
        flags=("-O",),
        says="False",
    ),
    own(
        "flag-B-of-imports",
        "import own, os; print(os.path.exists('__pycache__'))",
        "",
        flags=("-B",),
        says="False",
    ),
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
    Case("flag-X-faulthandler", "import os; os.abort()", flags=("-Xfaulthandler",), exit=-6),
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
    Case("variable-locale-C", f"print('x'){SHOW}", env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}),
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
