"""The package as a program: `python package`."""

import runpy

runpy.run_path("tell.py", run_name="__main__")
