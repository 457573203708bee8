"""Where the output of workers goes: console, log files, both, and the filters of each."""

from __future__ import annotations

from pathlib import Path

from support.scenarios.refusals import USAGE
from support.torchrun.launchers import Ran, scenario

BOTH = "out=o-PID err=e-PID"
MANY_RANKS = "a mapping may name any local rank, not only 0 to 9"


def said(ran: Ran, letter: str, *ranks: int) -> list[str]:
    """Return the lines that these ranks' workers have written, sorted."""
    return sorted(f"{letter}-{told.pid}" for told in ran.told if told.rank in ranks)


def heard(ran: Ran, letter: str) -> list[str]:
    """Return the lines of workers that came to the console, from the stream `o` or `e`, sorted."""
    lines = ran.out if letter == "o" else ran.err.splitlines()
    pids = tuple(str(told.pid) for told in ran.told)
    return sorted(line for line in lines if line.endswith(pids) and f"{letter}-" in line)


def logs(ran: Ran, *places: str) -> dict[str, str]:
    """Return what these files of the first attempt hold after `BOTH`, by path below the run's."""
    found = {}
    for place in places:
        rank, _, stream = place.partition("/")
        (line,) = said(ran, "o" if stream == "stdout.log" else "e", int(rank))
        found[f"attempt_0/{place}"] = f"{line}\n"
    return found


@scenario(f"--nproc-per-node 2 tell.py {BOTH}")
def nothing_redirected(ran: Ran) -> None:
    """Workers write to the launcher's own streams, without a prefix."""
    assert ran.codes == [0]
    assert ran.out == said(ran, "o", 0, 1)
    assert heard(ran, "e") == said(ran, "e", 0, 1)


@scenario(f"--nproc-per-node 2 --redirects 1 --log-dir logs/deep tell.py {BOTH}")
def redirected_output(ran: Ran) -> None:
    """1 sends standard output to files; folders are made."""
    assert ran.codes == [0]
    assert ran.files("logs/deep") == logs(ran, "0/stdout.log", "1/stdout.log")
    assert (heard(ran, "o"), heard(ran, "e")) == ([], said(ran, "e", 0, 1))


@scenario(f"--nproc-per-node 2 -r 2 --log-dir logs tell.py {BOTH}")
def redirected_errors(ran: Ran) -> None:
    """2 sends standard error to files."""
    assert ran.codes == [0]
    assert ran.files("logs") == logs(ran, "0/stderr.log", "1/stderr.log")
    assert (heard(ran, "o"), heard(ran, "e")) == (said(ran, "o", 0, 1), [])


@scenario(f"tell.py {BOTH}", env={"PET_REDIRECTS": "3", "PET_LOG_DIR": "logs"})
def redirected_both(ran: Ran) -> None:
    """3 sends both; the environment can say so too."""
    assert ran.codes == [0]
    assert ran.files("logs") == logs(ran, "0/stderr.log", "0/stdout.log")
    assert (heard(ran, "o"), heard(ran, "e")) == ([], [])


@scenario(f"--redirects 3 tell.py {BOTH}")
def redirected_without_a_folder(ran: Ran) -> None:
    """Without a log folder there is one below the folder for temporary files, and it stays."""
    (told,) = ran.told
    folder = Path(told.env["TORCHELASTIC_ERROR_FILE"]).parent

    assert ran.codes == [0]
    assert folder.is_relative_to(ran.folder / "tmp")
    assert (folder / "stdout.log").read_text() == f"o-{told.pid}\n"
    assert (folder / "stderr.log").read_text() == f"e-{told.pid}\n"


@scenario(f"--nproc-per-node 3 --redirects=0:1,2:2 --log_dir=logs tell.py {BOTH}")
def redirected_by_rank(ran: Ran) -> None:
    """A mapping holds for the local ranks that it names, and for no other."""
    assert ran.codes == [0]
    assert ran.files("logs") == logs(ran, "0/stdout.log", "2/stderr.log")
    assert heard(ran, "o") == said(ran, "o", 1, 2)
    assert heard(ran, "e") == said(ran, "e", 0, 1)


@scenario(f"-r 0:3,10:3 --log-dir logs tell.py {BOTH}")
def redirected_by_rank_of_two_digits(ran: Ran) -> None:
    """A node may have more than ten workers."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=0, why=MANY_RANKS)]
    assert len(ran.told) == ran.expected(torchrun=0, node_agent=1, why=MANY_RANKS)


@scenario("--redirects 4 tell.py")
def redirected_nowhere(ran: Ran) -> None:
    """There are the streams 0 to 3; nothing is started."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=USAGE)]
    assert "4" in ran.err.splitlines()[-1]
    assert ran.told == []


@scenario("-r 3 --log-dir tell.py tell.py")
def log_folder_that_is_a_file(ran: Ran) -> None:
    """Nothing is started when there is no place for the logs."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=USAGE)]
    assert "tell.py" in ran.err.splitlines()[-1]
    assert ran.told == []


@scenario(f"-r 3 --log-dir /dev/null tell.py {BOTH}")
def logs_to_nowhere(ran: Ran) -> None:
    """/dev/null for a log folder: no files, no error files, and the console has it all."""
    assert ran.codes == [0]
    assert ran.values("TORCHELASTIC_ERROR_FILE") == [""]
    assert (heard(ran, "o"), heard(ran, "e")) == (said(ran, "o", 0), said(ran, "e", 0))


@scenario(f"--nproc-per-node 2 --tee 3 --log-dir logs tell.py {BOTH}")
def tee(ran: Ran) -> None:
    """Both to file and console, there with role and local rank before each line."""
    assert ran.codes == [0]
    places = ("0/stderr.log", "0/stdout.log", "1/stderr.log", "1/stdout.log")
    assert ran.files("logs") == logs(ran, *places)
    for letter in "oe":
        assert heard(ran, letter) == [
            f"[default{told.rank}]:{letter}-{told.pid}" for told in ran.told
        ]


@scenario(f"--nproc-per-node 2 --tee 3 --role '' tell.py {BOTH}")
def role_without_a_name(ran: Ran) -> None:
    """TorchX gives no name to a role: none stands before the local rank."""
    assert ran.codes == [0]
    assert ran.values("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE") == [" 0 2", " 1 2"]
    for letter in "oe":
        assert heard(ran, letter) == [f"[{told.rank}]:{letter}-{told.pid}" for told in ran.told]


@scenario(f"--nproc-per-node 2 -t 0:1,1:2 -r 1:1 --log-dir logs tell.py {BOTH}")
def tee_by_rank(ran: Ran) -> None:
    """Workers and streams may differ in their destination: here file and console, console, file."""
    first, second = ran.told

    assert ran.codes == [0]
    assert ran.files("logs") == logs(ran, "0/stdout.log", "1/stderr.log", "1/stdout.log")
    assert heard(ran, "o") == [f"[default0]:o-{first.pid}"]
    assert heard(ran, "e") == sorted([f"e-{first.pid}", f"[default1]:e-{second.pid}"])


@scenario("--tee 1 --log-dir logs tell.py 'part=10%\r' 'part=20%\r' part=done 'out='")
def tee_of_a_progress_bar(ran: Ran) -> None:
    """What was drawn over itself is still in the file; the console has a line each time."""
    assert ran.codes == [0]
    assert ran.files("logs") == {"attempt_0/0/stdout.log": "10%\r20%\rdone\n"}
    assert ran.out == ["[default0]:10%", "[default0]:20%", "[default0]:done"]


@scenario(
    f"--nproc-per-node 2 --role judge -t 3 tell.py {BOTH}",
    env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}|${local_rank}|${rank}|$none> "},
)
def prefix_template(ran: Ran) -> None:
    """A template makes the prefix; what it does not know stays as it is."""
    assert ran.codes == [0]
    for letter in "oe":
        assert heard(ran, letter) == [
            f"judge|{told.rank}|{told.rank}|$none> {letter}-{told.pid}" for told in ran.told
        ]


@scenario(f"--nproc-per-node 3 --local-ranks-filter 0,2 tell.py {BOTH}")
def filter_of_local_ranks(ran: Ran) -> None:
    """Only these local ranks are heard on the console."""
    assert ran.codes == [0]
    assert heard(ran, "o") == said(ran, "o", 0, 2)
    assert heard(ran, "e") == said(ran, "e", 0, 2)


@scenario(f"--nproc-per-node 2 --local-ranks-filter 1 -t 1 -r 0:2 --log-dir logs tell.py {BOTH}")
def filter_leaves_files_whole(ran: Ran) -> None:
    """The filter is for the console: files have every rank's lines."""
    second = ran.told[1]

    assert ran.codes == [0]
    assert ran.files("logs") == logs(ran, "0/stderr.log", "0/stdout.log", "1/stdout.log")
    assert heard(ran, "o") == [f"[default1]:o-{second.pid}"]
    assert heard(ran, "e") == [f"e-{second.pid}"]


@scenario("--local-ranks-filter 0,x tell.py")
def filter_that_is_no_number(ran: Ran) -> None:
    """Ranks are numbers; nothing is started."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=2, why=USAGE)]
    assert "local" in ran.err.splitlines()[-1]
    assert ran.told == []


@scenario(
    "--nproc-per-node 2 -t 1 --log-dir logs --duplicate-stdout-filters apple,b,,c tell.py "
    "'out=an apple' out=b,c out=bc 1/out=apples err=apple"
)
def duplicated_output(ran: Ran) -> None:
    """Lines that contain one of the needles (`,,` is a comma in one) are in one more file."""
    files = ran.files("logs")
    chosen = files.pop("attempt_0/filtered_stdout.log").splitlines()

    assert ran.codes == [0]
    assert sorted(chosen) == [
        "[default0]:an apple",
        "[default0]:b,c",
        "[default1]:an apple",
        "[default1]:apples",
        "[default1]:b,c",
    ]
    assert files == {
        "attempt_0/0/stdout.log": "an apple\nb,c\nbc\n",
        "attempt_0/1/stdout.log": "an apple\nb,c\nbc\napples\n",
    }
    assert ran.out == sorted([*chosen, "[default0]:bc", "[default1]:bc"])


@scenario(
    "-t3 --log-dir logs --duplicate-stderr-filters=apple "
    "tell.py err=apple err=pear out=apple 'part=the end'"
)
def duplicated_errors(ran: Ran) -> None:
    """The same for standard error; a last line without an end is a line."""
    assert ran.codes == [0]
    assert ran.files("logs") == {
        "attempt_0/filtered_stderr.log": "[default0]:apple\n",
        "attempt_0/0/stderr.log": "apple\npear\n",
        "attempt_0/0/stdout.log": "apple\nthe end",
    }
    assert ran.out == ["[default0]:apple", "[default0]:the end"]


@scenario("-r 3 --log-dir logs --duplicate-stdout-filters=apple tell.py out=apple err=apple")
def filter_without_tee(ran: Ran) -> None:
    """Lines that only go to a file are not filtered; the file for filtered lines is empty."""
    assert ran.codes == [0]
    assert ran.files("logs") == {
        "attempt_0/filtered_stdout.log": "",
        "attempt_0/0/stderr.log": "apple\n",
        "attempt_0/0/stdout.log": "apple\n",
    }


@scenario("-r 1 -t 2 --log-dir logs --max-restarts 1 tell.py out=first@0 out=second@1 exit=3@0")
def logs_of_attempts(ran: Ran) -> None:
    """Every attempt has a separate folder; those of earlier attempts stay."""
    assert ran.codes == [0]
    assert ran.files("logs") == {
        "attempt_0/0/stderr.log": "",
        "attempt_0/0/stdout.log": "first\n",
        "attempt_1/0/stderr.log": "",
        "attempt_1/0/stdout.log": "second\n",
    }
