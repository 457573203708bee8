"""What a main program can find out about itself: one case for each fact, in a script.

Each fact is a short program that prints something of the interpreter or of the process.
"""

from __future__ import annotations

from support.oddities.case import STOCK, Case, Difference

FACTS = {
    "argv": "print(sys.argv)",
    "orig_argv": "print(sys.orig_argv)",
    "path": "print(sys.path)",
    "flags": "print(sys.flags, sys.warnoptions, sys._xoptions)",
    "prefixes": "print(sys.prefix, sys.base_prefix, sys.exec_prefix, sys.platlibdir)",
    "executable": "print(sys.executable, sys._base_executable, sys.pycache_prefix)",
    "main": "print(sorted((k, str(v)) for k, v in vars(sys.modules['__main__']).items()))",
    "main-is-complete": "print(__name__, __file__, __package__, __spec__, __cached__, __doc__)",
    "builtins": "import builtins; print(sorted(vars(builtins)))",
    "names-of-sys": "print(sorted(vars(sys)))",
    "meta_path": "print(sys.meta_path, [getattr(h, '__name__', h) for h in sys.path_hooks])",
    "descriptors": "print([os.readlink('/proc/self/fd/' + n).split(':')[0] for n in '012'],\n"
    "    [n for n in range(3, 400) if os.path.exists(f'/proc/self/fd/{n}')])",
    "inheritable": "print([os.get_inheritable(n) for n in range(3)],\n"
    "    [os.get_blocking(n) for n in range(3)])",
    "signals": "import signal\nprint([(n, str(signal.getsignal(n))) for n in range(1, 65)\n"
    "    if n not in (32, 33)])",
    "signal-mask": "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))",
    "signals-of-kernel": "print([l for l in open('/proc/self/status')\n"
    "    if l.startswith(('SigP', 'SigB', 'SigI', 'SigC', 'Shd'))])",
    "wakeup-fd": "import signal; print(signal.set_wakeup_fd(-1), signal.getitimer(0))",
    "umask": "print(os.umask(0o77))",
    "cwd": "print(os.getcwd(), os.path.abspath('.'))",
    "limits": "import resource\nfor n in range(16): print(n, resource.getrlimit(n))",
    "nice-and-scheduler": "print(os.getpriority(0, 0), os.sched_getscheduler(0),\n"
    "    os.sched_getparam(0), os.sched_getaffinity(0))",
    "schedulers-of-tasks": "print([os.sched_getscheduler(int(t))\n"
    "    for t in os.listdir('/proc/self/task')])",
    "process-group": "print(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid(),\n"
    "    os.getuid(), os.getgid(), os.getgroups())",
    "death-signal": "import ctypes\nn = ctypes.c_int()\n"
    "ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)",
    "name-of-process": "print(open('/proc/self/comm').read(), open('/proc/self/cmdline').read())",
    "oom-and-dumpable": "print(open('/proc/self/oom_score_adj').read(),\n"
    "    os.stat('/proc/self/fd').st_uid)",
    "environment": "print(sorted(os.environ.items()))",
    "native-environment": "import ctypes\ng = ctypes.CDLL(None).getenv\n"
    "g.restype = ctypes.c_char_p\n"
    "print({n: g(n.encode()) for n in sorted({*os.environ, 'RALLYPOINT_PRELOAD_FDS',\n"
    "    'RALLYPOINT_PRELOAD_PYTHONPATH', 'PYTHONPATH'})})",
    "class-of-environ": "print(type(os.environ), type(os.environb), os.environ['RANK'])",
    "locale": (
        "import locale; print(locale.setlocale(locale.LC_ALL), locale.getpreferredencoding())"
    ),
    "encodings": "print(sys.getdefaultencoding(), sys.getfilesystemencoding(),\n"
    "    [(s.encoding, s.errors, s.newlines, s.name, s.mode)\n"
    "     for s in (sys.stdin, sys.stdout, sys.stderr)])",
    "buffering": "print([(s.line_buffering, s.write_through, type(s.buffer))\n"
    "    for s in (sys.stdout, sys.stderr)])",
    "standard-streams": "print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__,\n"
    "    sys.stderr is sys.__stderr__, [s.isatty() for s in (sys.stdin, sys.stdout)])",
    "threads": "import threading, _thread\nprint(threading.enumerate(), _thread._count(),\n"
    "    len(os.listdir('/proc/self/task')), threading.current_thread() is\n"
    "    threading.main_thread())",
    "faulthandler": "import faulthandler; print(faulthandler.is_enabled())",
    "garbage-collector": "import gc\nprint(gc.isenabled(), gc.get_threshold(), gc.get_debug(),\n"
    "    gc.get_freeze_count(), gc.callbacks)",
    "recursion": "print(sys.getrecursionlimit(), sys.getswitchinterval())",
    "depth-of-stack": "import inspect; print(len(inspect.stack()))",
    "hash-of-text": "print(hash('text'))",
    "integers": "print(sys.get_int_max_str_digits())",
    "atexit": "import atexit; print(atexit._ncallbacks())",
    "hooks": "import threading\nprint(sys.excepthook, sys.displayhook, sys.breakpointhook,\n"
    "    sys.unraisablehook, threading.excepthook)",
    "tracing": "import tracemalloc, threading\n"
    "print(sys.gettrace(), sys.getprofile(), tracemalloc.is_tracing(), threading._trace_hook)",
    "warnings": "import warnings; print([str(f) for f in warnings.filters],\n"
    "    warnings.showwarning)",
    "asyncio-policy": "import asyncio\nprint(type(asyncio.get_event_loop_policy()))\n"
    "print(asyncio.run(asyncio.sleep(0, 'ran')))",
    "start-methods": "import multiprocessing as m\n"
    "print(m.get_all_start_methods(), m.get_start_method(allow_none=True),\n"
    "    m.current_process(), m.parent_process(), m.current_process().authkey is not None)",
    "loggers": "import logging\nprint(logging.root.handlers, logging.root.level,\n"
    "    logging.Logger.manager.loggerDict, logging.lastResort)",
    "site": "import site\nprint(site.ENABLE_USER_SITE, site.PREFIXES, site.getsitepackages(),\n"
    "    site.USER_BASE, site.USER_SITE)",
    "sitecustomize": "print([m for m in ('sitecustomize', 'rallypoint_forkserver',\n"
    "    'rallypoint_recorder') if m in sys.modules])\n"
    "try:\n    import rallypoint_forkserver\nexcept ImportError as e: print(e)",
    "modules-of-hook": "print([m for m in ('array', 'fcntl', '_socket', 'json', '_json', 're')\n"
    "    if m in sys.modules])",
    "interactive": "print(hasattr(sys, 'ps1'), hasattr(sys, 'last_type'), sys.flags.interactive)",
    "temporary-folder": "import tempfile; print(tempfile.gettempdir(), tempfile.gettempprefix())",
    "time-zone": "import time; print(time.tzname, time.timezone)",
    "sysconfig": "import sysconfig; print(sorted(sysconfig.get_paths().items()))",
    "async-generators": "print(sys.get_asyncgen_hooks(),\n"
    "    sys.get_coroutine_origin_tracking_depth())",
    "float-control": "print(1e308 * 10, -1e-320, 0.1 + 0.2); import decimal\n"
    "print(decimal.getcontext())",
    "monitored-memory": "import resource; print(resource.getrusage(1).ru_maxrss > 0)",
    "frame": "f = sys._getframe()\nprint(f.f_back, f.f_code.co_filename, f.f_code.co_name)",
}
"""Programs, each by the name of what it prints. `os` and `sys` are imported."""

NO_IMPORTS = frozenset(("threads", "modules-of-hook", "descriptors", "atexit", "loggers"))
"""Facts of which a worker whose forkserver has imported nothing is asked."""

FROZEN = "is kept from the garbage collector"
DIFFERS = {
    # Python 3.12 has some hundred frozen objects from the start.
    "garbage-collector": Difference(FROZEN, r"10\) 0 \d{1,3} \[\]", r"10\) 0 \d{4,} \[\]"),
    "atexit": Difference(FROZEN, r"^0\n", r"^1\n"),
}
ENVIRONMENT = {"PYTHONHASHSEED": "7", "TZ": "Asia/Kathmandu", "PYTHONPATH": "{here}/more"}

CASES = (
    *(
        Case(
            f"state-{name}",
            f"import os, sys\n{program}\n",
            args=("--depth", "3", "x y", ""),
            env=ENVIRONMENT,
            preload=() if name in NO_IMPORTS else STOCK,
            differs=DIFFERS.get(name),
        )
        for name, program in FACTS.items()
    ),
    Case(
        "state-modules",
        "import sys; print(sorted(sys.modules))",
        differs=Difference("`sys.modules`", "^((?!dataclasses).)*$", "dataclasses"),
    ),
)
