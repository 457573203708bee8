"""The recording worker inside torch's own `record`."""

import runpy

from torch.distributed.elastic.multiprocessing.errors import record

record(runpy.run_path)("tell.py", run_name="__main__")
