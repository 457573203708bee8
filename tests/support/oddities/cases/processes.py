"""Processes that a program starts, forks, or becomes."""

from __future__ import annotations

from support.oddities.case import Case, Difference

CHILD = "import os, sys; print(sys.argv, sys.path, sys.flags, sorted(os.environ.items()))"
OPEN = "[n for n in range(3, 400) if os.path.exists(f'/proc/self/fd/{n}')]"

CASES = (
    Case(
        "process-subprocess",
        f"import subprocess, sys; "
        f"print(subprocess.check_output([sys.executable, '-c', {CHILD!r}]))",
        env={"PYTHONPATH": "{here}/more", "PYTHONHASHSEED": "1"},
        says="RANK",
    ),
    Case(
        "process-shell", "import os; print(os.system('env | sort | grep -v ^_=; umask; ulimit -a'))"
    ),
    Case(
        "process-descriptors",
        f"import subprocess, sys, os\nprint(subprocess.check_output([sys.executable, '-c',\n"
        f'    "import os; print({OPEN})"], close_fds=False))',
        says=r"\[\]",
    ),
    Case(
        "process-many-descriptors",
        "import os\nprint([os.open('/dev/null', 0) for _ in range(99)])",
        says="101",
    ),
    Case(
        "process-fork",
        "import os, sys\npid = os.fork()\n"
        "if not pid: print('child', os.environ['RANK']); os._exit(3)\n"
        "print('parent', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
        says="parent 3",
    ),
    Case(
        "process-forked-by-import",
        "import own; print(own.STATUS)",
        {
            "own.py": "import os, sys\npid = os.fork()\nif not pid: sys.exit(3)\n"
            "STATUS = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
        },
        preload=("own",),
        says="^3",
    ),
    Case(
        "process-no-children", "import os\ntry: os.wait()\nexcept ChildProcessError as e: print(e)"
    ),
    Case(
        "process-fork-handlers",
        "import os\nos.register_at_fork(before=lambda: print('before'),\n"
        "    after_in_parent=lambda: print('after'))\n"
        "pid = os.fork() or os._exit(0); os.waitpid(pid, 0)",
        says="before\nafter",
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
        "process-exec-other",
        "import os, sys; sys.stdout.flush(); os.execlp('sh', 'sh', '-c', 'echo $0 $RANK; exit 4')",
        exit=4,
        says="sh 3",
    ),
    Case(
        "process-spawn",
        "import os; print(os.spawnlp(os.P_WAIT, 'sh', 'sh', '-c', 'exit 5'))",
        says="5",
    ),
    Case(
        "process-posix-spawn",
        "import os\np = os.posix_spawn('/bin/sh', ['sh', '-c', 'exit 6'], os.environ)\n"
        "print(os.waitpid(p, 0)[1])",
    ),
    Case("process-popen", "import os; print(os.popen('echo $MASTER_PORT').read())", says="29500"),
    Case(
        "process-group-leader",
        "import os, subprocess\nprint(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid())\n"
        "try: os.setsid()\nexcept OSError as e: print(e)",
        says="Operation not permitted",
    ),
    Case(
        "process-terminal",
        "import os\ntry: os.open('/dev/tty', os.O_RDWR)\nexcept OSError as e: print(e)",
    ),
    Case(
        "process-signal-to-group",
        "import os, signal, subprocess\nc = subprocess.Popen(['sleep', '100'])\n"
        "signal.signal(15, signal.SIG_IGN); os.killpg(0, 15); print(c.wait())",
        says="-15",
    ),
    Case(
        "process-broken-pipe",
        "import os\nr, w = os.pipe(); os.close(r)\ntry: os.write(w, b'x')\n"
        "except BrokenPipeError as e: print(e)",
    ),
    Case(
        "process-yes",
        "import subprocess; "
        "print(subprocess.run('yes | head -1', shell=True, capture_output=True))",
    ),
    Case(
        "process-asyncio",
        "import asyncio\nasync def f():\n"
        "    p = await asyncio.create_subprocess_exec('sh', '-c', 'exit 3')\n"
        "    print(await p.wait())\nasyncio.run(f())",
        preload=("asyncio",),
        says="3",
    ),
    Case(
        "process-chdir",
        "import os, sys; os.chdir('/'); import beside; print(beside.__file__, os.getcwd())",
        {"beside.py": ""},
        preload=(),
    ),
    Case(
        "process-umask", "import os; open('made', 'w').close(); print(oct(os.stat('made').st_mode))"
    ),
    Case(
        "process-limits",
        "import resource as r\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (70, 70)); print(r.getrlimit(r.RLIMIT_NOFILE))\n"
        "print(open('/dev/null').fileno())",
        says="3",
    ),
    Case("process-nice", "import os; print(os.nice(1)); os.system('nice')"),
    Case("process-times", "import os, time; print(time.process_time() < 60, time.monotonic() > 0)"),
    Case(
        "process-rename",
        "import os, ctypes; ctypes.CDLL(None).prctl(15, b'mine'); "
        "print(open('/proc/self/comm').read())",
        says="mine",
    ),
    Case(
        "process-older",
        "import os; print('RANK=' in open('/proc/self/environ').read())",
        differs=Difference("`/proc/PID/environ`", "True", "False"),
    ),
    Case("process-dumpable", "import os; print(os.listdir(f'/proc/{os.getpid()}/fd'))"),
    Case(
        "process-socket",
        "import socket\n"
        "a, b = socket.socketpair(); a.send(b'x'); "
        "print(b.recv(1), a.fileno(), b.fileno())",
        preload=("socket",),
        says="3 4",
    ),
    Case(
        "process-server",
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 0)); "
        "c = socket.create_connection(s.getsockname()); "
        "print(s.accept()[1] == c.getsockname())",
        preload=("socket",),
    ),
    Case(
        "process-threads",
        "import threading\nl = []\n"
        "ts = [threading.Thread(target=l.append, args=(n,)) for n in range(9)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]; "
        "print(sorted(l), [t.name for t in ts])",
    ),
    Case(
        "process-timer",
        "import threading\n"
        "e = threading.Event(); threading.Timer(0.01, e.set).start(); print(e.wait(30))",
    ),
    Case(
        "process-shutdown-order",
        "import threading, atexit\natexit.register(lambda: print(threading.active_count()))",
    ),
    Case(
        "process-faulthandler-dump",
        "import faulthandler, sys\nfaulthandler.dump_traceback(sys.stdout)",
        hide="Thread …|thread …",
    ),
    Case(
        "process-faulthandler-file",
        "import faulthandler, signal, os, sys\nfaulthandler.register(10, sys.stdout)\n"
        "os.kill(os.getpid(), 10)",
        says="train.py",
    ),
    Case(
        "process-import-ignores-children",
        "import own, subprocess\nprint(own.signal.getsignal(17), subprocess.call(['true']))",
        {"own.py": "import signal\nsignal.signal(17, signal.SIG_IGN)"},
        preload=("own",),
        says="^1 0",
    ),
    Case(
        "process-import-handles-children",
        "import own, subprocess; subprocess.call(['sh', '-c', ''])",
        {"own.py": "import signal, sys\nsignal.signal(17, lambda *_: sys.exit('a child'))"},
        preload=("own",),
        exit=1,
        says="a child",
    ),
    Case(
        "process-import-starts-watchdog",
        "import own; print('ends')",
        {"own.py": "import faulthandler\nfaulthandler.dump_traceback_later(1000, exit=True)"},
        preload=("own",),
        refused="the watchdog of faulthandler",
        says="ends",
    ),
)
