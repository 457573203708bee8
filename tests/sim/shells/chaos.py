"""What goes wrong in a seed: at drawn times a drawn fault strikes, until faults stop."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from rallypoint.v1 import job_service_pb2, node_service_pb2
from rallypoint.wire.durations import to_duration
from sim.shells.calls import DRAIN, GET_JOB
from sim.shells.loop import NS
from sim.shells.node import AgentProcess
from sim.shells.plan import ALL_JOBS, LASTS_S, Fault

if TYPE_CHECKING:
    from sim.shells.world import Host, World

FROZEN_SHARE = 0.2
"""Share of the seeds in which a helper stands still."""
ENDLESS_S = 1_000.0
"""So long only if nothing ends it."""
FROZEN_LASTS_S = 15.0
"""How long the job notices it afterwards."""
FREEZE_PAUSE_S = 0.3
"""Pause until another look whether workers run there."""
CUT_OFF_SHARE = 0.5
CUT_OFF_S = 20.0
"""Longer than any fence."""


class Chaos:
    """Strikes a world with faults."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = world.rng

    def begin(self) -> None:
        """Make the next fault due."""
        if self.world.rates.kinds:
            pause_s = self._rng.expovariate(1 / self.world.rates.pause_s)
            self.world.schedule.after(pause_s, self._strike)

    def freeze_a_helper(self, rng: Random) -> None:
        """Let the helper of one node stand still in some seeds, and cut the node off in some.

        Not one of the kinds of faults: from a separate generator, so that what else happens in a
        seed stays what it was.
        """
        if rng.random() < FROZEN_SHARE and self.world.rates.kinds:
            host = rng.choice(self.world.hosts)
            at_s, for_s = rng.uniform(1, 4), rng.choice((rng.uniform(0.5, 20), ENDLESS_S))
            is_cut_off = rng.random() < CUT_OFF_SHARE and not self.world.rates.is_patient
            self.world.schedule.after(at_s, partial(self._freeze_helper, host, for_s, is_cut_off))

    def _freeze_helper(self, host: Host, for_s: float, is_cut_off: bool) -> None:
        process = host.living
        if self.world.is_calm:
            return
        if process is None or not any(worker.group.has_joined for worker in host.workers):
            again = partial(self._freeze_helper, host, for_s, is_cut_off)
            self.world.schedule.after(FREEZE_PAUSE_S, again)
            return
        self.world.note("fault", "freeze helper", host.name)
        self.world.rules.disturbed(host.job.job_id, max(for_s, CUT_OFF_S) + FROZEN_LASTS_S)
        if is_cut_off:
            host.cut_off_ns = self.world.schedule.now_ns + int(CUT_OFF_S * NS)
            host.unreachable_ns = host.cut_off_ns
        helper = process.helper
        helper.freeze()
        self.world.schedule.after(for_s, helper.thaw)

    def _strike(self) -> None:
        if self.world.is_calm:
            return
        self.begin()
        fault, host = self._rng.choice(self.world.rates.kinds), self._rng.choice(self.world.hosts)
        if fault in ALL_JOBS:
            for job in self.world.jobs:
                self.world.rules.disturbed(job.job_id, LASTS_S[fault])
            self._strike_coordinator(fault)
        elif fault is Fault.READ:
            self._read(host)
        elif fault is Fault.START_AGENT:
            self.world.start_agent(host)
        elif host.living is not None:
            self.world.note("fault", fault.value, host.name)
            if fault is not Fault.FAIL_WORKER:
                self.world.rules.disturbed(host.job.job_id, LASTS_S[fault])
            self._strike_host(fault, host, host.living)

    def _strike_coordinator(self, fault: Fault) -> None:
        rng, life = self._rng, self.world.coordinator
        if life is None:
            return
        self.world.note("fault", fault.value)
        match fault:
            case Fault.CRASH | Fault.BLACKOUT:
                self.world.kill_coordinator(resets=fault is Fault.CRASH)
                self.world.schedule.after(rng.uniform(0.1, 3.0), self.world.restart_coordinator)
            case Fault.STOP:
                life.stop()
                self.world.schedule.after(rng.uniform(1.0, 3.0), self.world.restart_coordinator)
            case _:
                life.loop.freeze(int(rng.uniform(0.1, 4.0) * NS))

    def _strike_host(  # noqa: C901  # one flat case per fault
        self, fault: Fault, host: Host, process: AgentProcess
    ) -> None:
        rng, now_ns = self._rng, self.world.schedule.now_ns
        match fault:
            case Fault.SEVER:
                self._sever(process)
            case Fault.PARTITION:
                host.unreachable_ns = now_ns + int(rng.uniform(0.1, 8.0) * NS)
            case Fault.DEAF:
                host.deaf_ns = now_ns + int(rng.uniform(0.1, 8.0) * NS)
            case Fault.FAIL_WORKER:
                self._fail_worker(host)
            case Fault.FAIL_AWAY:
                self._sever(process)
                self._fail_worker(host)
            case Fault.KILL_AGENT:
                self.world.kill_agent(process, resets=rng.random() < 0.7)
            case Fault.FREEZE_AGENT:
                process.loop.freeze(int(rng.uniform(0.1, 8.0) * NS))
            case Fault.TERMINATE:
                process.terminate()
            case Fault.DRAIN:
                self._drain(process)
            case Fault.LOSE_HELPER:
                process.helper.lose()

    def _sever(self, process: AgentProcess) -> None:
        stream, rng = self.world.network.find(process), self._rng
        if stream is not None:
            client_s = rng.choice((0.0, rng.uniform(0, 1.0), None))
            server_s = rng.choice((0.0, rng.uniform(0, 1.0), None))
            stream.cut(client_s=client_s, server_s=server_s)

    def _fail_worker(self, host: Host) -> None:
        if host.workers:
            code, signum = self._rng.choice(((1, None), (17, None), (None, 11)))
            self.world.end(self._rng.choice(host.workers), code, signum)

    def _read(self, host: Host) -> None:
        life, job_id = self.world.coordinator, host.job.job_id
        if life is not None and life.server is not None:
            self.world.note("fault", Fault.READ.value, job_id)
            request = job_service_pb2.GetJobRequest(job_id=job_id).SerializeToString()
            life.server.ask(GET_JOB, request, partial(self.world.rules.answered, job_id))

    def _drain(self, process: AgentProcess) -> None:
        life = self.world.coordinator
        if life is None or life.server is None:
            return
        self.world.drained_jobs.add(process.host.job.job_id)
        request = node_service_pb2.DrainNodeRequest(
            job_id=process.host.job.job_id,
            node_name=process.agent.node_name,
            drain_timeout=to_duration(self._rng.choice((0, 1_000))),
            reason="maintenance",
        )
        life.server.ask(DRAIN, request.SerializeToString(), lambda answer: None)
