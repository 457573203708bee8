"""Programs that the workers' interpreter runs by path. It may have torch, but not rallypoint.

Each program is one file that imports the standard library and, inside functions, torch. The
workers' interpreter may be older than the agent's, so the programs run under Python 3.8. The agent
uses their paths and never imports them. Only forked.py runs in an interpreter of the agent's kind,
the helper's.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent

RUN_PATH = str(_FOLDER / "run_path.py")
"""Runs a script as `__main__` and records the exception that ends it."""
FUNCTION = str(_FOLDER / "function.py")
"""Runs a pickled function and stores what it returns."""
DEVICES = str(_FOLDER / "devices.py")
"""Tells which devices torch sees."""
LOGS_SPECS = str(_FOLDER / "logs_specs.py")
"""Hosts a plug-in that assigns where the output of workers goes."""
PRELOAD = str(_FOLDER / "preload")
"""Folder to put first on PYTHONPATH, so that an interpreter imports first, and is forked then."""
