"""Several coordinators that share a store: what is done to them, and what is looked at then."""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import ExitStack

from crashes.alone import MOMENTS, OTHERS
from crashes.crew import Crew
from crashes.figures import Fault
from crashes.kinds import Ending, Failing, Moving, Quiet, Steady
from crashes.play import LIMIT_S, Play
from crashes.seat import Seat
from harness.results import Results
from harness.trial import MeasurementFailed, Trial
from owners.fencing import Fencing
from owners.served import Asking
from rallypoint.agent.machine.ports import PortReserver
from rallypoint.v1 import job_pb2
from support.etcd.cluster import Cluster

COORDINATORS = 3
MEMBERS = 3
SHARDS = 16
"""As many as a store has by default."""
TTL_S = 4.0
"""Of a coordinator's lease, by default."""
LONGER_S = (1.5, 4.0)
"""How much longer than its lease a coordinator is suspended."""
AWAY_S_MAX = 2.0
"""How long one that was killed is missed at most, once its jobs are served elsewhere."""
POLL_S = 0.02
PREFIX = "/crashes"
QUOTA_BYTES = 256 * 1024 * 1024
"""Space of etcd's database: the benchmark fills it."""
ETCD_FLAGS = (
    *(f"--quota-backend-bytes={QUOTA_BYTES}", "--unsafe-no-fsync=false"),
    *("--auto-compaction-mode=periodic", "--auto-compaction-retention=1m"),
)
NODES = 3
"""Of a job to which something is done."""
EACH = 24
"""Jobs among which there is one of each kind."""
AIMS = [aim for aim in MOMENTS if aim != "inside an append"]
AGAIN = re.compile(rb"coordinator_reached_again")
KINDS = ("kill", "freeze", "end", "kill", "freeze")
"""In this order again and again."""


class Shared(Play):
    """Several coordinators, and their faults."""

    def __init__(self, stack: ExitStack, jobs: int, seed: int) -> None:
        """Prepare.

        Args:
            stack: closes everything.
            jobs: how many, at least 5; something is done to one in six, but at least to four.
            seed: of what is done, and when.
        """
        trial = stack.enter_context(Trial())
        ports = PortReserver()
        stack.callback(ports.close)
        self.cluster = Cluster(trial.folder / "etcd", MEMBERS, ETCD_FLAGS)
        stack.callback(self.cluster.end)
        endpoints = list(self.cluster.endpoints)
        state = f"etcd://{','.join(endpoints)}{PREFIX}"
        self.seats = [Seat(trial, ports, state) for _ in range(COORDINATORS)]
        self.addresses = [seat.address for seat in self.seats]
        self.fencing = Fencing(endpoints, PREFIX)
        self.asking = Asking(self.fencing, SHARDS)
        copies = max(1, jobs // EACH)
        kinds = ["steady", "failing", "moving", "ending"]
        names = [f"{kind}{number}-" for number in range(copies) for kind in kinds]
        names += [f"quiet{number}-" for number in range(jobs - len(names))]
        super().__init__(stack, trial, self.addresses, seed, names, SHARDS)
        self.faults: list[Fault] = []
        self.outages: list[str] = []
        """What became of faults of etcd, each in one line."""
        self.forbidden = 0
        self.crews = {name: self._make(name, NODES) for name in names}

    def _make(self, name: str, nodes: int) -> Crew:
        if name.startswith("steady"):
            return Steady(self.stage, name, nodes, nodes, manner=("shares",))
        if name.startswith("failing"):
            return Failing(self.stage, name, nodes, nodes, manner=("slow",))
        if name.startswith("moving"):
            return Moving(self.stage, name, nodes, nodes - 1, manner=("slow",))
        if name.startswith("ending"):
            return Ending(self.stage, name, nodes, nodes, max_restarts="1")
        return Quiet(self.stage, name, 1, 1, manner=("calm",))

    def open(self) -> None:
        self.fencing.start()
        self.stack.callback(self.fencing.close)
        for seat in self.seats:
            seat.start()
        self.await_balance()
        super().open()

    def settle(self, when: str) -> None:
        super().settle(when)
        wrong = self.fencing.take_wrong()
        self.forbidden += len(wrong)
        self.note(when, *wrong)

    def add_totals(self, results: Results) -> None:
        super().add_totals(results)
        for column, count in {
            "writes to journals": self.fencing.writes,
            "claims of shards": self.fencing.claims,
            "writes of an owner that had lost its shard": self.forbidden,
        }.items():
            results.count("etcd", f"{len(self.crews)} jobs", column, count)
        results.cases += [{"outage": text} for text in self.outages]

    def describe_last(self) -> str:
        fault = self.faults[-1]
        served, attached = (
            f"{max(times):.2f} s" if times else "-" for times in (fault.served_s, fault.attached_s)
        )
        return (
            f"{fault.kind}, {fault.aim}; {', '.join(fault.done)}; {fault.jobs} jobs are served "
            f"elsewhere after {served}, with all agents after {attached}; balanced after "
            f"{fault.balanced_s:.2f} s; {len(fault.disturbed)} others disturbed"
        )

    def recover(self) -> None:
        ended = [text for seat in self.seats for text in seat.revive()]
        self.note(f"fault {self.count}", *ended)
        self.await_balance()

    def finish(self) -> None:
        from owners.outages import fail_etcd  # it needs this module

        fail_etcd(self)

    # --- A fault -----------------------------------------------------------------------------

    def crash(self, *, kills: bool = True) -> None:
        aim, crew = self._aim()
        fault = Fault(aim, kind=KINDS[self.count % len(KINDS)])
        self.faults.append(fault)
        self.crashes.append(fault)
        moment = MOMENTS[aim]
        free = [one for one in self.living() if one is not crew and not one.is_steady()]
        for one in free:
            if one.actions() and self.chance.random() < OTHERS:
                fault.done.append(self.act(one.job_id))
                free = [other for other in free if other is not one]
        if crew is not None:
            fault.done.append(self.act(crew.job_id, moment.action))
            if moment.joins:
                crew.await_join()
        time.sleep(self.chance.uniform(*moment.within_s))
        address = self.asking.owner(crew.job_id) if crew is not None else ""
        seat = next((one for one in self.seats if one.address == address), None)
        if kills:
            self._disturb(fault, seat or self.chance.choice(self.seats), free)

    def _aim(self) -> tuple[str, Crew | None]:
        """Return the moment that is possible now and was least often aimed at, and a job for it."""
        counts = Counter(fault.aim for fault in self.faults)
        possible: dict[str, list[Crew | None]] = {}
        for aim in AIMS:
            moment = MOMENTS[aim]
            for crew in self.living():
                if moment.job and crew.job_id.startswith(moment.job):
                    if moment.action in crew.actions():
                        possible.setdefault(aim, []).append(crew)
            if not moment.job:
                possible[aim] = [None]
        fewest = min(counts[aim] for aim in possible)
        aim = self.chance.choice([aim for aim in possible if counts[aim] == fewest])
        return aim, self.chance.choice(possible[aim])

    def _disturb(self, fault: Fault, seat: Seat, free: list[Crew]) -> None:
        """Do the fault to a coordinator, see who serves its jobs then, and bring it back."""
        mine = [one for one in self.living() if self.asking.owner(one.job_id) == seat.address]
        others = [one for one in self.living() if one not in mine and one.model.run]
        before = {one.job_id: self.reached(one) for one in others}
        claims = self.fencing.owners()
        members = {owned.member for shard, owned in claims.items() if self._is_at(shard, seat)}
        began_s = time.monotonic()
        if fault.kind == "kill":
            seat.kill()
        elif fault.kind == "freeze":
            seat.freeze()
        else:
            seat.terminate()
        if fault.kind != "end":
            for crew in free:
                if isinstance(crew, Failing) and crew in mine and self.chance.random() < OTHERS:
                    fault.done.append(f"{crew.fail_two()} meanwhile")
        jobs = [one.job_id for one in mine if one.model.run]
        fault.jobs = len(jobs)
        ask = self.chance.choice([one for one in self.addresses if one != seat.address])
        moved = self.asking.follow(jobs, seat.address, ask, began_s, self.is_whole)
        fault.served_s = list(moved.served_s.values())
        fault.attached_s = list(moved.attached_s.values())
        when = f"fault {self.count}"
        for job_id in moved.missing:
            self.note(when, f"{job_id} is not served elsewhere with all its agents")
        fault.disturbed = [
            name for one in others for name in self.reached(one) - before[one.job_id]
        ]
        self.note(when, *(f"agent {name} had to connect again" for name in fault.disturbed))
        for shard, owned in claims.items():
            if owned.member not in members and self.fencing.owners().get(shard) != owned:
                self.note(when, f"shard {shard} of another owner has moved")
        self._bring_back(fault, seat, began_s)

    def _bring_back(self, fault: Fault, seat: Seat, began_s: float) -> None:
        if fault.kind == "freeze":
            end_s = began_s + TTL_S + self.chance.uniform(*LONGER_S)
            time.sleep(max(0.0, end_s - time.monotonic()))
            seat.thaw()
        else:
            if fault.kind == "end":
                seat.await_end()
            time.sleep(self.chance.uniform(0, AWAY_S_MAX))
            seat.start()
        fault.away_s = time.monotonic() - began_s
        fault.balanced_s = self.await_balance()

    def await_balance(self) -> float:
        """Wait until every coordinator has its share; return how long that took, in seconds."""
        began_s = time.monotonic()
        addresses = self.addresses
        while True:
            shares = Counter(self.fencing.address(shard) for shard in range(SHARDS))
            if min(shares[address] for address in addresses) >= SHARDS // len(addresses):
                if not shares[""]:
                    return time.monotonic() - began_s
            if time.monotonic() > began_s + LIMIT_S:
                raise MeasurementFailed(f"the shares are not equal: {dict(shares)}")
            time.sleep(POLL_S)

    def _is_at(self, shard: int, seat: Seat) -> bool:
        return self.fencing.address(shard) == seat.address

    def is_whole(self, job: job_pb2.Job) -> bool:
        """Return whether all agents that live are connected, as far as the job waits for them."""
        crew = self.crews[job.job_id]
        agents = {name for name, one in crew.agents.items() if one.popen.poll() is None}
        attached = {node.name for node in job.nodes if node.attached}
        return job.HasField("closed_at") or agents <= attached

    def reached(self, crew: Crew) -> set[str]:
        """Return how often each agent has found a coordinator again, as `name number`."""
        return {
            f"{name} {number}"
            for name, process in crew.agents.items()
            for number in range(len(AGAIN.findall(self.trial.log(process).read_bytes())))
        }
