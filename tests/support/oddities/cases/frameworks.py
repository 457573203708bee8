"""Programs that need numpy or torch; their forkservers import these."""

from __future__ import annotations

import os

from support.oddities.case import Case

TORCH = ("torch", "numpy")
TRACKER = "multiprocessing.resource_tracker"
"""It warns on a busy machine, when it hears of the end of a semaphore too late."""
LOADER = """
import torch, sys
from torch.utils.data import DataLoader, Dataset, get_worker_info
class Squares(Dataset):
    def __len__(self): return 6
    def __getitem__(self, n):
        return torch.tensor([n * n, get_worker_info().id, len(sys.argv)])
def collate(items): return torch.stack(items).tolist()
if __name__ == "__main__":
    loader = DataLoader(
        Squares(), 2, num_workers=1, collate_fn=collate, multiprocessing_context=METHOD
    )
    print(list(loader))
"""

CASES = (
    *(
        Case(
            f"framework-loader-{method}",
            LOADER.replace("METHOD", repr(method)),
            args=("a", "b"),
            env={"PYTHONWARNINGS": f"ignore::UserWarning:{TRACKER}"},
            preload=TORCH,
            says=r"\[25, 0, 3\]",
        )
        for method in ("fork", "spawn", "forkserver")
    ),
    Case(
        "framework-save",
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__(); self.l = torch.nn.Linear(1, 1, bias=False)\n"
        "net = Net(); torch.nn.init.ones_(net.l.weight); torch.save(net, 'net.pt')\n"
        "print(torch.load('net.pt', weights_only=False), type(net).__module__)",
        preload=TORCH,
        says="__main__",
    ),
    Case(
        "framework-seeded",
        "import torch, numpy, random\ntorch.manual_seed(1); numpy.random.seed(1); random.seed(1)\n"
        "print(torch.rand(2), numpy.random.rand(2), random.random())",
        preload=TORCH,
    ),
    Case(
        "framework-seeded-by-import",
        "import own, torch, numpy; print(torch.rand(2), numpy.random.rand(2))",
        {"own.py": "import torch, numpy\ntorch.manual_seed(1); numpy.random.seed(1)"},
        preload=(*TORCH, "own"),
        says=r"0\.7576, 0\.2793.*0\.417",
    ),
    Case(
        "framework-threads",
        "import torch; print(torch.get_num_threads(), torch.get_num_interop_threads())\n"
        "print((torch.ones(400, 400) @ torch.ones(400, 400)).sum().item())",
        env={"OMP_NUM_THREADS": "1"},
        preload=TORCH,
        says="64000000",
    ),
    Case(
        "framework-threads-of-bound-worker",
        "import os, torch; print(torch.get_num_threads(), os.sched_getaffinity(0))",
        cpus=(min(os.sched_getaffinity(0)),),
        preload=TORCH,
        says="^1 {",
    ),
    Case(
        "framework-autograd",
        "import torch\nx = torch.ones(2, requires_grad=True); (x * x).sum().backward()\n"
        "print(x.grad, torch.cuda.is_initialized(), torch.is_grad_enabled())",
        preload=TORCH,
    ),
    Case(
        "framework-gloo",
        "import os, torch, torch.distributed as d\n"
        "d.init_process_group('gloo', init_method='file://' + os.path.abspath('store'),\n"
        "    rank=0, world_size=1)\n"
        "t = torch.ones(1); d.all_reduce(t); print(t); d.destroy_process_group()",
        preload=(*TORCH, "torch.distributed"),
        says="tensor",
    ),
    Case(
        "framework-spawn",
        "import torch.multiprocessing as m\ndef f(n, q): q.put((n, __name__))\n"
        "if __name__ == '__main__':\n    q = m.get_context('spawn').SimpleQueue()\n"
        "    m.spawn(f, (q,), nprocs=1); print(q.get())",
        preload=TORCH,
        says="__mp_main__",
    ),
    Case(
        "framework-script",
        "import torch\n@torch.jit.script\ndef f(x: int) -> int:\n    return x + 1\n"
        "print(f(2), f.code)",
        preload=TORCH,
        hide=r".*Warning.*\n.*\n",
        says="3",
    ),
    Case(
        "framework-raises",
        "import torch; torch.ones(2) + torch.ones(3)",
        preload=TORCH,
        exit=1,
        says="must match",
    ),
    Case(
        "framework-numpy",
        "import numpy as n; print(n.arange(3).sum(), n.show_runtime)",
        preload=TORCH,
    ),
    Case(
        "framework-children",
        "import torch, os\npid = os.fork()\nif not pid: print(torch.ones(1)); os._exit(0)\n"
        "os.waitpid(pid, 0)",
        env={"OMP_NUM_THREADS": "1"},
        preload=TORCH,
        says="tensor",
    ),
    Case(
        "framework-error-file",
        "from torch.distributed.elastic.multiprocessing.errors import record\n@record\n"
        "def main(): raise ValueError('recorded')\nmain()",
        env={"TORCHELASTIC_ERROR_FILE": "{here}/error.json"},
        preload=(*TORCH, "torch.distributed.elastic.multiprocessing.errors"),
        exit=1,
        hide=r"(?m)^\[?[EW]\d{4} .*?\] |0\S+ \d+ torch.*?\] ",
        says="recorded",
    ),
)
