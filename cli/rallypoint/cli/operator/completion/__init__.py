"""Completion for shells: what may follow on a command line, with the names of jobs and nodes.

A shell's script, from `scripts`, calls `rallypoint __complete`, which `answer` serves: `line` finds
out what may stand at the cursor, and `names` asks the coordinator, for a moment and silently.
"""
