"""Imports: where modules come from, what they do, and what has changed since."""

from __future__ import annotations

from support.oddities.case import Case, Difference, zipped

SHOW_ENVIRONMENT = (
    "import own, os; os.system('env | grep -v ^_= | sort'); print(sorted(os.environ.items()))"
)

CASES = (
    Case(
        "import-local-json",
        "import json; print(json.__file__, json.OWN)",
        {"json.py": "OWN = True\ndef dumps(x): return ''"},
        preload=("logging",),
        says="True",
    ),
    Case(
        "import-local-array",
        "import array, fcntl, re; print(array.__name__, fcntl.__name__, re.OWN)",
        {"re.py": "OWN = True", "array.py": "", "fcntl.py": ""},
        preload=(),
        says="True",
    ),
    Case(
        "import-local-first",
        "import colorsys; print(colorsys.OWN)",
        {"colorsys.py": "OWN = __file__"},
        preload=("colorsys",),
    ),
    Case(
        "import-safe-path",
        "import colorsys; print(hasattr(colorsys, 'OWN'), colorsys.__file__)",
        {"colorsys.py": "OWN = __file__"},
        preload=("colorsys",),
        env={"PYTHONSAFEPATH": "1"},
        says="False",
    ),
    Case(
        "import-safe-path-flag",
        "import sys, colorsys; print(hasattr(colorsys, 'OWN'), sys.path)",
        {"colorsys.py": "OWN = __file__"},
        preload=("colorsys",),
        flags=("-P",),
        says="False",
    ),
    Case(
        "import-prints",
        "import loud; print('script')",
        {"loud.py": "import sys\nprint('out'); print('err', file=sys.stderr)"},
        preload=("loud",),
        says="out\nscript",
    ),
    Case(
        "import-prints-without-newline",
        "import loud; print('script')",
        {
            "loud.py": (
                "import os, sys\nsys.stdout.write('a')\nos.write(1, b'b')\nos.system('printf c')"
            )
        },
        preload=("loud",),
        says="abcscript",
    ),
    Case(
        "import-prints-much",
        "import loud; print('script')",
        {"loud.py": "print('x' * 60_000)"},
        preload=("loud",),
    ),
    Case(
        "import-prints-too-much",
        "import loud; print('script')",
        {"loud.py": "print('x' * 200_000 + 'end')"},
        preload=("loud",),
        differs=Difference("up to 64 KiB", "xxend\nscript", "xxscript"),
    ),
    Case(
        "import-prints-far-too-much",
        "import loud; print('script')",
        {"loud.py": "print('x' * 3_000_000 + 'end')"},
        preload=("loud",),
        differs=Difference("up to 64 KiB", "xxend\nscript", "xxscript"),
    ),
    Case(
        "import-prints-late",
        "print('script'); import loud",
        {"loud.py": "print('loud')"},
        preload=("loud",),
        differs=Difference("is shown when the worker starts", "script\nloud", "loud\nscript"),
    ),
    Case(
        "import-redirects",
        "import loud; print('script')",
        {"loud.py": "import os\nos.dup2(os.open('log', os.O_WRONLY | os.O_CREAT), 1)"},
        preload=("loud",),
        refused="redirected descriptor 1",
    ),
    Case(
        "import-copies-output",
        "import loud; loud.say()",
        {"loud.py": "import os\nFD = os.dup(1)\ndef say(): os.write(FD, b'heard')"},
        preload=("loud",),
        refused="copied the descriptor of its output",
        says="heard",
    ),
    Case(
        "import-to-file",
        "import loud; print('script')",
        {"loud.py": "print('loud')"},
        preload=("loud",),
        out="file",
        says="loud\nscript",
    ),
    Case(
        "import-to-terminal",
        "import loud, sys; print('script', sys.stdout.isatty())",
        {"loud.py": "import sys\nprint('loud', sys.stdout.isatty(), sys.stdout.line_buffering)"},
        preload=("loud",),
        out="terminal",
        says="loud True False\r\nscript True",
    ),
    Case(
        "import-raises",
        "try:\n    import bad\nexcept ValueError as e: print(repr(e))\nimport bad",
        {"bad.py": "raise ValueError('no')"},
        preload=("bad",),
        exit=1,
        says="ValueError: no",
    ),
    Case(
        "import-exits",
        "try:\n    import bad\nexcept SystemExit as e: print(e.code)",
        {"bad.py": "import sys; sys.exit(3)"},
        preload=("bad",),
        says="3",
    ),
    Case(
        "import-missing",
        "import sys\ntry:\n    import gone\nexcept ImportError as e: print(e, e.name, e.path)\n"
        "print('gone' in sys.modules)",
        preload=("gone", "gone.too"),
    ),
    Case(
        "import-raises-halfway",
        "try:\n    import pkg\nexcept ValueError as e: print(e)\nimport sys\n"
        "print('pkg' in sys.modules)",
        {"pkg/__init__.py": "from . import sub\nraise ValueError('half')", "pkg/sub.py": ""},
        preload=("pkg",),
        says="half\nFalse",
    ),
    Case(
        "import-circular",
        "import one, two; print(one.two is two, two.one is one, one.LATE)",
        {"one.py": "import two\nLATE = two.EARLY", "two.py": "import one\nEARLY = dir(one)[0]"},
        preload=("one",),
    ),
    Case(
        "import-circular-broken",
        "import one",
        {"one.py": "from two import x\ny = 1", "two.py": "from one import y\nx = 1"},
        preload=("one",),
        exit=1,
        says="circular import",
    ),
    Case(
        "import-namespace",
        "import space.a, space.b; print(space.__path__, space.__file__, space.__spec__.origin)",
        {"space/a.py": "", "more/space/b.py": ""},
        env={"PYTHONPATH": "{here}/more"},
        preload=("space.b",),
        says="space",
    ),
    Case(
        "import-namespace-grows",
        "import space.a, space.c; print(space.c.__file__)",
        {"space/a.py": ""},
        later={"space/c.py": ""},
        preload=("space.a",),
        says="c.py",
    ),
    Case(
        "import-relative",
        "from pkg.deep import level; print(level.TOP, level.__package__)",
        {
            "pkg/__init__.py": "TOP = 1",
            "pkg/deep/__init__.py": "",
            "pkg/deep/level.py": "from .. import TOP",
        },
        preload=("pkg.deep.level",),
    ),
    Case("import-relative-in-script", "from . import x", exit=1, says="no known parent package"),
    Case(
        "import-zip",
        "import inside; print(inside.__file__, inside.__loader__.archive)",
        {"lib.zip": zipped(inside="")},
        env={"PYTHONPATH": "{here}/lib.zip"},
        preload=("inside",),
        says="lib.zip",
    ),
    Case(
        "import-changed",
        "import own; print(own.VALUE)",
        {"own.py": "VALUE = 1"},
        later={"own.py": "VALUE = 22"},
        preload=("own",),
        refused="own.py has changed",
        says="22",
    ),
    Case(
        "import-deleted",
        "import own; print(own.VALUE)",
        {"own.py": "VALUE = 1"},
        later={"own.py": None},
        preload=("own",),
        refused="own.py has changed",
        exit=1,
    ),
    Case(
        "import-untouched-neighbour",
        "import other; print(other.VALUE)",
        {"own.py": "VALUE = 1", "other.py": "VALUE = 1"},
        later={"other.py": "VALUE = 22"},
        preload=("own",),
        says="22",
    ),
    Case(
        "import-new-file",
        "import fresh; print(fresh.VALUE)",
        later={"fresh.py": "VALUE = 3"},
        preload=("fresh",),
        says="3",
    ),
    Case(
        "import-new-folder",
        "import fresh; print(fresh.VALUE)",
        later={"lib/fresh.py": "VALUE = 3"},
        env={"PYTHONPATH": "{here}/lib"},
        preload=("fresh", "logging"),
        says="3",
    ),
    Case(
        "import-shadowed-later",
        "import colorsys; print(hasattr(colorsys, 'OWN'))",
        later={"colorsys.py": "OWN = 1"},
        preload=("colorsys",),
        differs=Difference("would be found first", "True", "False"),
    ),
    Case(
        "import-sets-variables",
        SHOW_ENVIRONMENT,
        {
            "own.py": "import os\n"
            "os.environ['MADE'] = '1'; del os.environ['GONE']; os.environ['KEPT'] += '+'\n"
            "os.environ.setdefault('KEPT', 'no'); os.environ.setdefault('NEW', 'yes')"
        },
        env={"GONE": "1", "KEPT": "1", "PYTHONPATH": "{here}/more"},
        preload=("own",),
        says="MADE=1",
    ),
    Case(
        "import-sets-python-path",
        SHOW_ENVIRONMENT,
        {"own.py": "import os\nos.environ['PYTHONPATH'] = '/else'\nos.environ['RANKS'] = '4'"},
        preload=("own",),
        says="PYTHONPATH=/else",
    ),
    Case(
        "import-sets-rank",
        "import own, os; print(os.environ['LOCAL_RANK'])",
        {"own.py": "import os\nos.environ['LOCAL_RANK'] = '9'"},
        preload=("own",),
        says="9",
    ),
    Case(
        "import-zip-changed",
        "import inside; print(inside.X)",
        {"lib.zip": zipped(inside="X = 1")},
        later={"lib.zip": zipped(inside="X = 22")},
        env={"PYTHONPATH": "{here}/lib.zip"},
        preload=("inside",),
        refused="lib.zip has changed",
        says="22",
    ),
    Case(
        "import-after-environ",
        "import os; os.environ['LEVEL'] = '2'; import level; print(level.LEVEL)",
        {"level.py": "import os\nLEVEL = os.environ.get('LEVEL')"},
        preload=("level",),
        differs=Difference("sets a variable", "2", "None"),
    ),
    Case(
        "import-after-path",
        "import sys; sys.path.insert(0, 'other'); import which; print(which.__file__)",
        {"which.py": "", "other/which.py": ""},
        preload=("which",),
        differs=Difference("changes `sys.path`", "other", "HERE/which.py"),
    ),
    Case(
        "import-lazily",
        "import own\nprint(own.f())",
        {"own.py": "def f():\n    from late import X\n    return X", "late.py": "X = __file__"},
        preload=("own",),
    ),
    Case(
        "import-reload",
        "import importlib, own; own.VALUE = 2; print(importlib.reload(own).VALUE, own.__spec__)",
        {"own.py": "VALUE = 1"},
        preload=("own",),
    ),
    Case(
        "import-resources",
        "from importlib import resources; print(resources.files('pkg').joinpath('x').read_text())",
        {"pkg/__init__.py": "", "pkg/x": "text"},
        preload=("pkg",),
        says="text",
    ),
    Case(
        "import-metadata",
        "from importlib import metadata; print(metadata.version('pytest'))",
        preload=("importlib.metadata",),
    ),
    Case(
        "import-cached-bytecode",
        "import own, os; print(own.__cached__, sorted(os.listdir('__pycache__')))",
        {"own.py": "", "two.py": ""},
        preload=("own",),
        says="own.cpython",
    ),
    Case(
        "import-argv",
        "import options; print(options.ARGV, options.ARGV is __import__('sys').argv)",
        {"options.py": "import sys\nARGV = sys.argv"},
        args=("--lr", "1"),
        preload=("options",),
        says="--lr",
    ),
    Case(
        "import-main",
        "import looks; print(looks.FILE)",
        {"looks.py": "import __main__\nFILE = getattr(__main__, '__file__', 'interactive')"},
        preload=("looks",),
        says="train.py",
    ),
    Case(
        "import-main-name",
        "VALUE = 5\nimport looks; print(looks.look())",
        {"looks.py": "import __main__\ndef look(): return __main__.VALUE, __main__.__name__"},
        preload=("looks",),
        says="5",
    ),
    Case(
        "import-seeds-random",
        "import own, random; print(random.random())",
        {"own.py": "import random\nrandom.seed(1)"},
        preload=("own",),
        differs=Difference(
            "have a new seed in each worker", "0.13436424411240122", r"^0\.(?!1343)"
        ),
    ),
    Case(
        "import-draws",
        "import own, random; print(random.getstate() == own.STATE)",
        {"own.py": "import random\nSTATE = random.getstate()"},
        preload=("own",),
        differs=Difference("have a new seed in each worker", "True", "False"),
    ),
    Case(
        "import-notes-process",
        "import own, os; print(own.PID == os.getpid())",
        {"own.py": "import os\nPID = os.getpid()"},
        preload=("own",),
        differs=Difference("from the process id", "True", "False"),
    ),
    Case(
        "import-finder",
        "import finder, magic.words; print(magic.words.TEXT)",
        {
            "finder.py": """
import importlib.abc, importlib.machinery, sys
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.partition('.')[0] == 'magic':
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def exec_module(self, module): module.TEXT = module.__name__
sys.meta_path.append(Finder())
"""
        },
        preload=("finder", "magic.words"),
        says="magic.words",
    ),
)
