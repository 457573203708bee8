"""Run a training script with a fault in it: mishap.py KIND STEP script [args ...].

On rank 1, before the job's first restart, optimizer step number STEP does not complete:

    raise    a ValueError
    die      SIGKILL
    hang     it blocks without end

The script itself is unchanged.
"""

import os
import runpy
import signal
import sys
from functools import wraps
from typing import Any

from torch.optim import SGD, Adam, Optimizer

KIND, STEP, SCRIPT = sys.argv[1], int(sys.argv[2]), sys.argv[3]
IS_MEANT = (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0")
taken = 0


def befall() -> None:
    match KIND:
        case "raise":
            raise ValueError("the mishap")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            while True:
                signal.pause()


def spoil(kind: type[Optimizer]) -> None:
    step = kind.step

    @wraps(step)
    def taking(*args: Any, **kwargs: Any) -> Any:
        global taken
        taken += 1
        if taken == STEP:
            befall()
        return step(*args, **kwargs)

    kind.step = taking  # type: ignore[method-assign]


if IS_MEANT:
    spoil(SGD)
    spoil(Adam)
sys.argv = sys.argv[3:]
sys.path.insert(0, os.path.dirname(SCRIPT))
runpy.run_path(SCRIPT, run_name="__main__")
