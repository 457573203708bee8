"""An obedient worker with helpers that keep every processor busy, for two minutes at most."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

SPIN = """
import time
while time.process_time() < 120:
    pass
"""

for _ in os.sched_getaffinity(0):
    subprocess.Popen([sys.executable, "-c", SPIN])
runpy.run_path(str(Path(__file__).with_name("obedient.py")), run_name="__main__")
