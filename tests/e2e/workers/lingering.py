"""An obedient worker whose clean-up takes a minute once it has recorded an error."""

import atexit
import os
import runpy
import time
from pathlib import Path


def clean_up() -> None:
    if os.path.exists(os.environ["TORCHELASTIC_ERROR_FILE"]):
        time.sleep(60)


atexit.register(clean_up)
runpy.run_path(str(Path(__file__).with_name("obedient.py")), run_name="__main__")
