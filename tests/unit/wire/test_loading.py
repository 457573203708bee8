"""gRPC is loaded with variables that no other thread sees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from rallypoint.wire.loading import FORKS, FORKS_OFF, QUIET

LIMIT_S = 120
WATCHED = """
import ctypes, os, subprocess, sys, threading, time

names = ("GRPC_ENABLE_FORK_SUPPORT", "GRPC_VERBOSITY")
getenv = ctypes.CDLL(None).getenv
getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_char_p

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print([(getenv(one.encode()) or b"").decode() for one in names], flush=True)

sys.meta_path.insert(0, Finder())
seen, errors, begun, done = set(), [], threading.Event(), threading.Event()

def copy():
    while not done.is_set():
        try:
            seen.update(dict(os.environ))
        except KeyError as error:  # a name went while it was copied
            errors.append(error)
        begun.set()
        time.sleep(0.0005)  # else it holds up the import, which takes much longer than this

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
from rallypoint.elastic import LaunchConfig, elastic_launch
elastic_launch(LaunchConfig(1, 1, 1, start_method="fork"), os.getpid)()
"""
PROGRAMS = """
from rallypoint.elastic import LaunchConfig, elastic_launch
elastic_launch(LaunchConfig(1, 1, 1), "true")()
"""
HANDLER = """
from rallypoint.elastic import RendezvousParameters, get_rendezvous_handler
handler = get_rendezvous_handler(RendezvousParameters("rallypoint", "", "j", 1, 1))
handler.next_rendezvous()
"""
CLOSING = """
from rallypoint.elastic import RendezvousError, RendezvousParameters, get_rendezvous_handler
from rallypoint.elastic.node import coordinated
coordinated.CLOSE_S_MAX = 0.1
try:
    parameters = RendezvousParameters("rallypoint", "127.0.0.1:1", "j", 1, 1)
    get_rendezvous_handler(parameters).set_closed()
except RendezvousError:
    pass
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


QUIETLY = """
from rallypoint.wire.loading import load_grpc
load_grpc(is_quiet=True)
"""


FORKED = """
import os, socket
from rallypoint.client import Client
from rallypoint.wire.loading import claim_grpc

refusing = socket.socket()
refusing.bind(("127.0.0.1", 0))

def ask():
    with Client(f"127.0.0.1:{refusing.getsockname()[1]}", limit_s=1) as client:
        try:
            client.get_coordinator()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

{claim}
pid = os.fork()
if pid == 0:
    os.write(1, ask().encode())
    os._exit(0)
os.waitpid(pid, 0)
"""


def run(script: str, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    # The command line sets variables of gRPC for its process, so other tests may have done so.
    environ = {name: value for name, value in os.environ.items() if name not in QUIET | FORKS_OFF}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**environ, **variables},
        check=False,
    )


@pytest.mark.parametrize(
    ("load", "provoke", "is_quiet"),
    [
        pytest.param(FUNCTIONS, FORK, False, id="functions"),
        pytest.param(PROGRAMS, FORK, False, id="programs"),
        pytest.param(HANDLER, FORK, False, id="handler"),
        pytest.param(CLOSING, FORK, False, id="closing"),
        pytest.param(TORCHRUN, FAIL, True, id="torchrun"),
    ],
)
def test_variables_of_grpc_are_seen_by_no_other_thread(
    load: str, provoke: str, is_quiet: bool
) -> None:
    """Copies of `os.environ` and children are without them, and gRPC writes no lines."""
    done = run(WATCHED.replace("{load}", load).replace("{provoke}", provoke), {})

    lines = [str(["0", "NONE" if is_quiet else ""]), "[] []", "[]"]
    assert (0, lines) == (done.returncode, done.stdout.splitlines()), done.stderr
    assert not [line for line in done.stderr.splitlines() if ".cc:" in line], done.stderr


@pytest.mark.parametrize(
    ("load", "variables", "expected", "is_warned"),
    [
        (QUIETLY, {"GRPC_VERBOSITY": "ERROR"}, ["0", "ERROR"], False),
        (QUIETLY, {FORKS: "1"}, ["1", "NONE"], False),
        (HANDLER, {FORKS: "1"}, ["1", ""], True),
        (HANDLER, {FORKS: "False"}, ["False", ""], False),
    ],
)
def test_variable_of_the_user_counts(
    load: str, variables: Mapping[str, str], expected: list[str], is_warned: bool
) -> None:
    """It changes no other; a program with an agent that keeps the handlers of fork is warned."""
    done = run(WATCHED.replace("{load}", load).replace("{provoke}", ""), variables)

    assert (0, str(expected)) == (done.returncode, done.stdout.splitlines()[0]), done.stderr
    assert is_warned == ("fork_handlers_found" in done.stderr), done.stderr


@pytest.mark.parametrize(
    ("claim", "variables"),
    [
        pytest.param("ask()", {FORKS: "0"}, id="client"),
        pytest.param("claim_grpc(is_agent=True)", {}, id="agent"),
    ],
)
def test_fork_that_cannot_use_grpc_is_refused(claim: str, variables: Mapping[str, str]) -> None:
    """A call would wait for ever there, whatever its limit: no thread would end it."""
    done = run(FORKED.replace("{claim}", claim), variables)

    assert done.stdout.startswith("ClientClosed: this process was forked from one that uses gRPC")


def test_fork_of_a_process_that_only_has_a_client_may_have_one() -> None:
    """gRPC's handlers of fork are left on there, and work while no call is under way."""
    done = run(FORKED.replace("{claim}", "ask()"), {})

    assert done.stdout.startswith("Unavailable"), done.stderr
