"""Runs a command on a new terminal, and exits as it does."""

import os
import pty
import sys

sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
