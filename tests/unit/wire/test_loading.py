"""gRPC is loaded with variables that no other thread sees."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rallypoint.wire.loading import FORKS_OFF, QUIET

LIMIT_S = 120
WATCHED = """
import os, subprocess, sys, threading

seen, errors, begun, done = set(), [], threading.Event(), threading.Event()

def copy():
    while not done.is_set():
        try:
            seen.update(dict(os.environ))
        except KeyError as error:  # a name went while it was copied
            errors.append(error)
        begun.set()

copying = threading.Thread(target=copy)
copying.start()
assert begun.wait(60)
assert "grpc" not in sys.modules
{load}
done.set()
copying.join(60)
import grpc
from concurrent import futures
channel = grpc.insecure_channel("127.0.0.1:1")
call = channel.unary_unary("/a/b").future(b"", wait_for_ready=True)  # gRPC's threads run
{provoke}
call.cancel()
names = ("GRPC_ENABLE_FORK_SUPPORT", "GRPC_VERBOSITY")
print([one for one in names if one in seen], errors)
child = [sys.executable, "-c", f"import os; print([one for one in {names} if one in os.environ])"]
subprocess.run(child, check=True)
"""
FORK = """
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
"""
FAIL = """
try:
    grpc.server(futures.ThreadPoolExecutor(1)).add_insecure_port("256.1.1.1:1")
except RuntimeError:
    pass
"""
FUNCTIONS = """
from rallypoint.elastic.functions import FunctionLaunch
launch = FunctionLaunch(print)
host = launch.host()
"""
TORCHRUN = """
from torch.distributed.elastic.rendezvous import RendezvousParameters, api
from rallypoint.torch.rendezvous import create_handler
handler = create_handler(
    RendezvousParameters("rallypoint", "127.0.0.1:1", "j", 1, 1, join_timeout="1")
)
try:
    handler.next_rendezvous()
except api.RendezvousError:
    pass
"""


@pytest.mark.parametrize(
    ("load", "provoke"),
    [pytest.param(FUNCTIONS, FORK, id="functions"), pytest.param(TORCHRUN, FAIL, id="torchrun")],
)
def test_variables_of_grpc_are_seen_by_no_other_thread(load: str, provoke: str) -> None:
    """Copies of `os.environ` and children are without them, and gRPC writes no lines."""
    # The command line sets them for its process, so other tests may have done so.
    environ = {name: value for name, value in os.environ.items() if name not in QUIET | FORKS_OFF}
    script = WATCHED.replace("{load}", load).replace("{provoke}", provoke)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=environ,
        check=False,
    )

    assert (0, ["[] []", "[]"]) == (done.returncode, done.stdout.splitlines()), done.stderr
    assert not [line for line in done.stderr.splitlines() if ".cc:" in line], done.stderr
