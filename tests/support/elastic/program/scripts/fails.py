"""Fails in the way that its argument names."""

import os
import signal
import sys
import time

from support.elastic.program import api

WAY = sys.argv[1]


def fail() -> None:
    raise ValueError("the loss is nan")


def main() -> None:
    if WAY == "raise":
        fail()
    if WAY == "record":
        api.record(fail)()
    if WAY == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ["RANK"] == "0":
        sys.exit(int(WAY))
    time.sleep(120)


main()
