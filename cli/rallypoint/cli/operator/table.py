"""The operator's commands: what `rallypoint --help` says about each, and where it is.

Only the module of the chosen command is imported.
"""

from __future__ import annotations

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Look at jobs": {
        "jobs": ("list the jobs of a coordinator", "reads.jobs"),
        "status": ("show a job: nodes, ranks, rounds; --watch is live", "reads.status"),
        "events": ("print what has happened to jobs; -f follows", "reads.events"),
        "explain": ("say what a job waits for, and what to do", "reads.explain"),
        "verdict": ("say what failed in a run, where and why", "reads.verdict"),
        "stacks": ("say what the workers of a job do at this moment", "reads.stacks"),
    },
    "Change jobs": {
        "cancel": ("end a job", "changes.jobs"),
        "restart": ("start the workers of a job again", "changes.jobs"),
        "resize": ("change how many nodes a job takes", "changes.jobs"),
        "drain": ("take nodes out of a job, with time to save their work", "changes.nodes"),
        "cordon": ("keep nodes out of later rounds", "changes.nodes"),
        "uncordon": ("let nodes into rounds again", "changes.nodes"),
    },
    "Look at what workers share": {
        "barrier": ("show where workers wait for each other", "sharing.barrier"),
        "kv": ("read and change the keys of a job, for a worker", "sharing.kv"),
    },
    "Coordinators": {
        "context": ("save coordinators under names, and choose one", "reads.context"),
    },
    "Give access": {
        "certs": ("make a small certificate authority", "access.commands"),
        "token": ("make tokens for a coordinator", "access.commands"),
    },
    "Find out what is wrong": {
        "doctor": ("check the connection to a coordinator, and this host", "doctor.command"),
    },
    "Shells": {
        "completion": ("print a script for bash, zsh or fish", "completion"),
    },
}
"""By heading: the name of a command, its line in --help, and its module below this package. The
module has a function of this name, or `GROUPS` with those of the commands below it."""

COMMANDS: dict[str, tuple[str, str]] = {
    name: row for section in SECTIONS.values() for name, row in section.items()
}
"""Line in --help and module of each command."""
