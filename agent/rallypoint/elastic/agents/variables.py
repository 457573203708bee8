"""Names of variables that turn on parts of the agent, as torch's module of the local agent has."""

from __future__ import annotations

from rallypoint.agent.torchelastic.timers import SWITCH_ENV
from rallypoint.agent.torchelastic.variables import TIMERS_ENV

TORCHELASTIC_ENABLE_FILE_TIMER = SWITCH_ENV
"""Set to 1, the agent ends workers whose timers of `torch.distributed.elastic.timer` expire."""
TORCHELASTIC_TIMER_FILE = TIMERS_ENV
"""Path of the pipe to which workers send their timers; unset: one is made."""
