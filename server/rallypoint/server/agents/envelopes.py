"""The messages to agents, made of what their outboxes hold."""

from __future__ import annotations

from rallypoint.server.access.tokens import ResumeTokens, WorkerTokens
from rallypoint.server.agents.desired import desired_message, notices_message
from rallypoint.server.agents.outbox import Outbox, Outboxes
from rallypoint.server.contract.terms import deadlines_message
from rallypoint.server.contract.waiting import Explained, Explanations, kept_out_message
from rallypoint.server.core.messages.effects import Send
from rallypoint.server.core.model.desired import DesiredRun
from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Eligibility
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.state import State
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration

INTERVAL_CHANGE_PART = 10
"""A new heartbeat interval is sent when it differs by more than one part in this many."""


class Envelopes:
    """Makes messages; sends nothing."""

    def __init__(
        self,
        outboxes: Outboxes,
        state: State,
        worker_tokens: WorkerTokens,
        resume_tokens: ResumeTokens | None = None,
        explanations: Explanations | None = None,
    ) -> None:
        """Begin without explanations.

        Args:
            outboxes: know the epoch as of the last turn in the journal.
            state: the live state. Read without a turn for the coordinator's id and for heartbeat
                intervals and leases, which follow the number of sessions.
            worker_tokens: made for the workers of each round.
            resume_tokens: made for each session; None: with a key of this process.
            explanations: of what jobs wait for; None: of these messages alone.
        """
        self.tokens = resume_tokens or ResumeTokens()
        self._worker_tokens = worker_tokens
        self._outboxes = outboxes
        self._state = state
        self._explanations = explanations or Explanations()

    def take(self, outbox: Outbox) -> list[agent_pb2.SessionResponse]:
        """Empty the outbox; return its messages in the order of sending."""
        messages: list[agent_pb2.SessionResponse] = []
        if outbox.end is not None:
            return messages
        if outbox.welcome is not None:
            messages.append(self._envelope(outbox, welcome=self._welcome(outbox)))
            outbox.welcome = outbox.desired = outbox.notify = None
        if outbox.desired is not None:
            messages.append(self._envelope(outbox, desired=self._desired(outbox, outbox.desired)))
            outbox.desired = None
        if outbox.notify is not None:
            messages.append(self._envelope(outbox, notices=notices_message(outbox.notify)))
            outbox.notify = None
        if outbox.collect is not None:
            messages.append(self._envelope(outbox, collect=outbox.collect))
            outbox.collect = None
        return messages

    def answer(self, outbox: Outbox, waiting: job_pb2.Waiting | None) -> agent_pb2.SessionResponse:
        """Answer the latest heartbeat, with what the job waits for, and with a new interval."""
        outbox.answered = outbox.heartbeat
        if outbox.runs_workers and waiting is not None and waiting.kind != job_pb2.WAIT_KIND_HANG:
            waiting = None
        message = agent_pb2.Acknowledgement(heartbeat=outbox.heartbeat, waiting=waiting)
        interval_ms = self._state.heartbeat_ms(outbox.spec)
        if abs(interval_ms - outbox.interval_ms) * INTERVAL_CHANGE_PART > outbox.interval_ms:
            outbox.interval_ms = interval_ms
            message.heartbeat_interval.CopyFrom(to_duration(interval_ms))
            message.lease.CopyFrom(to_duration(self._state.lease_ms(outbox.spec)))
        return self._envelope(outbox, acknowledgement=message)

    def acknowledge(self, outbox: Outbox) -> agent_pb2.SessionResponse:
        """Return the last message to a node that has left."""
        message = agent_pb2.Acknowledgement(heartbeat=outbox.heartbeat)
        return self._envelope(outbox, acknowledgement=message)

    def explain(self, session: SessionId, now_ms: int) -> job_pb2.Waiting | None:
        """Return what the session's job waits for at `now_ms`, computed once for all its nodes.

        None when the session is unknown, or when the job waits for nothing.
        """
        state = self._state
        node = state.nodes.get(session)
        if node is None:
            return None
        job = state.jobs[node.job_id]
        if (
            node.eligibility is not Eligibility.ELIGIBLE
            and job.phase is Phase.RUNNING
            and not node.member
        ):
            return kept_out_message(job, node, now_ms)
        known = self._find_known(job, now_ms) or self._explanations.renew(state, job, now_ms)
        return known.message

    def answer_now(self, outbox: Outbox, now_ms: int) -> agent_pb2.SessionResponse | None:
        """Answer the latest heartbeat, if what the job waits for is not of interest, or is known.

        None: `explain` it in a turn first, for `answer`.
        """
        if outbox.runs_workers and not self._is_suspected(outbox):
            return self.answer(outbox, None)
        known = self.explained(outbox.session, now_ms)
        return None if known is None else self.answer(outbox, known[1])

    def _is_suspected(self, outbox: Outbox) -> bool:
        """Return whether a hang of the job has been examined, perhaps by the turn that runs."""
        job = self._state.jobs.get(outbox.job_id)
        hang = None if job is None or job.round is None else job.round.hang
        return hang is not None and hang.is_examined

    def explained(
        self, session: SessionId, now_ms: int
    ) -> tuple[int, job_pb2.Waiting | None] | None:
        """Return what `explain` returned a moment ago for the session's job, and when; or None.

        It needs no turn: what it says was in the journal. While a round of thousands forms, a turn
        for each heartbeat would take a fifth of the coordinator's time.
        """
        node = self._state.nodes.get(session)
        if node is None or node.eligibility is not Eligibility.ELIGIBLE:
            return None  # its health may be why it waits
        known = self._find_known(self._state.jobs[node.job_id], now_ms)
        return None if known is None else (known.at_ms, known.message)

    def _find_known(self, job: Job, now_ms: int) -> Explained | None:
        """Return what a job waited for a moment ago; of a suspicion of a hang, the newest.

        Agents log a suspicion once, so none must get it without its evidence.
        """
        known = self._explanations.find(self._state, job.job_id, now_ms)
        if known is None or job.round is None or job.round.hang is None:
            return known
        return known if known.revision == self._state.revision_of(job.job_id) else None

    def _welcome(self, outbox: Outbox) -> agent_pb2.Welcome:
        assert outbox.welcome is not None
        state = self._state
        outbox.interval_ms = state.heartbeat_ms(outbox.spec)
        return agent_pb2.Welcome(
            coordinator_id=state.coordinator_id,
            coordinator_durable=state.durable,
            node_name=outbox.welcome.name,
            run=outbox.welcome.run,
            heartbeat_interval=to_duration(outbox.interval_ms),
            lease=to_duration(state.lease_ms(outbox.spec)),
            desired=None if outbox.desired is None else self._desired(outbox, outbox.desired),
            notices=None if outbox.notify is None else notices_message(outbox.notify),
            arguments_differ_from=outbox.welcome.arguments_differ_from or "",
            resume_token=self.tokens.make(outbox.session),
            deadlines=deadlines_message(state, outbox.spec),
            protocol_version=outbox.terms.version,
            capabilities=sorted(outbox.terms.capabilities),
        )

    def _desired(self, outbox: Outbox, send: Send) -> agent_pb2.DesiredState:
        if not isinstance(send.desired, DesiredRun):
            return desired_message(send)
        header = send.desired.header
        token = self._worker_tokens.make(outbox.job_id, header.run, header.number)
        return desired_message(send, token)

    def _envelope(
        self,
        outbox: Outbox,
        *,
        welcome: agent_pb2.Welcome | None = None,
        desired: agent_pb2.DesiredState | None = None,
        notices: agent_pb2.Notices | None = None,
        acknowledgement: agent_pb2.Acknowledgement | None = None,
        collect: agent_pb2.CollectEvidence | None = None,
    ) -> agent_pb2.SessionResponse:
        return agent_pb2.SessionResponse(
            session_id=SessionId(outbox.session),
            connection=outbox.connection,
            acknowledged=outbox.acknowledged,
            epoch=self._outboxes.epoch,
            welcome=welcome,
            desired=desired,
            notices=notices,
            acknowledgement=acknowledgement,
            collect=collect,
        )
