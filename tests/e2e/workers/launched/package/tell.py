"""The telling worker as a module of a package."""

import runpy

runpy.run_path("tell.py", run_name="__main__")
