"""Standard streams: where they go, what they buffer, and what is read."""

from __future__ import annotations

from support.oddities.case import Case

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

CASES = (
    *(
        Case(f"stream-input-{kind}", INPUT, stdin=kind)
        for kind in ("null", "pipe", "file", "terminal")
    ),
    *(
        Case(f"stream-output-{kind}", OUTPUT, out=kind)
        for kind in ("pipe", "file", "terminal", "null")
    ),
    Case(
        "stream-kept-by-import-to-file",
        "import own, sys; own.say('x'); sys.stdout.write('y'); own.say('z')",
        {"own.py": "import sys\nOUT = sys.stdout\ndef say(t): OUT.write(t)"},
        preload=("own",),
        out="file",
        says="xyz",
    ),
    Case(
        "stream-printed-by-import-to-null",
        "import own; print('script')",
        {"own.py": "print('loud')"},
        preload=("own",),
        out="null",
    ),
    Case("stream-input-function", "print(input('who? '))", stdin="pipe", says=r"who\? asked"),
    Case("stream-input-end", "input()", exit=1, says="EOFError"),
    Case("stream-input-lines", "import sys; print(list(sys.stdin))", stdin="file", says="asked"),
    Case(
        "stream-input-seek",
        "import sys; sys.stdin.read(); print(sys.stdin.seek(0), sys.stdin.read())",
        stdin="file",
        says="asked",
    ),
    Case(
        "stream-input-fileinput",
        "import fileinput; print(list(fileinput.input('-')))",
        stdin="pipe",
        says="asked",
    ),
    Case("stream-input-child", "import os; os.system('cat')", stdin="pipe", says="asked"),
    Case(
        "stream-input-descriptor",
        "import os; print(os.read(0, 99), os.fstat(0).st_size)",
        stdin="file",
        says="asked",
    ),
    Case(
        "stream-input-of-preloaded-module",
        "import own; print(own.ask())",
        {"own.py": "import sys\ndef ask(): return sys.stdin.readline()"},
        stdin="pipe",
        preload=("own",),
        says="asked",
    ),
    Case("stream-input-latin", INPUT, stdin="pipe", env={"PYTHONIOENCODING": "latin1:ignore"}),
    Case("stream-code-from-input", "print('x')", script="-", stdin="null"),
    Case("stream-code-from-device", "", script="/dev/stdin", stdin="file", exit=1, says="asked"),
    Case(
        "stream-binary",
        "import os, sys\nsys.stdout.buffer.write(bytes(range(256))); sys.stdout.buffer.flush()",
    ),
    Case(
        "stream-large", "print('x' * 3_000_000); import sys; print('y' * 500_000, file=sys.stderr)"
    ),
    Case("stream-many-lines", "for n in range(20_000): print(n)"),
    Case(
        "stream-interleaved",
        "import os, sys\nos.dup2(1, 2)\nfor n in range(50):\n"
        "    print(n); print('e', n, file=sys.stderr)",
        says="e 49",
    ),
    Case(
        "stream-raw-write",
        "import os\nos.write(1, b'a'); print('b', end=''); os.write(1, b'c')",
        says="abc",
    ),
    Case(
        "stream-surrogates",
        "print('\\udce9')",
        env={"PYTHONIOENCODING": "utf-8:strict"},
        exit=1,
        says="surrogates not allowed",
    ),
    Case("stream-stderr-surrogates", "import sys; print('\\udce9', file=sys.stderr)", says="udce9"),
    Case(
        "stream-replaced",
        "import io, sys\n"
        "sys.stdout = io.StringIO(); print('lost'); "
        "print(sys.stdout.getvalue(), file=sys.stderr)",
        says="lost",
    ),
    Case(
        "stream-redirected",
        "import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()) as s: print('x')\n"
        "print(repr(s.getvalue()))",
    ),
    Case(
        "stream-reconfigured",
        "import sys\nsys.stdout.reconfigure(line_buffering=True, errors='replace'); "
        "print('\\udce9', sys.stdout.errors)",
    ),
    Case(
        "stream-detached",
        "import sys\nb = sys.stdout.detach(); b.write(b'still'); b.flush()",
        exit=120,
        says="still",
    ),
    Case(
        "stream-reopened",
        "import os\nf = os.fdopen(1, 'w', closefd=False); f.write('again'); f.close()",
        says="again",
    ),
    Case("stream-proc", "open('/proc/self/fd/1', 'w').write('by path')", says="by path"),
    Case("stream-dev-stdout", "open('/dev/stdout', 'a').write('by name')", says="by name"),
    Case(
        "stream-file-position",
        "import os, sys\nprint('x'); print(os.lseek(1, 0, os.SEEK_CUR), sys.stdout.seekable())",
        out="file",
    ),
    Case(
        "stream-file-append",
        "import fcntl, os; print(bool(fcntl.fcntl(1, fcntl.F_GETFL) & os.O_APPEND))",
        out="file",
        says="True",
    ),
    Case(
        "stream-file-truncated",
        "import os\nprint('gone'); os.ftruncate(1, 0); print('kept')",
        out="file",
    ),
    Case(
        "stream-terminal-size",
        "import os; print(os.get_terminal_size(1), os.ttyname(1)[:9])",
        out="terminal",
        says="/dev/pts/",
    ),
    Case("stream-pipe-size", "import fcntl; print(fcntl.fcntl(1, 1032))", says="65536"),
    Case(
        "stream-replaced-by-import",
        "import own; print('x')",
        {
            "own.py": (
                "import sys\nclass S:\n"
                "    def write(self, t): sys.__stdout__.write(t.upper())\nsys.stdout = S()"
            )
        },
        preload=("own",),
        exit=120,
        says="X",
    ),
    Case(
        "stream-closed-by-import",
        "import own, sys; print('x', file=sys.stderr)",
        {"own.py": "import sys\nsys.stdout.close()"},
        preload=("own",),
        says="x",
    ),
    Case(
        "stream-kept-by-import",
        "import own; own.say('x')",
        {"own.py": "import sys\nOUT = sys.stdout\ndef say(t): OUT.write(t)"},
        preload=("own",),
        says="x",
    ),
    Case(
        "stream-logging-by-import",
        "import own; own.log.warning('w')",
        {
            "own.py": (
                "import logging\nlogging.basicConfig(format='%(message)s')\n"
                "log = logging.getLogger('own')"
            )
        },
        preload=("own",),
        says="w",
    ),
    Case(
        "stream-warned-by-import",
        "import own; own.f()",
        {"own.py": "import warnings\ndef f(): warnings.warn('once')\nf()"},
        preload=("own",),
        says="once",
    ),
)
