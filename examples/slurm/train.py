"""Stands for a training script: it counts steps, and saves its work where every node finds it.

sbatch fixed.sbatch train.py --steps 100
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from rallypoint import worker

STEPS_PER_CHECKPOINT = 20


def main() -> None:
    parser = argparse.ArgumentParser(description="Count steps.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"), metavar="PATH")
    arguments = parser.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    path: Path = arguments.checkpoint
    step = int(path.read_text()) if path.exists() else 0
    if rank == 0:
        print(f"{size} worker(s) start at step {step}", flush=True)
    while step < arguments.steps:
        time.sleep(0.1)  # your training step
        step += 1
        is_noticed = worker.should_checkpoint()  # all ranks agree
        if rank == 0 and (is_noticed or step % STEPS_PER_CHECKPOINT == 0):
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(str(step))
            os.replace(unfinished, path)
            print(f"saved step {step}", flush=True)
        if is_noticed:
            worker.barrier("saved")
            notice = worker.notice()
            if notice is not None and notice.is_leaving:
                print(f"rank {rank} leaves at step {step}", flush=True)
                return  # after a notice, 0 means "left", not "done"


if __name__ == "__main__":
    main()
