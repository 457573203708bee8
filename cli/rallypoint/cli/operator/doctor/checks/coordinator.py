"""The coordinator itself: whether it is one, its version, its clock, and whom it takes us for."""

from __future__ import annotations

from rallypoint.cli.operator.doctor import durations
from rallypoint.cli.operator.doctor.facts import About, Caller, Refusal, Software, Wish
from rallypoint.cli.operator.doctor.findings import Finding, ok, problem, warning

SERVICE, TOKEN, VERSION, CLOCK = "coordinator", "token", "version", "clock"
CLOCK_OFF_S = 5.0
"""Beyond it, times in the logs of two hosts cannot be compared."""
CLOCK_WRONG_S = 300.0
"""Beyond it, new certificates and tokens count as not yet valid, or as over."""
TOKEN_ENDS_SOON_S = 7 * 86_400.0
_OTHERS = 0o077
_NEW_TOKEN = "the coordinator's operator makes another: rallypoint token new --name NAME"


def check_about(about: About) -> list[Finding]:
    """Judge the state of a coordinator that answers."""
    if about.unserved_shards:
        text = f"{about.unserved_shards} shards have no owner: calls about their jobs wait"
        advice = "start more coordinators on the same store, or look at the logs of those there are"
        return [warning(SERVICE, text, advice)]
    if about.is_reattaching:
        text = "it has just started, and waits for agents whose rounds already run"
        return [warning(SERVICE, text, "wait a few seconds, then call again")]
    kept = "keeps a journal" if about.is_durable else "keeps nothing when it ends"
    who = "it is a relay; the coordinator behind it" if about.is_relayed else "it"
    return [ok(SERVICE, f"{who} answers, and {kept}")]


def check_refusal(refusal: Refusal, wish: Wish) -> list[Finding]:
    """Judge why a coordinator did not answer."""
    source = wish.token_source or "this token"
    match refusal.reason or refusal.status:
        case "ACCESS_TOKEN_MISSING":
            text = "the coordinator asks for a token, and there is none here"
            advice = (
                "add --token-file FILE; the operator makes one: rallypoint token new --name NAME"
            )
            return [problem(TOKEN, text, advice)]
        case "ACCESS_TOKEN_INVALID":
            text = f"the coordinator does not know the token of {source}"
            advice = f"check that it is for this coordinator; {_NEW_TOKEN}"
            return [problem(TOKEN, text, advice)]
        case "ACCESS_TOKEN_EXPIRED":
            text = f"the token of {source} is over"
            return [problem(TOKEN, text, _NEW_TOKEN)]
        case "ROLE_NOT_ALLOWED" | "JOB_NOT_ALLOWED" | "PERMISSION_DENIED" | "UNAUTHENTICATED":
            return [
                problem(TOKEN, f"the coordinator refuses the token: {refusal.text}", _NEW_TOKEN)
            ]
        case "UNIMPLEMENTED":
            text = "what listens speaks gRPC, but is no coordinator, or a much older one"
            advice = "check the port of the coordinator: its log begins with it"
            return [problem(SERVICE, text, advice)]
        case "UNAVAILABLE" | "DEADLINE_EXCEEDED":
            text = f"no answer: {refusal.text}"
            if refusal.is_relayed:
                advice = "it is a relay: run doctor on its host, for the coordinator behind it"
                return [problem(SERVICE, text, advice)]
            advice = "look at the log of the coordinator; if it stands still, start it again"
            return [problem(SERVICE, text, advice)]
        case _:
            text = f"it fails with {refusal.status}: {refusal.text}"
            return [problem(SERVICE, text, "look at the log of the coordinator")]


def check_caller(about: About, wish: Wish, *, is_exposed: bool) -> list[Finding]:
    """Judge whom the coordinator takes this side for, and how the token is kept.

    Args:
        about: what the coordinator says.
        wish: how this side connects.
        is_exposed: other hosts may reach the coordinator too.
    """
    findings = list(check_token_file(wish))
    if not about.is_protected:
        text = "the coordinator asks for none: anyone who reaches it can change jobs"
        if not is_exposed:
            return [*findings, ok(TOKEN, "the coordinator asks for none, on this host alone")]
        advice = "start it with --auth FILE, or let only the nodes reach its port: docs/security.md"
        return [*findings, warning(TOKEN, text, advice)]
    if about.caller is None:
        return [*findings, ok(TOKEN, "the coordinator accepts it")]
    return [*findings, _judge_caller(about.caller)]


def _judge_caller(caller: Caller) -> Finding:
    jobs = f", for the jobs {', '.join(caller.jobs)}" if caller.jobs else ""
    text = f"the coordinator knows you by {caller.by} as {caller.name!r}: {caller.role}{jobs}"
    if caller.ends_in_s is not None:
        text += f"; ends in {durations.describe(max(caller.ends_in_s, 0.0))}"
        if caller.ends_in_s < TOKEN_ENDS_SOON_S:
            return warning(TOKEN, text, _NEW_TOKEN)
    return ok(TOKEN, text)


def check_token_file(wish: Wish) -> list[Finding]:
    """Judge who may read the token of this side."""
    if wish.token_mode & _OTHERS:
        text = f"others may read {wish.token_source} (mode {wish.token_mode & 0o777:04o})"
        return [warning(TOKEN, text, f"keep it to yourself: chmod 600 {wish.token_source}")]
    return []


def check_version(about: About, here: Software) -> list[Finding]:
    """Judge whether both sides understand each other."""
    libraries = f"Python {here.python}, gRPC {here.grpc}"
    text = f"{here.rallypoint} here, {about.version} there"
    if about.protocol_max < here.protocol_min:
        advice = "upgrade the coordinator first, then agents and clients"
        return [problem(VERSION, f"{text}: the coordinator is too old", advice)]
    if about.protocol_min > here.protocol_max:
        advice = f"upgrade here: pip install rallypoint=={about.version}"
        return [problem(VERSION, f"{text}: this host is too old", advice)]
    same = "both sides" if about.version == here.rallypoint else "which understand each other"
    shown = here.rallypoint if about.version == here.rallypoint else text
    return [ok(VERSION, f"{shown}, {same}; {libraries}")]


def check_clock(about: About) -> list[Finding]:
    """Judge how far the clocks of both hosts differ. Sessions and leases do not depend on it."""
    off_s = max(abs(about.clock_ahead_s) - about.clock_error_s, 0.0)
    if off_s <= CLOCK_OFF_S:
        return [ok(CLOCK, f"both hosts agree within {durations.describe(CLOCK_OFF_S)}")]
    direction = "ahead of" if about.clock_ahead_s > 0 else "behind"
    text = f"the coordinator's clock is {durations.describe(off_s)} {direction} the one here"
    advice = "synchronize both hosts with NTP, then start the coordinator again: chronyc tracking"
    if off_s > CLOCK_WRONG_S:
        return [problem(CLOCK, f"{text}: certificates and tokens may fail", advice)]
    return [warning(CLOCK, f"{text}: times in logs do not match", advice)]
