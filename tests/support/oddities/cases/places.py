"""The user's own hooks of the interpreter, other interpreters, and folders that are not there."""

from __future__ import annotations

import sys

from support.oddities.case import Case, Difference

USER = f"home/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
USER_ENV = {"PYTHONUSERBASE": "{here}/home", "HOME": "{here}/home"}
SYSTEM = f"{sys.base_prefix}/bin/python3"
SHOW = "import sys; print(sys.path, sys.prefix, sys.executable, sorted(sys.path_importer_cache))"

CASES = (
    Case(
        "place-sitecustomize",
        "import sys; print(sys.modules['sitecustomize'].__file__, sys.MINE)",
        {"more/sitecustomize.py": "import sys\nsys.MINE = __name__\nprint('custom', sys.argv)"},
        env={"PYTHONPATH": "{here}/more"},
        says="custom",
    ),
    Case(
        "place-sitecustomize-raises",
        "print('runs')",
        {"more/sitecustomize.py": "raise ValueError('mine')"},
        env={"PYTHONPATH": "{here}/more"},
        says="Error in sitecustomize",
    ),
    Case(
        "place-sitecustomize-sets-variable",
        "import os; os.system('echo $MINE'); print('MINE' in os.environ)",
        {"more/sitecustomize.py": "import os\nos.environ['MINE'] = 'here'"},
        env={"PYTHONPATH": "{here}/more"},
        says="here",
    ),
    Case(
        "place-sitecustomize-lacks",
        "print('runs')",
        {"more/sitecustomize.py": "import nowhere"},
        env={"PYTHONPATH": "{here}/more"},
        says="Error in sitecustomize",
    ),
    Case(
        "place-sitecustomize-path",
        "import extra, sys; print(extra.__file__, sys.path)",
        {"more/sitecustomize.py": "import sys\nsys.path.append('added')", "added/extra.py": ""},
        env={"PYTHONPATH": "{here}/more"},
        preload=("extra",),
        says="extra",
    ),
    Case(
        "place-import-sitecustomize",
        "try: import sitecustomize; print(sitecustomize.__file__)\n"
        "except ImportError as e: print(e)",
    ),
    Case(
        "place-own-sitecustomize-beside",
        "import sitecustomize; print(sitecustomize.__file__)",
        {"sitecustomize.py": "print('imported by the script')"},
        says="imported",
    ),
    Case(
        "place-usercustomize",
        "import sys; print(sys.USER)",
        {f"{USER}/usercustomize.py": "import sys\nsys.USER = sys.argv[1:]"},
        env=USER_ENV,
        args=("a",),
        python=SYSTEM,
        says="a",
    ),
    Case(
        "place-usercustomize-late",
        "import sys, own; print(own.HAS_USER)",
        {
            f"{USER}/usercustomize.py": "import sys\nsys.USER = 1",
            "own.py": "import sys\nHAS_USER = hasattr(sys, 'USER')",
        },
        env=USER_ENV,
        python=SYSTEM,
        preload=("own",),
        differs=Difference("`usercustomize`", "True", "False"),
    ),
    Case(
        "place-pth",
        "import extra, sys; print(extra.__file__, sys.PTH)",
        {f"{USER}/x.pth": "../../../added\nimport sys; sys.PTH = 1\n", "home/added/extra.py": ""},
        env=USER_ENV,
        python=SYSTEM,
        preload=("extra",),
        says="extra",
    ),
    Case(
        "place-user-site",
        "import extra; print(extra.__file__)",
        {f"{USER}/extra.py": ""},
        env=USER_ENV,
        python=SYSTEM,
        preload=("extra",),
        says="site-packages",
    ),
    Case("place-system-python", SHOW, python=SYSTEM, preload=()),
    Case(
        "place-wrapper-sets-variables",
        "import os; print([os.environ.get(name) for name in ('ADDED', 'KEPT', 'GONE', 'RANK')])",
        {"wrapper": f'#!/bin/sh\nexport ADDED=1 KEPT=2\nunset GONE\nexec {sys.executable} "$@"\n'},
        env={"KEPT": "1", "GONE": "1"},
        python="{here}/wrapper",
        says=r"\['1', '2', None, '3'\]",
    ),
    Case(
        "place-own-modules",
        "import json, select, signal; print(json.MINE, select.MINE, signal.MINE)",
        {f"more/{name}.py": "MINE = 1" for name in ("json", "re", "select", "signal", "socket")},
        env={"PYTHONPATH": "{here}/more"},
        preload=("json",),
        says="1 1 1",
    ),
    Case("place-venv", f"{SHOW}\nimport pytest; print(pytest.__file__)", says="site-packages"),
    Case(
        "place-other-site-packages",
        "import pytest, sys; print(pytest.__file__, sys.prefix)",
        python=SYSTEM,
        env={
            "PYTHONPATH": (
                f"{sys.prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
            )
        },
        preload=("pytest",),
        says="site-packages",
    ),
    Case(
        "place-relative-python-path",
        "import extra, sys; print(extra.__file__, sys.path)",
        {"more/extra.py": ""},
        env={"PYTHONPATH": "more"},
        preload=("extra",),
    ),
    Case(
        "place-empty-python-path",
        f"import os; print(os.environ['PYTHONPATH']); {SHOW}",
        env={"PYTHONPATH": ""},
    ),
    Case("place-colon-python-path", SHOW, env={"PYTHONPATH": ":"}, preload=()),
    Case(
        "place-trailing-colon",
        f"import os; print(os.environ['PYTHONPATH']); {SHOW}",
        env={"PYTHONPATH": "{here}/more:"},
        preload=(),
    ),
    Case(
        "place-double-python-path",
        SHOW,
        {"more": None},
        env={"PYTHONPATH": "{here}/more:{here}/more:/gone"},
        preload=(),
    ),
    Case(
        "place-odd-python-path",
        SHOW,
        {"m \xe9/x.py": ""},
        env={"PYTHONPATH": "{here}/m é:\udce9"},
        preload=(),
    ),
    Case(
        "place-folder-is-gone",
        "import os\ntry: print(os.getcwd())\nexcept OSError as e: print(e)",
        {"work": None},
        later={"work/../x": ""},
        cwd="{here}/work",
    ),
    Case(
        "place-relative-folder",
        "import os; print(os.getcwd(), os.listdir('.'))",
        {"work/x": ""},
        cwd="{here}/work",
    ),
    Case(
        "place-odd-environment",
        "import os; print(ascii(os.environ['ODD']), os.environb[b'ODD'])",
        env={"ODD": "\udce9\udcff=\n"},
    ),
    Case(
        "place-odd-names",
        "import os; print({k: v for k, v in os.environ.items() if k[0] in 'a1%'})",
        env={"a.b": "1", "1": "2", "%": ""},
    ),
    Case(
        "place-much-environment",
        "import os; print(len(os.environ), len(os.environ['BIG']))",
        env={"BIG": "x" * 100_000, **{f"N{n}": "1" for n in range(500)}},
    ),
    Case(
        "place-environment-survives",
        "import os; os.environ['X'] = '1'; del os.environ['RANK']; os.system('echo $X-$RANK')",
        says="1-",
    ),
    Case(
        "place-own-variables",
        "import os; print([k for k in os.environ if 'PRELOAD' in k], "
        "os.environ['RALLYPOINT_ROUND'])",
        says=r"\[\] 2",
    ),
    Case(
        "place-mapping-of-environment",
        "import os; print(os.environ | {} == dict(os.environ), 'RANK' in os.environ, "
        "os.environ.pop('RANK'), os.getenv('RANK'))",
    ),
    Case(
        "place-reads-environment",
        "import os, own; print(own.E['RANK'], own.g('RANK'))",
        {"own.py": "from os import environ as E, getenv as g"},
        preload=("own",),
        says="3 3",
    ),
    Case(
        "place-import-reads-rank",
        "import own; print(own.R)",
        {"own.py": "import os\nR = os.environ.get('RANK')"},
        preload=("own",),
        refused="read RANK",
        says="3",
    ),
    Case(
        "place-import-asks-for-rank",
        "import own; print(own.R)",
        {"own.py": "import os\nR = 'WORLD_SIZE' in os.environ"},
        preload=("own",),
        refused="read WORLD_SIZE",
        says="True",
    ),
    Case(
        "place-import-copies-environment",
        "import own; print(own.E.get('RANK'))",
        {"own.py": "import os\nE = dict(os.environ)"},
        preload=("own",),
        differs=Difference("copies `os.environ`", "3", "None"),
    ),
    Case(
        "place-import-starts-thread",
        "import own; print(own.T)",
        {
            "own.py": (
                "import threading\nT = 1\n"
                "threading.Thread(target=threading.Event().wait, daemon=True).start()"
            )
        },
        preload=("own",),
        refused="a thread",
        says="1",
    ),
    Case(
        "place-import-opens-socket",
        "import own; print(own.S.family)",
        {"own.py": "import socket\nS = socket.socket()"},
        preload=("own",),
        refused="a socket",
    ),
    Case(
        "place-import-starts-process",
        "import own; print(own.P.wait())",
        {
            "own.py": (
                "import subprocess\n"
                "P = subprocess.Popen(['sh', '-c', 'read x; exit 3'], stdin=-1)\n"
                "P.stdin.write(b'x\\n'); P.stdin.close()"
            )
        },
        preload=("own",),
        refused="a process",
        says="3",
    ),
    Case(
        "place-import-forks-and-waits",
        "import own; print(own.P)",
        {"own.py": "import subprocess\nP = subprocess.check_output(['echo', 'hi'])"},
        preload=("own",),
        says="hi",
    ),
    Case(
        "place-import-opens-file",
        "import own; print(own.F.read(), own.F.fileno())",
        {"own.py": "F = open(__file__)"},
        preload=("own",),
        says="3",
    ),
    Case(
        "place-import-opens-deleted-file",
        "import own; print(own.F.read(), own.F.fileno())",
        {"own.py": "import tempfile\nF = tempfile.TemporaryFile('w+')\nF.write('kept'); F.seek(0)"},
        preload=("own",),
        says="kept 3",
    ),
    Case(
        "place-import-opens-pipe",
        "import own; print(own.R)",
        {"own.py": "import os\nR, W = os.pipe()"},
        preload=("own",),
        refused="opened a pipe",
        says="3",
    ),
    Case(
        "place-import-opens-events",
        "import own; print(own.E.fileno())",
        {"own.py": "import select\nE = select.epoll()"},
        preload=("own",),
        refused="a descriptor of events",
        says="3",
    ),
    Case(
        "place-import-shares-memory",
        "import own; print(own.L.acquire())",
        {"own.py": "import multiprocessing\nL = multiprocessing.get_context('fork').Lock()"},
        preload=("own",),
        refused="memory that forks share",
        says="True",
    ),
    Case(
        "place-import-maps-memory",
        "import own; print(own.M[0])",
        {"own.py": "import mmap\nM = mmap.mmap(-1, 4096)"},
        preload=("own",),
        refused="memory that forks share",
        says="0",
    ),
    Case(
        "place-import-sets-timer",
        "import own; print(own.signal.alarm(0))",
        {"own.py": "import signal\nsignal.alarm(1000)"},
        preload=("own",),
        refused="set a timer",
        says="1000",
    ),
    Case(
        "place-import-changes-folder",
        "import os, own; print(os.getcwd())",
        {"own.py": "import os\nos.chdir('/')"},
        preload=("own",),
        refused="the working directory",
        says="^/\n",
    ),
    Case(
        "place-import-changes-umask",
        "import os, own; print(os.umask(0))",
        {"own.py": "import os\nos.umask(0o77)"},
        preload=("own",),
        says="63",
    ),
    Case(
        "place-import-handles-signal",
        "import own, os, signal; os.kill(os.getpid(), 10)",
        {"own.py": "import signal\nsignal.signal(10, lambda *a: print('got'))"},
        preload=("own",),
        says="got",
    ),
    Case(
        "place-call",
        "import own; print(own.X)",
        {"own.py": "X = []\ndef fill(): X.append(1)"},
        preload=(),
        calls=("own:fill",),
        differs=Difference("`--preload-call`", r"\[\]", r"\[1\]"),
    ),
    Case(
        "place-call-raises",
        "import own; print('runs')",
        {"own.py": "def fill(): 1 / 0"},
        preload=(),
        calls=("own:fill", "own:gone", "gone:f"),
        says="runs",
    ),
)
