"""Who an agent is that a relay carries.

Its own token counts, as if it had come directly. Without one, the relay may vouch for it, if it has
verified a certificate: then the agent has the rights of an agent that the relay's certificate has.
The token of the relay proves that this is a relay, and gives no agent anything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rallypoint.server.access import refusals
from rallypoint.server.access.audit import Call
from rallypoint.server.access.caller import Caller
from rallypoint.server.access.gate import Entry
from rallypoint.server.access.policy import POLICY
from rallypoint.server.access.refusals import AccessRefused
from rallypoint.server.access.usage.peers import connected_host
from rallypoint.server.contract.calls import Context
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.access import Role

SESSION = "/rallypoint.v1.AgentService/Session"


def let_in(
    carrier: Entry, context: Context, opening: agent_pb2.RelayedOpening, job_id: str
) -> Entry:
    """Return the call that an agent would have made.

    Args:
        carrier: the relay's own call.
        context: of that.
        opening: what the relay says of the agent.
        job_id: from its Hello.

    Raises:
        AccessRefused: when the agent may not take part in the job.
        LimitExceeded: when its host has failed too often.
    """
    gate = carrier.gate
    call = Call(SESSION, opening.peer, connected_host(opening.peer))
    entry = Entry(gate, POLICY[SESSION], call)
    try:
        entry.admit(_identify(entry, context, opening))
        entry.require_job(job_id)
    except AccessRefused as refused:
        gate.refuse(entry, refused)
        raise
    return entry


def hold(
    entry: Entry,
    context: Context,
    opening: agent_pb2.RelayedOpening,
    end: Callable[[AccessRefused], None],
) -> Callable[[], None]:
    """Check an agent again whenever the rules change; return what releases it.

    Args:
        entry: as `let_in` returned it.
        context: of the relay's call.
        opening: what the relay says of the agent; without its Hello.
        end: ends the agent's stream alone.
    """

    def end_it(refused: AccessRefused) -> None:
        entry.gate.refuse(entry, refused)
        end(refused)

    check = partial(entry.check, partial(_identify, entry, context, opening))
    return entry.gate.streams.hold(check, end_it)


def _identify(
    entry: Entry, context: Context, opening: agent_pb2.RelayedOpening
) -> tuple[Caller, ...]:
    if opening.authorization:
        return (entry.gate.find_token(opening.authorization),)
    shown = entry.gate.identify_certificate(context) if opening.is_certified else ()
    agents = tuple(caller for caller in shown if Role.AGENT in caller.roles)
    if not agents:
        raise refusals.token_missing()
    return agents
