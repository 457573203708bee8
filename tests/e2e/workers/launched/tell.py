"""A worker that records what it was started with, then carries out its arguments in order.

It leaves `told/<restarts>-<rank>-<pid>.json`. An argument is VERB or VERB=VALUE; with `RANK/`
before it only that rank obeys, with `@N` after it only in the N-th restart. Any other argument is
only recorded.
`PID` in a text is the worker's process id.

    out=TEXT, err=TEXT   a line to standard output or error
    part=TEXT            to standard output, without an end of line
    sync                 wait until every rank of the node has come here
    exit=N, signal=NAME  end
    raise=TEXT           end by an exception
    error=JSON           write it to the error file
    stdin                record what standard input holds
    obey                 from now on obey the test, see obedient.py
"""

import json
import os
import re
import resource
import runpy
import signal
import sys
import time
from pathlib import Path

RANK = os.environ["RANK"]
RESTARTS = os.environ["TORCHELASTIC_RESTART_COUNT"]
ORDER = re.compile(r"(?:(\d+)/)?([a-z]+)(?:=(.*?))?(?:@(\d+))?", re.DOTALL)
TOLD = Path("told")


def is_open(fd: int) -> bool:
    """Return whether a descriptor was open before the listing itself."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def limits() -> dict[str, object]:
    """Return what a process inherits besides environment, files and folder."""
    umask = os.umask(0)
    os.umask(umask)
    return {
        "nice": os.nice(0),
        "umask": umask,
        "oom": Path("/proc/self/oom_score_adj").read_text().strip(),
        "files": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "core": list(resource.getrlimit(resource.RLIMIT_CORE)),
        "processors": sorted(os.sched_getaffinity(0)),
    }


def tell() -> None:
    command = Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]
    told = {
        "pid": os.getpid(),
        "argv": sys.argv[1:],
        "command": [os.fsdecode(word) for word in command],
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "main": __name__,
        "session": os.getsid(0),
        "at_s": time.monotonic(),
        "limits": limits(),
        "terminals": [os.isatty(fd) for fd in range(3)],
        "files": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if is_open(int(fd))),
        "stdin": sys.stdin.read() if "stdin" in sys.argv else None,
    }
    TOLD.mkdir(exist_ok=True)
    path = TOLD / f"{RESTARTS}-{RANK}-{os.getpid()}.json"
    half = path.with_suffix(".half")
    half.write_text(json.dumps(told))
    half.rename(path)


def sync() -> None:
    """Wait, for 20 s at most, until every worker of the node has arrived here."""
    (TOLD / f"sync-{RESTARTS}-{RANK}").touch()
    end_s = time.monotonic() + 20
    while len(list(TOLD.glob(f"sync-{RESTARTS}-*"))) < int(os.environ["LOCAL_WORLD_SIZE"]):
        assert time.monotonic() < end_s, "the others have not come"
        time.sleep(0.01)


def obey(verb: str, value: str) -> None:
    match verb:
        case "out" | "err":
            line = value.replace("PID", str(os.getpid())) + "\n"
            os.write(1 if verb == "out" else 2, line.encode())
        case "part":
            os.write(1, value.encode())
        case "sync":
            sync()
        case "exit":
            sys.exit(int(value))
        case "signal":
            os.kill(os.getpid(), signal.Signals[value])
        case "raise":
            raise RuntimeError(value)
        case "error":
            Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(value)
        case "obey":
            runpy.run_path("obedient.py")


def main() -> None:
    tell()
    for word in sys.argv[1:]:
        order = ORDER.fullmatch(word)
        if order and order[1] in (None, RANK) and order[4] in (None, RESTARTS):
            obey(order[2], order[3] or "")


if __name__ == "__main__":
    main()
