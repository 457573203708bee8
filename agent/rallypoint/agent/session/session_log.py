"""Logs the agent's session and rounds: each change once, in order; a wait again now and then.

The first log line has to import a library. So a Welcome is logged only after the start of the
workers that it orders, and before everything else.
"""

from __future__ import annotations

from collections.abc import Iterable

from rallypoint.agent.core.desired import DesiredDrain, Notice, RunOrder
from rallypoint.agent.core.held_round import HeldRound
from rallypoint.agent.session.reminders import News, Reminder
from rallypoint.base.log import get_logger
from rallypoint.base.ranges import join_ranges
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2

log = get_logger()

BRIEF_WAITS = frozenset(
    {
        job_pb2.WAIT_KIND_RETURNING,
        job_pb2.WAIT_KIND_START,
        job_pb2.WAIT_KIND_STOP,
        job_pb2.WAIT_KIND_FAREWELL,
    }
)
"""Waits of every restart and every end. They are usually over before a person can read of them."""
BRIEF_MS = 2_000
"""Such a wait is logged once it has lasted this long."""


class SessionLog:
    """Logs the changes that the coordinator's messages cause."""

    def __init__(
        self,
        coordinator: str,
        job_id: str,
        node_name: str,
        *,
        is_standalone: bool,
        limits_threads: bool = False,
        patient_until_ms: int = 0,
    ) -> None:
        """Begin without a session.

        Args:
            coordinator: host:port.
            job_id: the job's name.
            node_name: the requested name of the node.
            is_standalone: the coordinator is built in.
            limits_threads: several workers on a node get OMP_NUM_THREADS=1, because it is not set.
            patient_until_ms: monotonic time; until then it is normal that no coordinator was
                reached yet, because another node of the job starts it.
        """
        self.coordinator = coordinator
        """The one that was reached last."""
        self.job_id = job_id
        self.node_name = node_name
        """As the coordinator knows it."""
        self._is_standalone = is_standalone
        self.found_address = ""
        """Of this node; empty: it was chosen, or the coordinator is on another host."""
        self._reached: tuple[str, ...] = ()
        """The addresses of the last line about them."""
        self._limits_threads = limits_threads
        """A round that limits the threads of its workers was not logged yet."""
        self._is_first = True
        """No coordinator was reached yet."""
        self._is_reached = False
        """A Welcome was not logged yet."""
        self.was_reached = False
        """A coordinator has welcomed this agent."""
        self._absence = Reminder()
        """Whether the loss of the session was logged."""
        self._is_undecided = False
        """Since the loss, it was logged that no coordinator can decide anything."""
        self._patient_until_ms = patient_until_ms
        self._wait = Reminder()
        """Whether the job's wait was logged."""
        self._brief: tuple[job_pb2.WaitKind.ValueType, int] | None = None
        """Kind of a brief wait, and when it began in monotonic ms; None: another wait."""
        self._is_waiting = False
        """The last logged change was a wait of the job."""
        self._is_suspected = False
        """That the round is suspected to hang was logged last of that."""
        self._is_spare = False
        self._arguments_differ_from = ""
        self._is_warned = False
        """The warning about arguments was logged; arguments do not change."""
        self._notices: set[tuple[str, str]] = set()
        """Kind and node of the notices that were logged and still hold."""

    def on_welcome(self, node_name: str, arguments_differ_from: str = "") -> None:
        """Remember a Welcome, which `reached` logs.

        Args:
            node_name: the name that it gives.
            arguments_differ_from: a node with the same program and other arguments, or "".
        """
        self.node_name = node_name
        self._arguments_differ_from = arguments_differ_from
        self._absence.forget()
        self._is_undecided = False
        self._is_reached = self.was_reached = True

    def reached(self) -> None:
        """Log the last Welcome, once."""
        if not self._is_reached:
            return
        self._is_reached = False
        if self._is_first and self._is_standalone:
            log.debug("coordinator_started", kind="built-in", address=self.coordinator)
        event = "coordinator_reached" if self._is_first else "coordinator_reached_again"
        # That a node reaches its own coordinator is no news to the person who has started a job.
        write = log.debug if self._is_first and self._is_standalone else log.info
        self._is_first = False
        write(event, coordinator=self.coordinator, node=self.node_name, job=self.job_id)
        if self._arguments_differ_from and not self._is_warned:
            self._is_warned = True
            log.warning(
                "other_arguments_found",
                other_node=self._arguments_differ_from,
                why="both run the same program; GetJob shows their arguments",
            )

    def on_disconnected(
        self, now_ms: int, *, is_undecided: bool = False, is_answered: bool = False
    ) -> bool:
        """Return whether to log that there is no session: at its loss, and again now and then.

        Args:
            now_ms: monotonic time.
            is_answered: something answers there, so there is more than an absence to tell.
            is_undecided: no coordinator can decide anything. The first such reason is logged too,
                because another one was probably logged at the loss.
        """
        if not (self.was_reached or is_answered) and now_ms < self._patient_until_ms:
            return False
        is_new = is_undecided and not self._is_undecided
        self._is_undecided = self._is_undecided or is_undecided
        return self._absence.judge("away", now_ms) is not News.KNOWN or is_new

    def acknowledged(self, message: agent_pb2.Acknowledgement, now_ms: int) -> None:
        """Log what the job waits for, or that its round is suspected to hang, or not any more."""
        waiting = message.waiting if message.HasField("waiting") else None
        is_suspected = waiting is not None and waiting.kind == job_pb2.WAIT_KIND_HANG
        if is_suspected != self._is_suspected:
            self._is_suspected = is_suspected
            if waiting is not None and is_suspected:
                log.warning("hang_suspected", why=waiting.text)
            else:
                log.info("hang_ended")  # also when a worker has failed: the next line says so
        if waiting is not None and not is_suspected:
            self.waiting(waiting, now_ms)

    def waiting(self, message: job_pb2.Waiting, now_ms: int) -> None:
        """Log what the job waits for: when the reason changes, and again now and then.

        A brief wait, such as for workers that stop, is logged once it is no longer brief.
        """
        if message.kind not in BRIEF_WAITS:
            self._brief = None
        elif self._brief is None or self._brief[0] != message.kind:
            self._brief = message.kind, now_ms
        if self._brief is not None and now_ms - self._brief[1] < BRIEF_MS:
            return
        self._is_waiting = True
        key = (message.kind, message.ready_nodes, *(node.name for node in message.nodes))
        match self._wait.judge(key, now_ms):
            case News.NEW:
                log.info("wait_began", why=message.text)
            case News.AGAIN:
                log.info("wait_continued", why=message.text)
            case News.KNOWN:
                pass

    def node_round_began(self, order: RunOrder) -> None:
        """Log that a round began whose workers the coordinator does not count."""
        self._begin_round()
        log.info(
            "round_began",
            round=order.number,
            node_rank=order.assignment.group_rank,
            nodes=order.header.group_world_size,
        )
        self._note_master_address(order)

    def _note_master_address(self, order: RunOrder) -> None:
        """Log that others have reached this host elsewhere than at its address, if that is new."""
        master, reached_at = order.header.master_addr, order.reached_at
        if not (reached_at and self.found_address) or self._reached == (master, *reached_at):
            return
        self._reached = (master, *reached_at)
        if master != self.found_address:
            log.info(
                "master_addr_replaced",
                master_addr=master,
                found=self.found_address,
                why="the other nodes reach this host there; --local-addr chooses another address",
            )
        else:
            log.info(
                "master_addr_kept",
                master_addr=master,
                reached_at=",".join(reached_at),
                why="other nodes reach this host there",
                then="if workers cannot connect, set --local-addr",
            )

    def _begin_round(self) -> None:
        self.reached()
        self._is_waiting = self._is_suspected = False
        self._brief = None
        self._wait.forget()

    def round_began(self, order: RunOrder) -> None:
        """Log that the workers of a round were started."""
        self._begin_round()
        header, assignment = order.header, order.assignment
        first, count = assignment.first_rank, assignment.local_world_size
        log.info(
            "round_began",
            round=header.number,
            ranks=join_ranges([(first, first + count - 1)]),
            world_size=header.world_size,
            restarts=f"{header.restart_count} of {order.max_restarts}",
        )
        self._note_master_address(order)
        if self._limits_threads and count > 1:
            self._limits_threads = False
            log.debug(
                "threads_limited",
                OMP_NUM_THREADS=1,
                why="it was not set, and several workers share this node",
            )

    def round_continued(self, number: int) -> None:
        """Log that the held round continues, if a wait of the job was logged last."""
        if self._is_waiting:
            self._is_waiting = False
            self._wait.forget()
            self.reached()
            log.info("round_continued", round=number, why="the coordinator adopted it")

    def round_stopped(self, number: int, why: str) -> None:
        """Log that the coordinator stopped the held round."""
        self._brief = None
        self._is_suspected = False
        self.reached()
        log.info("round_stopped", round=number, why=why)

    def progress(self, before: HeldRound, held: HeldRound, now_ms: int) -> None:
        """Log that the workers of the running round stand still, or make progress again."""
        since_ms = held.still_since_ms
        if not held.is_running or (since_ms is None) == (before.still_since_ms is None):
            return
        if since_ms is None:
            log.info("workers_progressed", round=held.number)
        else:
            still_s = round((now_ms - since_ms) / 1000, 1)
            log.warning("workers_stalled", round=held.number, still_s=still_s)

    def standby(self, *, is_spare: bool) -> None:
        """Log that this node became a spare."""
        was_spare, self._is_spare = self._is_spare, is_spare
        if is_spare and not was_spare:
            self.reached()
            log.info(
                "became_spare",
                why=f"a round of job {self.job_id} already runs without this node",
                then="it can join the next round",
            )

    def notices(self, notices: Iterable[Notice], now_ms: int) -> None:
        """Log notices that were not logged yet."""
        current = {(notice.kind, notice.node): notice for notice in notices}
        for key, notice in current.items():
            if key not in self._notices:
                self._log_notice(notice, now_ms)
        self._notices = set(current)

    def drain(self, drain: DesiredDrain, now_ms: int) -> None:
        """Log that the coordinator makes this node leave the job."""
        self.reached()
        log.info(
            "drain_requested",
            why=drain.reason,
            then="this node leaves once its workers are done",
            within_s=round((drain.until_ms - now_ms) / 1000, 1),
        )

    def _log_notice(self, notice: Notice, now_ms: int) -> None:
        about = {"node": notice.node, "why": notice.reason} if notice.node else {}
        log.info(
            "notice_received",
            kind=notice.kind,
            **about,
            then=_describe_effect(notice),
            within_s=round((notice.until_ms - now_ms) / 1000, 1),
        )


def _describe_effect(notice: Notice) -> str:
    """Return what the event of a notice causes, and whether its time is more than a limit."""
    if notice.kind == "growth":
        return "the round stops and re-forms with new nodes, usually before the time is up"
    return "the round stops and re-forms"
