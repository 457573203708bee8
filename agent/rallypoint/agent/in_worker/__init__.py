"""Programs that the workers' interpreter runs by path: torch may be there, rallypoint may not.

Each is one file of the standard library and, inside functions, torch. That interpreter may be an
older one than the agent's: nothing here needs more than Python 3.8. The agent knows their paths
and never imports them.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent

RUN_PATH = str(_FOLDER / "run_path.py")
"""Runs a script as `__main__` and writes down the exception that ends it."""
DEVICES = str(_FOLDER / "devices.py")
"""Says which devices torch sees."""
LOGS_SPECS = str(_FOLDER / "logs_specs.py")
"""Hosts a plug-in that says where the output of workers goes."""
