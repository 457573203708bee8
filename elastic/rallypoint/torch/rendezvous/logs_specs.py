"""Another way to the back end, for torch before 2.6: `torchrun --logs-specs=rallypoint`.

Those releases look for no back ends in other packages, but they import what `--logs-specs` names.
This module registers the back end. Logs are written as without the flag.
"""

from __future__ import annotations

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from rallypoint.torch.rendezvous import register

register()

LogsSpecs = DefaultLogsSpecs
