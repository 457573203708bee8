"""The flags of `node-agent`, one module per subject.

Each module has `add(parser)` and `check(args, prog)`; the second refuses, in one line and before
anything is started, what the type of a single flag cannot see.
"""
