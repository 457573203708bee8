"""The kinds of jobs: what may happen to each, and what must follow from it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from crashes.crew import LIMIT_S, Crew
from crashes.model import Blame
from rallypoint.base.exit_codes import EXIT_CANCELLED
from rallypoint.v1 import round_pb2


@dataclass
class Quiet(Crew):
    """Nothing is done to it."""

    def actions(self) -> dict[str, Callable[[], str]]:
        return {}


@dataclass
class Steady(Crew):
    """Nothing happens to it; its workers share keys and meet at barriers in every step."""

    is_held: bool = False

    def is_steady(self) -> bool:
        return True

    def actions(self) -> dict[str, Callable[[], str]]:
        return {"barrier": self.hold, "keys": self.write}

    def hold(self) -> str:
        """Hold one worker back, so that all others wait at the barrier."""
        if not self.is_held:
            self.is_held = True
            self.stage.board.say(self.workers()[0], "hold")
        return "a barrier is half full"

    def write(self) -> str:
        """Let a worker write many keys."""
        self.stage.board.say(self.workers()[-1], "write 200")
        return "keys are written"

    def settle(self) -> None:
        if self.is_held:
            self.is_held = False
            self.stage.board.say(self.workers()[0], "continue")
        super().settle()
        self.stage.board.await_steps(self.workers(), 1, LIMIT_S)


@dataclass
class Failing(Crew):
    """Its workers fail, and an operator restarts it."""

    def actions(self) -> dict[str, Callable[[], str]]:
        return {"failure": self.fail_one, "restart": self.restart}

    def fail_one(self) -> str:
        """Let one worker fail."""
        self.model.charge(self.fail(self.pick()))
        self.model.form("WORKER_FAILED", self.model.members)
        return "a worker fails"

    def fail_two(self) -> str:
        """Let two workers on different nodes fail while no coordinator is there."""
        first = self.pick()
        others = [one for one in self.workers() if one.node != first.node]
        earlier = self.fail(first)
        time.sleep(0.3)
        later = self.fail(self.stage.chance.choice(others))
        self.model.charge(later if later.outranks(earlier) else earlier)
        self.model.form("WORKER_FAILED", self.model.members)
        return "two workers fail"

    def restart(self) -> str:
        """Restart it as an operator."""
        round = self.model.round
        self.call(lambda: self.stage.client.restart_job(self.job_id, round=round))
        self.model.end_round("RESTART_REQUESTED")
        self.model.form("RESTART_REQUESTED", self.model.members)
        return "an operator restarts a job"


@dataclass
class Moving(Crew):
    """Its nodes are drained, leave and are lost, others come; nodes are cordoned."""

    left: str = ""
    """The node that leaves now."""

    def actions(self) -> dict[str, Callable[[], str]]:
        if len(self.model.members) == self.size:
            several = {"drain": self.drain, "leave": self.leave, "loss": self.lose}
            return {**several, "cordon": self.cordon}
        return {"growth": self.grow, "cordon": self.cordon}

    def drain(self) -> str:
        """Drain a node; its workers run to the end of the time."""
        name = self.stage.chance.choice(self.model.members)
        self.call(
            lambda: self.stage.client.drain_node(
                self.job_id, name, drain_timeout_s=1.0, reason="planned"
            )
        )
        self._leave(name, "DRAINED", Blame("NODE_LEFT", name, "REFORMED"))
        self.dismiss((name,), 0)
        return "a node drains"

    def lose(self) -> str:
        """Kill an agent."""
        name = self.stage.chance.choice(self.model.members)
        self.agents[name].popen.kill()
        self._leave(name, "NODE_LOST", Blame("NODE_LOST", name, "REFORMED"))
        self.model.failures[name] += 1
        self.dismiss((name,), -signal.SIGKILL)
        return "a node is lost"

    def leave(self) -> str:
        """SIGTERM to an agent."""
        name = self.stage.chance.choice(self.model.members)
        self.agents[name].popen.terminate()
        self._leave(name, "NODE_LEFT", Blame("NODE_LEFT", name, "REFORMED"))
        self.dismiss((name,), 128 + signal.SIGTERM)
        self.left = name
        return "a node leaves"

    def compare(self) -> list[str]:
        # An agent that is stopped waits for no coordinator. If there was none when it wanted to
        # say that it leaves, it was lost.
        left, self.left = self.left, ""
        if left:
            last = next(iter(self.stage.client.list_rounds(self.job_id)))
            if last.end_reason == round_pb2.ROUND_REASON_NODE_LOST:
                self.model.lose_instead(left)
        return super().compare()

    def _leave(self, name: str, why: str, blame: Blame) -> None:
        self.model.end_round(why, blame)
        members = tuple(member for member in self.model.members if member != name)
        self.model.form(why, members)

    def grow(self) -> str:
        """Start another agent."""
        name = self.start_agent()
        self.model.end_round("GROWTH")
        self.model.form("GROWTH", tuple(sorted((*self.model.members, name))))
        return "a job grows"

    def cordon(self) -> str:
        """Cordon a node that is elsewhere, or remove such a cordon."""
        client, cordons = self.stage.client, self.model.cordons
        if len(cordons) < 3:
            name, reason = f"elsewhere{self.stage.chance.randrange(10**6)}", f"case {len(cordons)}"
            cordons[name] = reason
            self.call(lambda: client.cordon_node(self.job_id, name, reason=reason))
            return "a node is cordoned"
        name = min(cordons)
        del cordons[name]
        self.call(lambda: client.uncordon_node(self.job_id, name))
        return "a cordon is removed"


@dataclass
class Ending(Crew):
    """Its runs end: with success, failures, and by an operator."""

    def actions(self) -> dict[str, Callable[[], str]]:
        if not self.model.is_open:
            return {"launch": self.open}
        return {"success": self.succeed, "failure": self.fail_one, "cancel": self.cancel}

    def succeed(self) -> str:
        """Let all workers end with 0."""
        for worker in self.workers():
            self.stage.board.say(worker, "exit 0")
        self.dismiss(self.model.members, 0)
        self.model.end_round("SUCCEEDED")
        self.model.close("SUCCEEDED")
        return "a run succeeds"

    def fail_one(self) -> str:
        """Let a worker fail; the second failure ends the run."""
        blame = self.fail(self.pick())
        if self.model.restarts == int(self.max_restarts):
            self.dismiss(self.model.members, 1)
            self.model.spend(blame)
            return "a run fails"
        self.model.charge(blame)
        self.model.form("WORKER_FAILED", self.model.members)
        return "a worker fails"

    def cancel(self) -> str:
        """Cancel the run as an operator."""
        run = self.model.run
        self.call(lambda: self.stage.client.cancel_job(self.job_id, run=run, reason="planned"))
        self.dismiss(self.model.members, EXIT_CANCELLED)
        blame = Blame("CANCELLED", "", "ENDED")
        self.model.end_round("CLOSED")
        self.model.close("CANCELLED", blame)
        return "a run is cancelled"
