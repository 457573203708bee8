"""What a program finds in its process, its streams, its children, and how it ends."""

from __future__ import annotations

from support.oddities.case import STOCK, Case, Difference, own

CHILD = "import os, sys; print(sys.argv, sys.path, sys.flags, sorted(os.environ.items()))"
OPEN = "[n for n in range(3, 400) if os.path.exists(f'/proc/self/fd/{n}')]"

PROCESSES = (
    Case(
        "process-subprocess",
        f"import subprocess, sys; "
        f"print(subprocess.check_output([sys.executable, '-c', {CHILD!r}]))",
        env={"PYTHONPATH": "{here}/more", "PYTHONHASHSEED": "1"},
        says="RANK",
    ),
    own(
        "process-forked-by-import",
        "import own; print(own.STATUS)",
        "import os, sys\npid = os.fork()\nif not pid: sys.exit(3)\n"
        "STATUS = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])",
        says="^3",
    ),
    Case(
        "process-exec-itself",
        "import os, sys\nprint(sys.argv, os.environ.get('AGAIN'))\n"
        "if 'AGAIN' not in os.environ:\n    os.environ['AGAIN'] = '1'\n"
        "    os.execv(sys.executable, sys.orig_argv)",
        args=("a", "b"),
        env={"PYTHONPATH": "{here}/more"},
        says="1",
    ),
    Case(
        "process-group-leader",
        "import os, subprocess\nprint(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid())\n"
        "try: os.setsid()\nexcept OSError as e: print(e)",
        says="Operation not permitted",
    ),
    Case(
        "process-signal-to-group",
        "import os, signal, subprocess\nc = subprocess.Popen(['sleep', '100'])\n"
        "signal.signal(15, signal.SIG_IGN); os.killpg(0, 15); print(c.wait())",
        says="-15",
    ),
    Case(
        "process-older",
        "import os; print('RANK=' in open('/proc/self/environ').read())",
        differs=Difference("`/proc/PID/environ`", "True", "False"),
    ),
    own(
        "process-import-ignores-children",
        "import own, subprocess\nprint(own.signal.getsignal(17), subprocess.call(['true']))",
        "import signal\nsignal.signal(17, signal.SIG_IGN)",
        says="^1 0",
    ),
    own(
        "process-import-handles-children",
        "import own, subprocess; subprocess.call(['sh', '-c', ''])",
        "import signal, sys\nsignal.signal(17, lambda *_: sys.exit('a child'))",
        exit=1,
        says="a child",
    ),
    own(
        "process-import-starts-watchdog",
        "import own; print('ends')",
        "import faulthandler\nfaulthandler.dump_traceback_later(1000, exit=True)",
        refused="the watchdog of faulthandler",
        says="ends",
    ),
)

DEADLY = (2, 9, 15)

SIGNALS = tuple(
    Case(
        f"end-signal-{number}",
        f"import os, signal\nif {number} == 2: signal.signal(2, signal.SIG_DFL)\n"
        f"os.kill(os.getpid(), {number}); signal.pause()",
        exit=-number,
    )
    for number in DEADLY
)

ENDS = (
    *SIGNALS,
    Case("end-interrupt", "raise KeyboardInterrupt", exit=-2, says="KeyboardInterrupt"),
    own("end-traceback-of-preloaded-module", "import own; own.f()", "def f(): 1 / 0", exit=1),
    Case(
        "end-atexit-order",
        "import atexit, sys\nfor n in 'abc': atexit.register(print, n)\n"
        "class A:\n    def __del__(self): print('deleted')\na = A()",
        says="c\nb\na\ndeleted",
    ),
    own(
        "end-atexit-of-module",
        "import atexit, own\natexit.register(print, 'script')",
        "import atexit\natexit.register(print, 'module')",
        says="script\nmodule",
    ),
    own(
        "end-object-of-module",
        "import own; print(own.A)",
        "class A:\n    def __repr__(self): return 'a'\n"
        "    def __del__(self, print=print): print('deleted')\nA = A()",
        says="a\ndeleted",
    ),
    Case(
        "end-thread-is-awaited",
        "import threading, time\n"
        "def f():\n    threading.main_thread().join(); print('after main')\n"
        "threading.Thread(target=f).start(); print('main')",
        says="main\nafter main",
    ),
    Case(
        "end-generator",
        "def g():\n    try: yield 1\n    finally: print('closed')\nx = g(); next(x)",
        says="closed",
    ),
    Case("end-closed-stdout", "import sys; sys.stdout.close()"),
)

INPUT = """
import os, sys
stdin = sys.stdin
print(stdin.isatty(), stdin.seekable(), stdin.line_buffering, stdin.encoding, stdin.errors)
print(stdin.name, stdin.mode, stdin.buffer.raw.name, stdin.buffer.seekable())
print(stdin is sys.__stdin__, type(stdin.buffer), stdin.buffer.raw.mode, stdin.newlines)
print(repr(stdin.readline()), repr(stdin.read(1)) if not stdin.isatty() else '')
"""
OUTPUT = """
import os, sys
for stream in (sys.stdout, sys.stderr):
    print(stream.isatty(), stream.line_buffering, stream.write_through, stream.seekable())
    print(stream.name, stream.mode, stream.buffer.seekable(), type(stream.buffer))
    print("to", file=stream)
os.write(1, b"raw"); sys.stdout.buffer.write(b"bytes"); sys.stdout.write("text")
"""

STREAMS = (
    *(
        Case(f"stream-input-{kind}", INPUT, stdin=kind)
        for kind in ("null", "pipe", "file", "terminal")
    ),
    *(
        Case(f"stream-output-{kind}", OUTPUT, out=kind)
        for kind in ("pipe", "file", "terminal", "null")
    ),
    own(
        "stream-kept-by-import-to-file",
        "import own, sys; own.say('x'); sys.stdout.write('y'); own.say('z')",
        "import sys\nOUT = sys.stdout\ndef say(t): OUT.write(t)",
        out="file",
        says="xyz",
    ),
    Case("stream-input-function", "print(input('who? '))", stdin="pipe", says=r"who\? asked"),
    own(
        "stream-input-of-preloaded-module",
        "import own; print(own.ask())",
        "import sys\ndef ask(): return sys.stdin.readline()",
        stdin="pipe",
        says="asked",
    ),
    Case("stream-code-from-input", "print('x')", script="-", stdin="null"),
    Case(
        "stream-large", "print('x' * 3_000_000); import sys; print('y' * 500_000, file=sys.stderr)"
    ),
    own(
        "stream-replaced-by-import",
        "import own; print('x')",
        "import sys\nclass S:\n"
        "    def write(self, t): sys.__stdout__.write(t.upper())\nsys.stdout = S()",
        exit=120,
        says="X",
    ),
    own(
        "stream-closed-by-import",
        "import own, sys; print('x', file=sys.stderr)",
        "import sys\nsys.stdout.close()",
        says="x",
    ),
    own(
        "stream-logging-by-import",
        "import own; own.log.warning('w')",
        "import logging\nlogging.basicConfig(format='%(message)s')\nlog = logging.getLogger('own')",
        says="w",
    ),
    own(
        "stream-warned-by-import",
        "import own; own.f()",
        "import warnings\ndef f(): warnings.warn('once')\nf()",
        says="once",
    ),
)

FACTS = {
    "argv": "print(sys.argv)",
    "orig_argv": "print(sys.orig_argv)",
    "path": "print(sys.path)",
    "main": "print(sorted((k, str(v)) for k, v in vars(sys.modules['__main__']).items()))",
    "names-of-sys": "print(sorted(vars(sys)))",
    "meta_path": "print(sys.meta_path, [getattr(h, '__name__', h) for h in sys.path_hooks])",
    "descriptors": "print([os.readlink('/proc/self/fd/' + n).split(':')[0] for n in '012'],\n"
    "    [n for n in range(3, 400) if os.path.exists(f'/proc/self/fd/{n}')])",
    "inheritable": "print([os.get_inheritable(n) for n in range(3)],\n"
    "    [os.get_blocking(n) for n in range(3)])",
    "signals": "import signal\nprint([(n, str(signal.getsignal(n))) for n in range(1, 65)\n"
    "    if n not in (32, 33)])",
    "signal-mask": "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))",
    "process-group": "print(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid(),\n"
    "    os.getuid(), os.getgid(), os.getgroups())",
    "death-signal": "import ctypes\nn = ctypes.c_int()\n"
    "ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)",
    "environment": "print(sorted(os.environ.items()))",
    "native-environment": "import ctypes\ng = ctypes.CDLL(None).getenv\n"
    "g.restype = ctypes.c_char_p\n"
    "print({n: g(n.encode()) for n in sorted({*os.environ, 'RALLYPOINT_PRELOAD_FDS',\n"
    "    'RALLYPOINT_PRELOAD_PYTHONPATH', 'PYTHONPATH'})})",
    "standard-streams": "print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__,\n"
    "    sys.stderr is sys.__stderr__, [s.isatty() for s in (sys.stdin, sys.stdout)])",
    "threads": "import threading, _thread\nprint(threading.enumerate(), _thread._count(),\n"
    "    len(os.listdir('/proc/self/task')), threading.current_thread() is\n"
    "    threading.main_thread())",
    "garbage-collector": "import gc\nprint(gc.isenabled(), gc.get_threshold(), gc.get_debug(),\n"
    "    gc.get_freeze_count(), gc.callbacks)",
    "atexit": "import atexit; print(atexit._ncallbacks())",
    "warnings": "import warnings; print([str(f) for f in warnings.filters],\n"
    "    warnings.showwarning)",
    "loggers": "import logging\nprint(logging.root.handlers, logging.root.level,\n"
    "    logging.Logger.manager.loggerDict, logging.lastResort)",
    "sitecustomize": "print([m for m in ('sitecustomize', 'rallypoint_forkserver',\n"
    "    'rallypoint_recorder') if m in sys.modules])\n"
    "try:\n    import rallypoint_forkserver\nexcept ImportError as e: print(e)",
    "modules-of-hook": "print([m for m in ('array', 'fcntl', '_socket', 'json', '_json', 're')\n"
    "    if m in sys.modules])",
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

STATE = (
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

CASES = (*PROCESSES, *ENDS, *STREAMS, *STATE)
