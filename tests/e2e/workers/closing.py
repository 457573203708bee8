"""Real torch, gloo: rank 1 records an error, closes its connections, and does not exit.

So the others fail before it does, with gloo's errors about a lost peer.
"""

import json
import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": {"message": "ValueError: loss is nan", "extraInfo": {}}}, file)
    dist.destroy_process_group()
    while True:
        signal.pause()
dist.all_reduce(torch.ones(1))
