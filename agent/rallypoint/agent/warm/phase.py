"""What a node does, as far as its standbys are concerned."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """What the node does."""

    WAITING = "waiting"  # no round is here: a spare, or a job that forms
    STARTING = "starting"  # the workers of a round are being started
    RUNNING = "running"  # all of them were started, and none has ended
    DISTURBED = "disturbed"  # one has ended, or something announces a change of the round
    STOPPING = "stopping"  # they are being stopped
