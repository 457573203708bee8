"""`rallypoint journal`: the choice of a command, and their command lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rallypoint.base.exit_codes import EXIT_FAILED, EXIT_USAGE
from rallypoint.base.values import positive_int, text
from rallypoint.cli.flags.common import ONE_HELP_GROUP
from rallypoint.cli.flags.flag import Flag, Group, Operand
from rallypoint.cli.flags.menu import Menu
from rallypoint.cli.flags.parser import Parser
from rallypoint.cli.flags.values import durable_place

PLACE = "sqlite:journal.sqlite"
STORE = "etcd://e1:2379,e2:2379,e3:2379/rallypoint"
STATE = Operand(
    name="STATE",
    parse=durable_place,
    help="the journal, as the coordinator logs it when it starts: sqlite:PATH or "
    "etcd://HOST:2379,HOST:2379/PREFIX",
)
FILE = Operand(
    name="FILE",
    parse=text,
    help="file to write, as JSON lines; it must not exist; -: standard output",
)
ARCHIVE = Operand(name="FILE", parse=text, help="a file that export has written; -: standard input")

CHOICE = Group(
    "Which records",
    (
        Flag(
            names=("--job",),
            parse=text,
            metavar="ID",
            default="",
            help="only those about this job",
        ),
        Flag(
            names=("--last",),
            parse=positive_int,
            metavar="N",
            default=0,
            help="only the last N of them",
        ),
    ),
)
DIVISION = Group(
    "Into etcd",
    (
        Flag(
            names=("--shards",),
            parse=positive_int,
            metavar="N",
            default=0,
            default_text="as many as the file has; 16 for a file from SQLite",
            help="number of parts that the jobs of an SQLite file are divided into; it cannot "
            "change",
        ),
    ),
)
PARSERS = {
    "show": Parser(
        prog="rallypoint journal show",
        summary="Print the records of a journal as JSON lines, oldest first, without secrets.",
        operands=(STATE,),
        groups=(CHOICE, ONE_HELP_GROUP),
        examples=(
            ("the last decisions about a job", f"{PLACE} --job train --last 20"),
            ("only the kinds of records", f"{PLACE} | jq -r .kind"),
        ),
        notes=(
            "A coordinator may be running on the journal. Tokens, values of keys and payloads of "
            "barriers are left out; ids of sessions are digests, as in logs.",
            "Records from etcd name their shard. Those of several shards come in the order of "
            "their times, as far as the clocks of the coordinators agree.",
        ),
    ),
    "verify": Parser(
        prog="rallypoint journal verify",
        summary="Read a whole journal, check it, and print what it holds.",
        operands=(STATE,),
        groups=(ONE_HELP_GROUP,),
        examples=(("a journal, or a copy of one", PLACE), ("all shards in etcd", STORE)),
        notes=(
            "It checks all digests, that no acknowledged batch is missing, every record, and the "
            "state that a coordinator would restore. A coordinator may be running on the journal.",
            "Exit codes: 0 the journal is sound; 1 it is not, or cannot be read; 2 bad usage.",
        ),
    ),
    "export": Parser(
        prog="rallypoint journal export",
        summary="Write a whole journal to a file, which import reads: a backup, or a move.",
        operands=(STATE, FILE),
        groups=(ONE_HELP_GROUP,),
        examples=(
            ("a backup", f"{PLACE} journal.jsonl"),
            ("of all shards in etcd", f"{STORE} journal.jsonl"),
        ),
        notes=(
            "A coordinator may be running on the journal. The file holds everything up to one "
            "moment: in etcd, up to one revision of all shards.",
            "The file appears when it is complete. An export that is killed may leave "
            "FILE.*.partial: delete it.",
            "The file holds the secret of the coordinator, with which anyone can act as its "
            "workers and agents. Only its owner may read it (mode 0600).",
        ),
    ),
    "import": Parser(
        prog="rallypoint journal import",
        summary="Write what export has written into a journal that does not exist yet.",
        operands=(ARCHIVE, STATE),
        groups=(DIVISION, ONE_HELP_GROUP),
        examples=(
            ("restore a backup", f"journal.jsonl {PLACE}"),
            ("restore it in etcd, or move there", f"journal.jsonl {STORE}"),
        ),
        notes=(
            "Everything is imported, or nothing. No coordinator opens what a killed import leaves; "
            "the next import deletes it.",
            "A coordinator on the new journal is the same one, with the same secret: running jobs "
            "continue. Never start both.",
            "The number of shards cannot change, and shards cannot go back into a file.",
        ),
    ),
}
MENU = Menu(
    prog="rallypoint journal",
    summary="Read, check, back up and move the journal of a coordinator.",
    commands={
        "show": "print records as JSON lines, for a person or a bug report",
        "verify": "check a whole journal, and print what it holds",
        "export": "write a whole journal to a file: a backup, or a move",
        "import": "write such a file into a new journal",
    },
    examples=(
        f"show {PLACE} --last 20",
        f"verify {PLACE}",
        f"export {PLACE} journal.jsonl",
        "import journal.jsonl etcd://e1:2379,e2:2379/rallypoint",
    ),
)


def main(prog: str, argv: Sequence[str]) -> int:
    """Run the chosen command on `argv`, and return the exit code."""
    name, words = MENU.choose(argv)
    args = PARSERS[name].read(words, os.environ)
    from rallypoint.cli.commands.journal import actions
    from rallypoint.server.journal.interface import JournalFailed, JournalInUse

    run = {
        "show": actions.show,
        "verify": actions.verify,
        "export": actions.export,
        "import": actions.restore,
    }[name]
    try:
        run(args)
    except JournalInUse as error:
        return _report(f"{prog} {name}", str(error), EXIT_USAGE)
    except JournalFailed as error:
        return _report(f"{prog} {name}", str(error), EXIT_FAILED)
    except OSError as error:
        return _report(f"{prog} {name}", f"{error.filename}: {error.strerror}", EXIT_FAILED)
    return 0


def _report(prog: str, message: str, code: int) -> int:
    print(f"{prog}: error: {message}", file=sys.stderr, flush=True)
    return code
