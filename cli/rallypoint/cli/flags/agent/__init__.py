"""The flags of `node-agent`, one module per subject.

Each module has `GROUPS` and `check(args)`. The latter rejects wrong combinations of values, in one
line and before anything starts.
"""
