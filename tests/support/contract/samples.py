"""One valid message of every kind that a client can send, with all of its fields set."""

from __future__ import annotations

from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import (
    coordinator_service_pb2,
    evidence_pb2,
    evidence_service_pb2,
    job_pb2,
    job_service_pb2,
    node_pb2,
    node_service_pb2,
    round_pb2,
    scope_pb2,
    verdict_pb2,
    worker_service_pb2,
)
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2

JOB, OTHER_JOB = "job", "other"
SECOND = Duration(seconds=1)
WORKERS = 2
EPOCH_MS = 1_800_000_000_000
"""Epoch of the coordinator."""
TOKEN = "0a1b" * 16
"""The resume token of every session."""


def session_id(number: int) -> str:
    return f"{number:032x}"


def spec() -> job_pb2.JobSpec:
    """Return a specification of two to three nodes, with every field set."""
    brief, long = Duration(), Duration(seconds=600)
    return job_pb2.JobSpec(
        min_nodes=2,
        max_nodes=3,
        max_restarts=100,
        join_timeout=long,
        last_call=brief,
        settle_time=brief,
        grow_after=brief,
        grow=False,
        shutdown_timeout=SECOND,
        restart_backoff=brief,
        fence_after=brief,
        no_retry_exit_codes=[40],
        no_requeue_exit_codes=[41],
        quarantine_after=100,
        quarantine_window=long,
        quarantine_cooldown=long,
        max_reformations=100,
        crash_loop=0,
        progress_after=long,
        heartbeat_interval=SECOND,
        lease=Duration(seconds=30),
        hang_after=long,
        hang_first_after=long,
        hang_action=job_pb2.HANG_ACTION_REPORT,
    )


def exits() -> list[node_pb2.Worker]:
    """Return the exits of both workers of a node: one by a code, one by a signal."""
    facts = node_pb2.WorkerExit(
        agent_signalled_first=False,
        age=SECOND,
        error=node_pb2.ErrorRecord(message="boom", traceback="Trace", age_at_exit=SECOND),
        stderr_tail="boom",
        run_time=SECOND,
        outlived_signal_for=SECOND,
        oom_killed=False,
        failed_at=Timestamp(seconds=1_700_000_000),
        error_file="/tmp/error.json",
        stderr_file="/tmp/stderr.log",
    )
    workers = []
    for rank, end in enumerate((node_pb2.WorkerExit(exit_code=1), node_pb2.WorkerExit(signal=9))):
        end.MergeFrom(facts)
        exited = node_pb2.WORKER_STATE_EXITED
        workers.append(
            node_pb2.Worker(local_rank=rank, rank=rank, pid=4_000 + rank, state=exited, exit=end)
        )
    return workers


def running() -> list[node_pb2.Worker]:
    """Return both workers of a node, which have recorded their errors and still run."""
    workers = exits()
    for worker in workers:
        worker.state = node_pb2.WORKER_STATE_RUNNING
        worker.exit.ClearField("exit_code")
        worker.exit.ClearField("signal")
    return workers


def hello(number: int, job_id: str = JOB) -> agent_pb2.Hello:
    """Return the Hello of a new agent; `held` or `ready` is missing."""
    return agent_pb2.Hello(
        protocol_version=1,
        launch_id="launch",
        job_id=job_id,
        spec=spec(),
        node_name=f"node{number}",
        node_name_explicit=True,
        address=f"10.0.0.{number}",
        local_world_size=WORKERS,
        role="trainer",
        labels={"rack": "r1"},
        node_rank=number,
        host_name="host",
        resume_token=TOKEN,
        coordinator_addresses=["10.1.0.1"],
        host_addresses=["10.0.0.1"],
        program=agent_pb2.Program(
            name="train.py",
            arguments_digest="0a1b",
            command_line="train.py --lr 1",
            user="alice",
            may_differ=True,
        ),
    )


def held(number: int, epoch: int) -> agent_pb2.HeldRound:
    """Return round 5 of two nodes, as the node with this number (1 or 2) holds it."""
    header = round_pb2.RoundHeader(
        number=5,
        run=2,
        world_size=2 * WORKERS,
        group_world_size=2,
        master_addr="10.0.0.1",
        master_port=20_000,
        restart_count=1,
        reason=round_pb2.ROUND_REASON_WORKER_FAILED,
        epoch=epoch,
    )
    assignment = round_pb2.Assignment(
        group_rank=number - 1,
        first_rank=(number - 1) * WORKERS,
        local_world_size=WORKERS,
        role="trainer",
        first_role_rank=(number - 1) * WORKERS,
        role_world_size=2 * WORKERS,
    )
    return agent_pb2.HeldRound(
        order=agent_pb2.RunOrder(
            header=header,
            assignment=assignment,
            max_restarts=100,
            worker_token="1.1.am9i.0",
            reached_at=["10.1.0.1"],
        ),
        state=node_pb2.NODE_STATE_STARTED,
        workers=[
            node_pb2.Worker(local_rank=0, pid=4_000),
            node_pb2.Worker(local_rank=1, pid=4_001),
        ],
        milestones=milestones(),
        still_for=Duration(seconds=400),
    )


def milestones() -> list[agent_pb2.MilestoneReached]:
    """Return what workers have reached, with every field set."""
    imported = agent_pb2.MILESTONE_IMPORTED
    return [agent_pb2.MilestoneReached(milestone=imported, age=SECOND)]


def ready_hello(number: int, job_id: str = JOB) -> agent_pb2.Hello:
    """Return the Hello of a new agent on whose node nothing runs."""
    message = hello(number, job_id)
    message.ready.CopyFrom(agent_pb2.Ready(round=0, master_port=20_000 + number))
    return message


def holding_hello(number: int, epoch: int) -> agent_pb2.Hello:
    """Return the Hello of an agent (1 or 2) that a former coordinator ordered to run round 5."""
    message = hello(number)
    message.run, message.coordinator_id, message.coordinator_durable = 2, "former", False
    message.reports_acknowledged, message.revision_applied = 7, 8
    message.held.CopyFrom(held(number, epoch))
    return message


def full_hello(number: int, epoch: int) -> agent_pb2.Hello:
    """Return a Hello as above in which everything that can be set is set."""
    message = holding_hello(number, epoch)
    message.held.start_failure = "no such file"
    message.held.state = node_pb2.NODE_STATE_FAILED
    del message.held.workers[:]
    message.held.workers.extend(exits())
    message.draining.CopyFrom(agent_pb2.Draining(time_left=SECOND, reason="SIGTERM"))
    return message


def reports(round: int) -> dict[str, Message]:
    """Return every message after a Hello, by the name of its field in the envelope."""
    return {
        "heartbeat": agent_pb2.Heartbeat(number=1),
        "ready": agent_pb2.Ready(round=round, master_port=20_009),
        "started": agent_pb2.Started(round=round, pids=[4_000, 4_001]),
        "reached": agent_pb2.Reached(round=round, milestones=milestones()),
        "progress": agent_pb2.Progress(round=round, still_for=SECOND),
        "start_failed": agent_pb2.StartFailed(round=round, text="no such file"),
        "recorded": agent_pb2.Recorded(round=round, workers=running()),
        "exited": agent_pb2.Exited(round=round, workers=exits()),
        "succeeded": agent_pb2.Succeeded(round=round),
        "blocked": agent_pb2.Blocked(round=round, pids=[4_000]),
        "draining": agent_pb2.Draining(time_left=SECOND, reason="SIGTERM"),
        "leaving": agent_pb2.Leaving(round=round, text="SIGTERM"),
        "goodbye": agent_pb2.Goodbye(reason=agent_pb2.GOODBYE_REASON_SIGNAL, text="SIGTERM"),
    }


def arrival(node_name: str) -> barrier_pb2.ArriveRequest:
    """Return the request of a worker that arrives at a barrier."""
    others = barrier_pb2.Participants(ranks=[0, 1], nodes=[node_name], names=["loader"])
    return barrier_pb2.ArriveRequest(
        job_id=JOB,
        scope=scope_pb2.SCOPE_ROUND,
        name="ready",
        participant=barrier_pb2.Participant(rank=0),
        expected=barrier_pb2.Expected(participants=others),
        payload=b"16 files",
        timeout=SECOND,
        request_id="r1",
    )


def requests(node_name: str) -> dict[str, Message]:
    """Return every request of readers, operators and workers, by the name of its RPC."""
    return {
        "GetCoordinator": coordinator_service_pb2.GetCoordinatorRequest(),
        "GetJob": job_service_pb2.GetJobRequest(job_id=JOB, view=job_pb2.JOB_VIEW_BASIC),
        "WatchJob": job_service_pb2.WatchJobRequest(job_id=JOB, view=job_pb2.JOB_VIEW_FULL),
        "ListJobs": job_service_pb2.ListJobsRequest(page_size=2, page_token="a"),
        "WatchJobs": job_service_pb2.WatchJobsRequest(
            after_revision=EPOCH_MS * 1_000 + 1, job_id_prefix=JOB[:1]
        ),
        "ListRuns": job_service_pb2.ListRunsRequest(job_id=JOB, page_size=2, page_token="2"),
        "ListRounds": job_service_pb2.ListRoundsRequest(
            job_id=JOB, run=1, page_size=2, page_token="2"
        ),
        "GetNode": node_service_pb2.GetNodeRequest(job_id=JOB, node_name=node_name),
        "CreateJob": job_service_pb2.CreateJobRequest(
            job_id="created", spec=spec(), request_id="c0"
        ),
        "CancelJob": job_service_pb2.CancelJobRequest(
            job_id=JOB,
            run=1,
            reason="wrong data",
            request_id="c1",
            give_up_silent_nodes=True,
        ),
        "RestartJob": job_service_pb2.RestartJobRequest(
            job_id=JOB, round=1, reason="new data", request_id="c2"
        ),
        "UpdateJob": job_service_pb2.UpdateJobRequest(
            job_id=JOB,
            update=job_service_pb2.JobUpdate(min_nodes=1, max_nodes=3, max_restarts=5),
            request_id="c3",
            update_mask=FieldMask(paths=["min_nodes", "max_nodes", "max_restarts"]),
            revision=2**52,
            require_nodes=True,
        ),
        "DeleteJob": job_service_pb2.DeleteJobRequest(job_id=JOB, run=1, request_id="c4"),
        "ListNodes": node_service_pb2.ListNodesRequest(job_id=JOB, page_size=2, page_token="1:0"),
        "DrainNode": node_service_pb2.DrainNodeRequest(
            job_id=JOB,
            node_name=node_name,
            drain_timeout=SECOND,
            reason="repair",
            request_id="c5",
        ),
        "CordonNode": node_service_pb2.CordonNodeRequest(
            job_id=JOB, node_name=node_name, reason="bad disk", request_id="c6"
        ),
        "UncordonNode": node_service_pb2.UncordonNodeRequest(
            job_id=JOB, node_name=node_name, request_id="c7"
        ),
        "Arrive": arrival(node_name),
        "ListBarriers": barrier_pb2.ListBarriersRequest(
            job_id=JOB, page_size=2, page_token="1:ready"
        ),
        "ListEvents": events_pb2.ListEventsRequest(
            job_id=JOB,
            kinds=[events_pb2.EVENT_KIND_ROUND_SEALED],
            after_sequence=EPOCH_MS * 1_000 + 1,
            page_size=2,
            page_token=f"{EPOCH_MS * 1_000 + 1}:0",
        ),
        "WatchEvents": events_pb2.WatchEventsRequest(
            job_id=JOB,
            kinds=[events_pb2.EVENT_KIND_ROUND_SEALED],
            after_sequence=EPOCH_MS * 1_000 + 1,
        ),
        "TakeEvidence": evidence_service_pb2.TakeEvidenceRequest(job_id=JOB, ranks=[0, 1]),
        "GetEvidence": evidence_service_pb2.GetEvidenceRequest(job_id=JOB, ranks=[0, 1]),
        "ReportEvidence": evidence_service_pb2.ReportEvidenceRequest(
            job_id=JOB,
            session_id=session_id(1),
            evidence_id="0e1d" * 8,
            workers=[rank_evidence()],
            has_more=True,
        ),
        "ReportProgress": worker_service_pb2.ReportProgressRequest(
            job_id=JOB,
            step=12,
            step_age=SECOND,
        ),
        **key_requests(),
    }


def rank_evidence() -> evidence_pb2.RankEvidence:
    """Return what a worker does, with every field set."""
    frame = evidence_pb2.Frame(function="step", file="train.py", line=7)
    members = [verdict_pb2.RankRange(first=0, last=1)]
    latest = evidence_pb2.Collective(
        number=3, operation="gloo:all_reduce", sizes="[[10]]", dtypes="Float"
    )
    return evidence_pb2.RankEvidence(
        rank=1,
        pid=4711,
        state=evidence_pb2.PROCESS_STATE_SLEEPING,
        waits_in="futex_wait_queue",
        cpu_time=SECOND,
        threads=[evidence_pb2.ThreadStack(is_main=True, frames=[frame])],
        groups=[
            evidence_pb2.GroupProgress(
                name="0",
                description="default_pg",
                members=members,
                entered=3,
                completed=2,
                latest=[latest],
            )
        ],
        stderr_tail="loss 0.1",
        gaps=["no stacks of other threads"],
    )


def key_requests() -> dict[str, Message]:
    """Return every request of workers about keys, by the name of its RPC."""
    ours: dict[str, Any] = {"job_id": JOB, "scope": scope_pb2.SCOPE_RUN}
    known = keys_pb2.KeyValueHeader(epoch=EPOCH_MS, revision=1)
    expected = keys_pb2.KeyCondition(value=b"free")
    writes = [
        keys_pb2.KeyWrite(key="a", put=keys_pb2.KeyWrite.Put(value=b"1")),
        keys_pb2.KeyWrite(key="a", add=keys_pb2.KeyWrite.Add(amount=2)),
        keys_pb2.KeyWrite(
            key="a",
            compare_and_set=keys_pb2.KeyWrite.CompareAndSet(expected=expected, value=b"4"),
        ),
        keys_pb2.KeyWrite(key="a", append=keys_pb2.KeyWrite.Append(value=b"5")),
        keys_pb2.KeyWrite(key="a", delete=keys_pb2.KeyWrite.Delete(expected=expected)),
    ]
    return {
        "GetKeys": keys_pb2.GetKeysRequest(**ours, keys=["a", "b"], timeout=SECOND),
        "WriteKeys": keys_pb2.WriteKeysRequest(**ours, writes=writes, request_id="r2", known=known),
        "ListKeys": keys_pb2.ListKeysRequest(
            **ours, prefix="a", page_size=2, page_token="a", keys_only=True
        ),
        "WatchKeys": keys_pb2.WatchKeysRequest(
            **ours, prefix="a", start_revision=EPOCH_MS * 1_000 + 1, epoch=EPOCH_MS
        ),
    }
