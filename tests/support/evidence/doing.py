"""A worker that does one thing for good, once the test has heard of it.

asleep    waits, and a second thread waits, too
stubborn  as asleep, and ignores SIGTERM
locked    holds the interpreter's lock in C
shut      has closed the socket of torch's server, which waits for a connection
alone     as asleep, after it has closed the descriptors that it does not know
reduced   has entered an all_reduce that the others have not, after one that all have completed
late      has completed that one, and does not enter the next
trains    has completed one, and enters others without end
held      as trains, once the pipe beside the socket of the test is opened
"""

import ctypes
import os
import signal
import socket
import sys
import threading
import time

begun = threading.Semaphore(0)


def main() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    deed = sys.argv[1].split(",")[local_rank]
    DEEDS[deed](local_rank)


def say(local_rank: int) -> None:
    print("a line of its", local_rank, file=sys.stderr)
    ours = [name for name in os.environ if name.startswith(("RALLYPOINT_ARMED", "PYTHON"))]
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(os.environ["TEST_SOCKET"])
        one.sendall(f"{local_rank} {sorted(ours)}\n".encode())


def sleep_well() -> None:
    begun.release()
    threading.Event().wait()


def sleep(local_rank: int) -> None:
    threading.Thread(target=sleep_well, daemon=True).start()
    begun.acquire()
    say(local_rank)
    sleep_well()


def resist(local_rank: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep(local_rank)


def close(local_rank: int) -> None:
    os.closerange(3, 1024)
    sleep(local_rank)


def shut(local_rank: int) -> None:
    import torch.distributed  # noqa: F401  # it starts the server

    close(local_rank)


def hold_lock(local_rank: int) -> None:
    reader, _ = os.pipe()
    say(local_rank)
    ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)


def reduce(local_rank: int) -> None:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    group = distributed.new_group([0, 1], group_desc="pair")
    distributed.all_reduce(torch.ones(2, 3), group=group)
    distributed.all_reduce(torch.ones(4))
    if local_rank == 0:
        work = distributed.all_reduce(torch.ones(5), async_op=True)
        say(local_rank)
        work.wait()
    else:
        say(local_rank)
        sleep_well()


def train(local_rank: int) -> None:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    distributed.all_reduce(torch.ones(1))
    say(local_rank)
    if sys.argv[1].split(",")[local_rank] == "held":
        open(os.environ["TEST_SOCKET"] + ".pipe").close()
    while True:
        distributed.all_reduce(torch.ones(1))
        time.sleep(0.01)


DEEDS = {
    "asleep": sleep,
    "stubborn": resist,
    "locked": hold_lock,
    "alone": close,
    "shut": shut,
    "reduced": reduce,
    "late": reduce,
    "trains": train,
    "held": train,
}

if __name__ == "__main__":
    main()
