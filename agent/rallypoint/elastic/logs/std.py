"""The standard streams of a worker, chosen for all workers or for some."""

from __future__ import annotations

import re
from enum import IntFlag

_MAPPING = r"(\d{1,9}:[0-3],)*\d{1,9}:[0-3]"


class Std(IntFlag):
    """Streams of a worker, with the numbers of the command line."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Parse "3" for all workers, or "0:3,1:2" for these local ranks.

        Raises:
            ValueError: the text is neither.
        """
        if re.fullmatch("[0-3]", vm):
            return cls(int(vm))
        if re.fullmatch(_MAPPING, vm, flags=re.ASCII):
            pairs = (part.split(":") for part in vm.split(","))
            return {int(rank): cls(int(streams)) for rank, streams in pairs}
        raise ValueError(f"{vm!r} is neither 0, 1, 2 or 3 nor a list such as 0:3,1:2")


def to_map(val_or_map: Std | dict[int, Std], local_world_size: int) -> dict[int, Std]:
    """Return the streams by local rank, for ranks 0 to `local_world_size` - 1."""
    if isinstance(val_or_map, Std):
        return dict.fromkeys(range(local_world_size), val_or_map)
    return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}
