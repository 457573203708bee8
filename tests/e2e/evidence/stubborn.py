"""A worker that ignores SIGTERM and sleeps in a function, after it has made a file."""

import os
import signal
import sys
import time


def load_batch() -> None:
    time.sleep(1000)


signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").close()
load_batch()
