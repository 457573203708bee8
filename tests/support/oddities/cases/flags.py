"""Flags of the interpreter, and its own variables."""

from __future__ import annotations

from support.oddities.case import STOCK, Case, Difference

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

CASES = (
    Case("flag-O", f"assert False\nprint(__debug__){SHOW}", flags=("-O",), says="False"),
    Case("flag-OO", f"def f():\n  'doc'\nprint(f.__doc__, __debug__){SHOW}", flags=("-OO",)),
    Case(
        "flag-O-of-imports",
        "import own; print(own.DEBUG, own.__cached__)",
        {"own.py": "DEBUG = __debug__"},
        flags=("-O",),
        preload=("own",),
        says="False",
    ),
    Case("flag-B", SHOW, flags=("-B",)),
    Case(
        "flag-B-of-imports",
        "import own, os; print(os.path.exists('__pycache__'))",
        {"own.py": ""},
        flags=("-B",),
        preload=("own",),
        says="False",
    ),
    Case("flag-b", "print(str(b'x'))", flags=("-b",), says="BytesWarning"),
    Case("flag-bb", "print(str(b'x'))", flags=("-bb",), exit=1, says="BytesWarning"),
    Case("flag-s", f"import site; print(site.ENABLE_USER_SITE){SHOW}", flags=("-s",)),
    Case("flag-W-error", WARNS, flags=("-W", "error"), exit=1, says="DeprecationWarning: old"),
    Case("flag-W-ignore", WARNS, flags=("-Wignore",)),
    Case("flag-W-default", WARNS, flags=("-Wdefault",), says="old"),
    Case("flag-W-always", WARNS, flags=("-W", "always", "-W", "ignore::UserWarning")),
    Case("flag-W-module", WARNS, flags=("-Werror::UserWarning:__main__",), exit=1),
    Case("flag-W-unknown", WARNS, flags=("-Wnonsense",), says="Invalid -W"),
    Case("flag-W-none", WARNS),
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
    Case(
        "flag-X-dev-faulthandler",
        "import faulthandler as f; print(f.is_enabled())",
        flags=("-Xdev",),
    ),
    Case("flag-X-utf8", f"print('ü'){SHOW}", flags=("-X", "utf8"), env={"LC_ALL": "C"}),
    Case("flag-X-utf8-off", f"print('u'){SHOW}", flags=("-X", "utf8=0"), env={"LC_ALL": "C"}),
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
    Case("flag-X-int-digits", SHOW, flags=("-Xint_max_str_digits=900",)),
    Case("flag-X-no-debug-ranges", "x = 1\nx.a.b", flags=("-Xno_debug_ranges",), exit=1),
    Case("flag-X-frozen-modules", SHOW, flags=("-Xfrozen_modules=off",)),
    Case("flag-X-own", SHOW, flags=("-Xmine=1", "-Xyours"), says="yours"),
    Case(
        "flag-X-pycache",
        "import own; print(own.__cached__)",
        {"own.py": ""},
        flags=("-Xpycache_prefix={here}/cache",),
        preload=("own",),
    ),
    Case("flag-X-warn-encoding", "open(__file__)", flags=("-Xwarn_default_encoding",)),
    Case("flag-q", SHOW, flags=("-q",)),
    Case("flag-P", SHOW, flags=("-P",)),
    Case("flag-u-twice", SHOW, flags=("-u",)),
    Case("flag-R", SHOW, flags=("-R",)),
    Case("flag-d", SHOW, flags=("-d",)),
    Case("variable-optimize", SHOW, env={"PYTHONOPTIMIZE": "2"}, says="optimize=2"),
    Case("variable-warnings", WARNS, env={"PYTHONWARNINGS": "error::UserWarning"}, exit=1),
    Case("variable-dev", f"{LEAKS}{SHOW}", env={"PYTHONDEVMODE": "1"}),
    Case("variable-unbuffered", SHOW, env={"PYTHONUNBUFFERED": "1"}),
    Case("variable-no-bytecode", SHOW, env={"PYTHONDONTWRITEBYTECODE": "1"}),
    Case("variable-hash-seed", "print({'a', 'b', 'c'}, hash('x'))", env={"PYTHONHASHSEED": "0"}),
    Case("variable-encoding", "print('ü', '\\udce9')", env={"PYTHONIOENCODING": "latin1:replace"}),
    Case("variable-utf16", "print('ü'); print('x')", env={"PYTHONIOENCODING": "utf-16"}),
    Case("variable-utf8", SHOW, env={"PYTHONUTF8": "1", "LC_ALL": "POSIX"}),
    Case("variable-locale-C", f"print('x'){SHOW}", env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}),
    Case("variable-coerced", SHOW, env={"LC_ALL": "-", "LANG": "-"}),
    Case(
        "variable-coerced-environment",
        "import os; print(os.environ.get('LC_CTYPE'), os.environb.get(b'LC_CTYPE'))",
        env={"LC_ALL": "-", "LANG": "C"},
        says="C.UTF-8",
    ),
    Case("variable-no-user-site", SHOW, env={"PYTHONNOUSERSITE": "1"}),
    Case(
        "variable-faulthandler", "import os; os.abort()", env={"PYTHONFAULTHANDLER": "1"}, exit=-6
    ),
    Case("variable-malloc", SHOW, env={"PYTHONMALLOC": "debug"}),
    Case("variable-breakpoint", "breakpoint(); print(1)", env={"PYTHONBREAKPOINT": "0"}),
    Case(
        "variable-breakpoint-own",
        "breakpoint()",
        {"own.py": "def stop(): print('stopped')"},
        env={"PYTHONBREAKPOINT": "own.stop"},
        preload=("own",),
        says="stopped",
    ),
    Case("variable-inspect", "import sys; print(sys.flags.inspect)", env={"PYTHONINSPECT": "1"}),
    Case("variable-startup", "print(1)", env={"PYTHONSTARTUP": "{here}/train.py"}),
    Case("variable-int-digits", "print(10 ** 800)", env={"PYTHONINTMAXSTRDIGITS": "640"}, exit=1),
    Case(
        "variable-asyncio-debug",
        "import asyncio\nasync def f(): return asyncio.get_running_loop().get_debug()\n"
        "print(asyncio.run(f()))",
        env={"PYTHONASYNCIODEBUG": "1"},
        preload=("asyncio",),
        says="True",
    ),
    Case("variable-home-missing", "", env={"PYTHONPLATLIBDIR": "lib"}),
)
