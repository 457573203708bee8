"""The event of the log about a run that did not succeed. Pure: a message in, fields out."""

from __future__ import annotations

from rallypoint.agent.torchelastic.root_cause import exit_number
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import verdict_pb2

Fields = dict[str, str | int]


def to_fields(finished: agent_pb2.Finished) -> Fields:
    """Return what failed first, where and why; what is not known is left out."""
    fields: Fields = {"round": finished.round, "restarts": finished.restart_count}
    if finished.HasField("verdict"):
        fields |= _verdict_fields(finished.verdict)
    return {name: value for name, value in fields.items() if value != ""}


def _verdict_fields(verdict: verdict_pb2.Verdict) -> Fields:
    cause = verdict_pb2.VerdictCause.Name(verdict.cause).removeprefix("VERDICT_CAUSE_").lower()
    fields: Fields = {"cause": cause, "node": verdict.node_name}
    if verdict.HasField("culprit"):
        worker = verdict.culprit
        fields |= {
            "node": worker.node_name,
            "host": worker.host_name,
            "rank": worker.rank,
            "local_rank": worker.local_rank,
            "pid": worker.pid,
            "exit_code": exit_number(worker.exit),
            "error_file": worker.exit.error_file,
            "log": worker.exit.stderr_file,
            "command": worker.command,
        }
    return fields | {
        "consequence": verdict.consequence_text,
        "collateral": verdict.collateral_count,
        "why": verdict.text,
    }
