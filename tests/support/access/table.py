"""Who may make which call: what is documented, and what the test of every RPC finds.

The page of the documentation is made from this table, and the test makes every call of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import groupby

from msgspec import Struct


class Answer(Enum):
    """How a call ends, as far as it depends on who makes it; the value is that of a cell."""

    YES = "yes"
    MISSING = "missing"
    INVALID = "invalid"
    EXPIRED = "expired"
    ROLE = "role"
    JOB = "job"
    ROUND = "round"
    FORGED = "forged"


REASONS: Mapping[Answer, tuple[str, str]] = {
    Answer.MISSING: ("UNAUTHENTICATED", "ACCESS_TOKEN_MISSING"),
    Answer.INVALID: ("UNAUTHENTICATED", "ACCESS_TOKEN_INVALID"),
    Answer.EXPIRED: ("UNAUTHENTICATED", "ACCESS_TOKEN_EXPIRED"),
    Answer.ROLE: ("PERMISSION_DENIED", "ROLE_NOT_ALLOWED"),
    Answer.JOB: ("PERMISSION_DENIED", "JOB_NOT_ALLOWED"),
    Answer.ROUND: ("ABORTED", "OLD_ROUND"),
    Answer.FORGED: ("UNAUTHENTICATED", "TOKEN_REFUSED"),
}
"""Status and reason of each refusal."""


class Kind(Enum):
    """What calls have in common."""

    JOIN = "join"
    CARRY = "carry"
    READ = "read"
    READ_ALL = "read all"
    CHANGE = "change"
    WORK = "work"
    ABOUT_NO_JOB = "about no job"
    OPEN = "open"


ALL_JOBS = " of all jobs"
"""Added to the name of a method whose request names no job."""
KINDS: Mapping[str, Kind] = {
    "AgentService/Session": Kind.JOIN,
    "AgentService/Relay": Kind.CARRY,
    "BarrierService/ListBarriers": Kind.READ,
    "EvidenceService/ReportEvidence": Kind.JOIN,
    "EventService/ListEvents": Kind.READ,
    "EventService/WatchEvents": Kind.READ,
    "EvidenceService/GetEvidence": Kind.READ,
    "JobService/GetJob": Kind.READ,
    "JobService/ListRounds": Kind.READ,
    "JobService/ListRuns": Kind.READ,
    "JobService/WatchJob": Kind.READ,
    "NodeService/GetNode": Kind.READ,
    "NodeService/ListNodes": Kind.READ,
    "EventService/ListEvents" + ALL_JOBS: Kind.READ_ALL,
    "EventService/WatchEvents" + ALL_JOBS: Kind.READ_ALL,
    "JobService/ListJobs": Kind.READ_ALL,
    "JobService/WatchJobs": Kind.READ_ALL,
    "EvidenceService/TakeEvidence": Kind.CHANGE,
    "JobService/CancelJob": Kind.CHANGE,
    "JobService/CreateJob": Kind.CHANGE,
    "JobService/DeleteJob": Kind.CHANGE,
    "JobService/RestartJob": Kind.CHANGE,
    "JobService/UpdateJob": Kind.CHANGE,
    "NodeService/CordonNode": Kind.CHANGE,
    "NodeService/DrainNode": Kind.CHANGE,
    "NodeService/UncordonNode": Kind.CHANGE,
    "BarrierService/Arrive": Kind.WORK,
    "KeyValueService/GetKeys": Kind.WORK,
    "KeyValueService/ListKeys": Kind.WORK,
    "KeyValueService/WatchKeys": Kind.WORK,
    "KeyValueService/WriteKeys": Kind.WORK,
    "WorkerService/ReportProgress": Kind.WORK,
    "CoordinatorService/GetCoordinator": Kind.ABOUT_NO_JOB,
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Kind.ABOUT_NO_JOB,
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Kind.ABOUT_NO_JOB,
    "grpc.health.v1.Health/Check": Kind.OPEN,
    "grpc.health.v1.Health/Watch": Kind.OPEN,
}
"""Every call that a coordinator offers."""


class Identity(Struct, frozen=True):
    """A caller, and how its calls about a job end."""

    title: str
    name: str
    """In audit lines."""
    join: Answer = Answer.ROLE
    carry: Answer = Answer.ROLE
    read: Answer = Answer.ROLE
    read_all: Answer = Answer.ROLE
    change: Answer = Answer.ROLE
    work: Answer = Answer.ROLE
    about_no_job: Answer = Answer.YES

    def expected(self, kind: Kind) -> Answer:
        """Return how its calls of a kind end."""
        if kind is Kind.OPEN:
            return Answer.YES
        answer: Answer = getattr(self, kind.name.lower())
        return answer


def _unknown(
    title: str, answer: Answer, name: str = "unknown", work: Answer | None = None
) -> Identity:
    """Return an identity whose calls are refused, whatever they are about.

    Args:
        title: of its column.
        answer: to its calls.
        name: in audit lines.
        work: answer to the calls of workers; None: the same.
    """
    same = (answer,) * 5
    return Identity(title, name, *same, work=work or answer, about_no_job=answer)


YES, JOB, ROUND = Answer.YES, Answer.JOB, Answer.ROUND
_WORKER = Identity("worker", "worker of job", read=YES, read_all=JOB, work=YES)
IDENTITIES: Mapping[str, Identity] = {
    "none": _unknown("no token", Answer.MISSING),
    "bad": _unknown("unknown token", Answer.INVALID),
    "expired": _unknown("expired token", Answer.EXPIRED, "bob"),
    "viewer": Identity("viewer", "dash", read=YES, read_all=YES),
    "viewer of the job": Identity("viewer of this job", "a dash", read=YES, read_all=JOB),
    "viewer of another": Identity("viewer of another job", "other dash", read=JOB, read_all=JOB),
    "operator": Identity("operator", "ann", read=YES, read_all=YES, change=YES),
    "operator of the job": Identity(
        "operator of this job", "a ann", read=YES, read_all=JOB, change=YES
    ),
    "operator of another": Identity(
        "operator of another job", "other ann", read=JOB, read_all=JOB, change=JOB
    ),
    "operator by certificate": Identity(
        "operator, by certificate", "ops-1", read=YES, read_all=YES, change=YES
    ),
    "agent": Identity("agent", "trainer", join=YES, read=YES, read_all=YES),
    "agent of the job": Identity(
        "agent of this job", "a trainer", join=YES, read=YES, read_all=JOB
    ),
    "agent of another": Identity(
        "agent of another job", "other trainer", join=JOB, read=JOB, read_all=JOB
    ),
    "relay": Identity("relay", "rack", carry=YES),
    "worker": _WORKER,
    "worker of the round before": Identity(
        "worker of the round before", "worker of job", read=YES, read_all=JOB, work=ROUND
    ),
    "worker of an old round": _unknown("worker of a round before that", Answer.EXPIRED, work=ROUND),
    "worker of an ended run": _unknown("worker of an ended run", Answer.EXPIRED, work=ROUND),
    "worker of another": Identity(
        "worker of another job", "worker of other", read=JOB, read_all=JOB, work=JOB
    ),
    "forged": _unknown("forged worker token", Answer.INVALID, work=Answer.FORGED),
}
"""By a short name."""

_INTRODUCTION = """\
<!-- Generated by `make access`. Do not edit. -->

# Who may make which call

A coordinator that [asks who calls](../security.md#tokens-and-roles) checks each call when it
begins. These tables show how every call of every service ends for every kind of caller. A test
makes each of these calls, and fails when the coordinator offers one that is not here.

The calls are about one job. A caller *of this job* has a token that is bound to it, and one *of
another job* has not. Each has one proof of who it is; with several, one that allows the call is
enough, if the token is valid.
"""


def render() -> str:
    """Return the page, without a line end."""
    lines = [_INTRODUCTION, "| cell | status | reason |", "|---|---|---|", "| yes | let in | |"]
    lines += [f"| {answer.value} | {code} | `{text}` |" for answer, (code, text) in REASONS.items()]
    for title, names in _SECTIONS.items():
        chosen = [IDENTITIES[name] for name in names]
        lines += ["", f"## {title}", ""]
        lines.append(f"| calls | {' | '.join(one.title for one in chosen)} |")
        lines.append("|" + "---|" * (len(chosen) + 1))
        for kind, methods in groupby(KINDS, KINDS.__getitem__):
            cells = (one.expected(kind).value for one in chosen)
            lines.append(f"| {_show(methods)} | {' | '.join(cells)} |")
    return "\n".join(lines)


_SECTIONS = {
    "Without a valid token": ("none", "bad", "expired", "forged"),
    "Viewers and operators": tuple(name for name in IDENTITIES if name.startswith(("v", "o"))),
    "Agents and relays": tuple(name for name in IDENTITIES if name.startswith(("a", "r"))),
    "Workers": tuple(name for name in IDENTITIES if name.startswith("w")),
}


def _show(methods: Iterable[str]) -> str:
    """Return the names of methods, without their services but for those of gRPC."""
    shown = dict.fromkeys(
        name if name.startswith("grpc.") else name.partition("/")[2] for name in methods
    )
    return ", ".join(f"`{name.removesuffix(ALL_JOBS)}`{_suffix(name)}" for name in shown)


def _suffix(name: str) -> str:
    return ALL_JOBS if name.endswith(ALL_JOBS) else ""


if __name__ == "__main__":
    print(render())
