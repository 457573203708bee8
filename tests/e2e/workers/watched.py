"""A worker with torch's control plane and timers: it serves, then exceeds its timer.

It reports `serving`. Once the test has called, it starts what it does not end in time.
"""

import json
import os
import signal
import socket

from torch.distributed.elastic.control_plane import worker_main
from torch.distributed.elastic.timer.api import configure, expires
from torch.distributed.elastic.timer.file_based_local_timer import FileTimerClient

line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
line.bind("")
line.connect("\0" + os.environ["E2E_MAILBOX"])
configure(FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with worker_main():  # type: ignore[union-attr]  # @record is typed to return None, too
    with expires(after=60, scope="import"):
        path = os.environ["TORCH_WORKER_SERVER_SOCKET"]
    line.send(json.dumps({"kind": "serving", "pid": os.getpid(), "path": path}).encode())
    line.recv(100)
    with expires(after=0.2, scope="train step"):
        signal.pause()
