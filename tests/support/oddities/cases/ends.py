"""Ways to end."""

from __future__ import annotations

from support.oddities.case import Case

DEADLY = (1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 24, 26, 27, 31, 34, 64)

SIGNALS = tuple(
    Case(
        f"end-signal-{number}",
        f"import os, signal\nif {number} in (2, 24, 9): pass\n"
        f"else: print(signal.getsignal({number}))\n"
        f"if {number} == 2: signal.signal(2, signal.SIG_DFL)\n"
        f"if {number} == 24: raise SystemExit(1)\n"
        f"os.kill(os.getpid(), {number}); signal.pause()",
        exit=1 if number == 24 else -number,
    )
    for number in DEADLY
)

CASES = (
    *SIGNALS,
    Case("end-exit-0", "import sys; sys.exit(0)"),
    Case("end-exit-7", "import sys; sys.exit(7)", exit=7),
    Case("end-exit-256", "import sys; sys.exit(256)"),
    Case("end-exit-negative", "raise SystemExit(-1)", exit=255),
    Case("end-exit-none", "raise SystemExit(None)"),
    Case("end-exit-text", "raise SystemExit('good bye')", exit=1, says="good bye"),
    Case("end-exit-bytes", "raise SystemExit(b'x')", exit=1, says="b'x'"),
    # Python 3.12 and 3.13 print another error if threading was imported.
    Case("end-exit-huge", "import threading; raise SystemExit(2 ** 70)", exit=255),
    Case("end-exit-float", "raise SystemExit(1.5)", exit=1, says="1.5"),
    Case("end-exit-true", "raise SystemExit(True)", exit=1),
    Case("end-exit-tuple", "import sys; sys.exit((1, 2))", exit=1, says=r"\(1, 2\)"),
    Case("end-quit", "quit(4)", exit=4),
    Case("end-os-exit", "import os, sys; sys.stdout.write('x'); os._exit(9)", exit=9, says="x"),
    Case("end-abort", "import os; os.abort()", exit=-6),
    Case("end-interrupt", "raise KeyboardInterrupt", exit=-2, says="KeyboardInterrupt"),
    Case(
        "end-interrupt-signal",
        "import os, signal\ntry: os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "except KeyboardInterrupt: print('caught'); raise",
        exit=-2,
        says="caught",
    ),
    Case(
        "end-traceback",
        "def f(n):\n    return f(n - 1) if n else 1 / 0\nf(3)",
        exit=1,
        says="ZeroDivisionError",
    ),
    Case(
        "end-traceback-chain",
        "try:\n    {}['x']\nexcept KeyError as e:\n    raise RuntimeError('outer') from e",
        exit=1,
        says="direct cause",
    ),
    Case("end-group", "raise ExceptionGroup('all', [ValueError(1), KeyError(2)])", exit=1),
    Case("end-recursion", "def f(): f()\nf()", exit=1, says="RecursionError"),
    Case(
        "end-traceback-of-preloaded-module",
        "import own; own.f()",
        {"own.py": "def f(): 1 / 0"},
        exit=1,
        preload=("own",),
    ),
    Case(
        "end-excepthook",
        "import sys; sys.excepthook = lambda *e: print('hooked', e[1])\nraise ValueError('x')",
        exit=1,
        says="hooked x",
    ),
    Case("end-unraisable", "class A:\n    def __del__(self): raise ValueError('late')\na = A()"),
    Case(
        "end-atexit-order",
        "import atexit, sys\nfor n in 'abc': atexit.register(print, n)\n"
        "class A:\n    def __del__(self): print('deleted')\na = A()",
        says="c\nb\na\ndeleted",
    ),
    Case(
        "end-atexit-raises",
        "import atexit\natexit.register(print, 'runs')\n@atexit.register\ndef f(): 1 / 0",
        says="ZeroDivisionError",
    ),
    Case(
        "end-atexit-exits",
        "import atexit, sys\natexit.register(print, 'runs')\natexit.register(sys.exit, 5)",
        says="runs",
    ),
    Case(
        "end-atexit-of-module",
        "import atexit, own\natexit.register(print, 'script')",
        {"own.py": "import atexit\natexit.register(print, 'module')"},
        preload=("own",),
        says="script\nmodule",
    ),
    Case(
        "end-object-of-module",
        "import own; print(own.A)",
        {
            "own.py": "class A:\n    def __repr__(self): return 'a'\n"
            "    def __del__(self, print=print): print('deleted')\nA = A()"
        },
        preload=("own",),
        says="a\ndeleted",
    ),
    Case(
        "end-atexit-not-after-kill",
        "import atexit, os\natexit.register(print, 'never')\nos.kill(os.getpid(), 15)",
        exit=-15,
    ),
    Case(
        "end-thread-exits",
        "import threading, sys\nt = threading.Thread(target=sys.exit, args=(3,))\n"
        "t.start(); t.join(); print('main goes further')",
        says="main",
    ),
    Case(
        "end-thread-raises",
        "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='T')\n"
        "t.start(); t.join(); print('main')",
        says="Exception in thread T",
    ),
    Case(
        "end-thread-is-awaited",
        "import threading, time\n"
        "def f():\n    threading.main_thread().join(); print('after main')\n"
        "threading.Thread(target=f).start(); print('main')",
        says="main\nafter main",
    ),
    Case(
        "end-thread-daemon",
        "import threading, sys\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start(); sys.exit(2)",
        exit=2,
    ),
    Case(
        "end-thread-atexit",
        "import threading, atexit\natexit.register(print, 'atexit')\n"
        "e = threading.Event()\nt = threading.Thread(target=lambda: (e.wait(), print('thread')))\n"
        "t.start(); threading._register_atexit(e.set)",
        says="thread\natexit",
    ),
    Case(
        "end-executor",
        "from concurrent.futures import ThreadPoolExecutor as T\np = T(2)\n"
        "f = p.submit(print, 'done'); print('main') if f.result() is None else 0",
        preload=("concurrent.futures.thread", "logging"),
        says="done",
    ),
    Case(
        "end-handled-signal",
        "import os, signal, sys\nsignal.signal(15, lambda *a: sys.exit(15))\n"
        "os.kill(os.getpid(), 15)\nwhile True: pass",
        exit=15,
    ),
    Case(
        "end-alarm",
        "import signal\nsignal.signal(14, lambda *a: print('rang'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()",
        says="rang",
    ),
    Case(
        "end-xcpu",
        "import os, signal; signal.signal(24, signal.SIG_DFL); os.kill(os.getpid(), 24)",
        exit=-24,
    ),
    Case(
        "end-segmentation",
        "import faulthandler; faulthandler.enable(); faulthandler._sigsegv()",
        exit=-11,
        says="Segmentation fault",
    ),
    Case("end-memory", "x = [0] * (1 << 60)", exit=1, says="MemoryError"),
    Case(
        "end-asyncio",
        "import asyncio\nasync def f(): raise SystemExit(6)\nasyncio.run(f())",
        exit=6,
    ),
    Case(
        "end-generator",
        "def g():\n    try: yield 1\n    finally: print('closed')\nx = g(); next(x)",
        says="closed",
    ),
    Case(
        "end-weakref",
        "import weakref, sys\nclass A: pass\na = A(); weakref.finalize(a, print, 'final')",
    ),
    Case(
        "end-logging", "import logging; logging.basicConfig(); logging.warning('kept')", says="kept"
    ),
    Case("end-closed-stdout", "import sys; sys.stdout.close()"),
    Case("end-broken-stdout", "import os; os.close(1); print('x')", exit=1, says="Bad file"),
)
