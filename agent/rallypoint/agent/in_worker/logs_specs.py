"""Hosts a plug-in of torch's group `torchrun.logs_specs`, and calls it once per round.

Run as `python logs_specs.py PARENT NAME OPTIONS`. PARENT is the pid of the caller; the program dies
with it. OPTIONS is JSON of `log_dir`, `redirects`, `tee` and `local_ranks_filter`; streams are
numbers as on torchrun's command line, for all workers or by local rank.

Standard input is a socket. The program writes one line there when the plug-in is made, and then
answers each line with one line:

    ask     {"number": N, "envs": {local rank: {name: value}}}
    answer  {"number": N, "destinations": {field of LogsDest: value}, "envs": changed variables}
    or      {"number": N, "error": "one line"}       N is 0 for the line when it is made

What the plug-in prints, or what starts before this program, goes to standard error. The program
ends with its standard input.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from importlib import metadata
from typing import Any

GROUP = "torchrun.logs_specs"
_PR_SET_PDEATHSIG = 1
_BY_RANK = ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs", "error_files")
_FOR_ALL = ("filtered_stdout", "filtered_stderr")


def _main() -> None:
    parent, name, options = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file
    questions = os.fdopen(os.dup(0))
    answers = os.fdopen(os.dup(0), "w")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)

    def answer(number: int, **fields: Any) -> None:
        print(json.dumps({"number": number, **fields}), file=answers, flush=True)

    try:
        specs = _make(name, options)
    except Exception as error:  # noqa: BLE001 - any error of a plug-in is an answer
        answer(0, error=_describe(error))
        sys.exit(1)
    answer(0)
    for line in questions:
        question = json.loads(line)
        try:
            answer(question["number"], **_ask(specs, question["envs"]))
        except Exception as error:  # noqa: BLE001 - the same
            answer(question["number"], error=_describe(error))


def _make(name: str, options: dict[str, Any]) -> Any:
    from torch.distributed.elastic.multiprocessing import Std

    def streams(value: Any) -> Any:
        if isinstance(value, dict):
            return {int(rank): Std(number) for rank, number in value.items()}
        return Std(value)

    points = metadata.entry_points()
    group = points.select(group=GROUP) if hasattr(points, "select") else points[GROUP]
    plugins = {point.name: point for point in group}
    if name not in plugins:
        raise LookupError(f"not installed; installed: {', '.join(sorted(plugins)) or 'none'}")
    ranks = options["local_ranks_filter"]
    return plugins[name].load()(
        log_dir=options["log_dir"],
        redirects=streams(options["redirects"]),
        tee=streams(options["tee"]),
        local_ranks_filter=None if ranks is None else set(ranks),
    )


def _ask(specs: Any, asked: dict[str, dict[str, str]]) -> dict[str, Any]:
    envs = {int(rank): dict(env) for rank, env in asked.items()}
    destinations = specs.reify(envs)
    by_rank = {name: dict(getattr(destinations, name, {})) for name in _BY_RANK}
    for_all = {name: str(getattr(destinations, name, "") or "") for name in _FOR_ALL}
    changed = {
        rank: {
            name: str(value) for name, value in env.items() if asked[str(rank)].get(name) != value
        }
        for rank, env in envs.items()
    }
    return {"destinations": {**by_rank, **for_all}, "envs": changed}


def _describe(error: Exception) -> str:
    traceback.print_exc()
    return traceback.format_exception_only(type(error), error)[-1].strip()


if __name__ == "__main__":
    _main()
