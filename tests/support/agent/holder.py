"""An agent that holds a round for so long, as its link to the coordinator sees it."""

from __future__ import annotations

from rallypoint.agent.core.reports import Report
from rallypoint.v1 import agent_service_pb2 as agent_pb2


class Holder:
    """An agent that holds a round until `held` attempts have ended."""

    def __init__(self, held: int) -> None:
        self.held = held
        self.ends: list[str] = []
        self.dismissals: list[tuple[int, str]] = []

    def hello(self) -> agent_pb2.Hello:
        return agent_pb2.Hello()

    def unacknowledged(self) -> tuple[int, tuple[Report, ...]]:
        return 1, ()

    def epoch(self) -> int:
        return 0

    def now_ms(self) -> int:
        return 0

    def holds_round(self) -> bool:
        return len(self.ends) < self.held

    def on_confirmed(self, sent_ms: int) -> None: ...

    def on_message(self, message: agent_pb2.SessionResponse) -> None: ...

    def on_disconnected(self, why: str, *, is_undecided: bool = False) -> None:
        self.ends.append(why)

    def on_dismissed(self, exit_code: int, text: str) -> None:
        self.dismissals.append((exit_code, text))
