"""Ways to start a program, and where it lies."""

from __future__ import annotations

from support.oddities.case import STOCK, Case, Difference, zipped

WHOLE = """
import os, sys
main = sys.modules["__main__"]
print(sys.argv, sys.orig_argv, sys.path, sys.flags)
print(__name__, __file__, __package__, __cached__, type(__loader__).__name__)
print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent, __spec__.cached))
print(os.getcwd(), sorted(vars(main)), main.__dict__ is globals())
"""


CASES = (
    Case("start-script", WHOLE, args=("a", "b c"), says="train.py"),
    Case("start-relative-script", WHOLE, script="train.py"),
    Case("start-dotted-script", WHOLE, script="./train.py"),
    Case(
        "start-script-in-folder",
        WHOLE,
        {"jobs/near.py": "print('near is here')", "jobs/run.py": f"import near\n{WHOLE}"},
        script="jobs/run.py",
        preload=("near",),
        says="near is here",
    ),
    Case("start-upward", WHOLE, {"below": None}, script="../train.py", cwd="{here}/below"),
    Case(
        "start-elsewhere",
        f"import beside\n{WHOLE}",
        {"below": None, "beside.py": "print(__file__)"},
        cwd="{here}/below",
        preload=("beside",),
    ),
    Case("start-link", WHOLE, {"->link.py": "train.py"}, script="{here}/link.py"),
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
    Case("start-no-suffix", "", {"train": WHOLE}, script="{here}/train"),
    Case("start-spaces", "", {"a b/träin é.py": WHOLE}, script="{here}/a b/träin é.py"),
    Case("start-odd-argv", WHOLE, args=("-c", "--", "-m", "\udce9", "ü", "$X", "${local_rank}")),
    Case(
        "start-many-argv", "import sys; print(len(sys.argv), sys.argv[-1])", args=("x" * 90,) * 999
    ),
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
        "start-module-in-package",
        "",
        {"pkg/__init__.py": "print('pkg', __name__)", "pkg/mod.py": WHOLE},
        script="pkg.mod",
        is_module=True,
    ),
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
        "start-namespace-package",
        "",
        {
            "space/mod.py": f"{WHOLE}\nfrom .other import NAME\nprint(NAME)",
            "space/other.py": "NAME = __name__",
        },
        script="space.mod",
        is_module=True,
        preload=("space.other",),
    ),
    Case("start-module-missing", "", script="nowhere", is_module=True, exit=1, says="No module"),
    Case(
        "start-package-without-main",
        "",
        {"pkg/__init__.py": ""},
        script="pkg",
        is_module=True,
        exit=1,
        says="cannot be directly executed",
    ),
    Case(
        "start-standard-module",
        "",
        script="json.tool",
        is_module=True,
        args=("{here}/x.json",),
        files={"x.json": "[1]"},
        preload=("json",),
        says="1",
    ),
    Case(
        "start-standard-module-preloaded",
        "",
        script="json.tool",
        is_module=True,
        args=("{here}/x.json",),
        files={"x.json": "[1]"},
        preload=("json.tool",),
        differs=Difference("RuntimeWarning", "^((?!RuntimeWarning)[^\\0])*$", "RuntimeWarning"),
    ),
    Case("start-folder", "", {"app/__main__.py": WHOLE, "app/lib.py": ""}, script="app"),
    Case(
        "start-folder-preloaded",
        "",
        {"app/__main__.py": f"import lib\n{WHOLE}", "app/lib.py": "print(__file__)"},
        script="{here}/app",
        preload=("lib",),
    ),
    Case("start-zip", "", {"app.pyz": zipped(__main__=WHOLE)}, script="{here}/app.pyz"),
    Case(
        "start-zip-preloaded",
        "",
        {"app.pyz": zipped(__main__=f"import lib\n{WHOLE}", lib="print(__file__)")},
        script="app.pyz",
        preload=("lib",),
    ),
    Case("start-run-path", WHOLE, run_path=True, args=("x",)),
    Case(
        "start-run-path-folder", "", {"app/__main__.py": WHOLE}, script="{here}/app", run_path=True
    ),
    Case(
        "start-run-path-raises",
        "def f():\n    raise ValueError('no')\nf()",
        run_path=True,
        exit=1,
        says="ValueError: no",
        env={"TORCHELASTIC_ERROR_FILE": "{here}/error.json"},
    ),
    Case("start-missing", "", script="{here}/gone.py", exit=2, says="can't open file"),
    Case("start-missing-relative", "", script="gone.py", exit=2, says="can't open file"),
    Case("start-empty", "", preload=STOCK),
    Case("start-syntax-error", "x = (\n1 +\n", exit=1, says="SyntaxError"),
    Case("start-null-byte", "print(1)\n\0", exit=1, says="null bytes|NUL"),
    Case(
        "start-encoding",
        "",
        {"l.py": "# coding: latin-1\nprint('\xe9')".encode("latin-1")},
        script="l.py",
    ),
    Case(
        "start-bad-encoding",
        "",
        {"l.py": b"print('\xe9')"},
        script="l.py",
        exit=1,
        says="Non-UTF-8",
    ),
    Case("start-bom", "", {"b.py": b"\xef\xbb\xbfprint(__file__)"}, script="b.py", says="b.py"),
    Case("start-crlf", "", {"c.py": b"print('one')\r\nprint('''a\r\nb''')\r\n"}, script="c.py"),
    Case(
        "start-future",
        "from __future__ import annotations\nprint(__annotations__)\nx: no = 1\n"
        "print(__annotations__)",
    ),
    Case(
        "start-compiled",
        """
        import os, py_compile, sys
        if sys.argv[0].endswith("train.py"):
            made = py_compile.compile("other.py", cfile="other.pyc")
            os.execv(sys.executable, [sys.executable, "-u", made])
        """,
        {"other.py": WHOLE},
        says="other",
    ),
    Case(
        "start-shebang-file",
        "#!/usr/bin/env python\nimport sys; print(sys.argv, __file__)",
        later={"train.py": "import sys; print('rewritten', sys.argv)"},
        says="rewritten",
    ),
    Case("start-deleted-later", "print(1)", later={"train.py": None}, exit=2, says="can't open"),
    Case("start-made-later", "", script="{here}/new.py", later={"new.py": WHOLE}, says="new.py"),
)
