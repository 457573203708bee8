"""TLS: whether both sides mean it, whether the certificates are good, and for how long."""

from __future__ import annotations

from rallypoint.cli.operator.doctor import durations
from rallypoint.cli.operator.doctor.facts import (
    Handshake,
    Speech,
    Trust,
    Wish,
)
from rallypoint.cli.operator.doctor.findings import Finding, ok, problem, warning
from rallypoint.wire.certificates import Certificate, Life, judge_life

TLS, OWN_CERTIFICATE, TOKEN = "TLS", "own certificate", "token"
NAMES_SHOWN_MAX = 4
_RENEW = "renew it: rallypoint certs issue NAME --renew, or what has issued it"


def check_agreement(wish: Wish, speech: Speech) -> list[Finding]:
    """Judge whether both sides speak TLS, or both do not.

    Returns:
        A finding when they differ, or when neither does; empty when a handshake can show more.
    """
    if wish.is_tls and speech is Speech.HTTP2:
        text = "TLS is on here, and the coordinator speaks without"
        advice = (
            "leave out --tls and its files, or start the coordinator with --tls-cert, --tls-key"
        )
        return [problem(TLS, text, advice)]
    if not wish.is_tls and speech is Speech.TLS:
        text = "the coordinator speaks TLS, and TLS is off here"
        advice = (
            "add --tls-ca FILE with the authority of its certificate, or --tls for the system's"
        )
        return [problem(TLS, text, advice)]
    if not wish.is_tls:
        return [ok(TLS, "off on both sides: the network is not encrypted")]
    return []


def check_handshake(wish: Wish, host: str, shake: Handshake, now_s: float) -> list[Finding]:
    """Judge a handshake.

    Args:
        wish: how this side connects.
        host: as the user gave it.
        shake: how it went.
        now_s: Unix time.
    """
    expected = wish.server_name or host
    issuer = (shake.certificate.issuer if shake.certificate else "") or "an unnamed authority"
    match shake.trust:
        case Trust.TRUSTED:
            return [_judge_life(TLS, shake.certificate, now_s, "the coordinator's certificate")]
        case Trust.UNKNOWN_AUTHORITY:
            text = f"the coordinator's certificate is from {issuer!r}, which is not trusted here"
            known = f"in {wish.ca_file}" if wish.ca_file else "among those of the system"
            advice = f"put the authority that signed it {known}, or name its file with --tls-ca"
            return [problem(TLS, text, advice)]
        case Trust.WRONG_NAME:
            names = _show_names(shake.certificate)
            text = f"the coordinator's certificate is for {names}, not for {expected!r}"
            issue = f"rallypoint certs issue NAME --host {expected}"
            advice = f"use a name that it has, or issue one: {issue}"
            return [problem(TLS, text, advice)]
        case Trust.EXPIRED:
            text = f"the coordinator's certificate ended {_since(shake.certificate, now_s)}"
            advice = (
                "renew it on the coordinator's host, which reads new files by itself; check clocks"
            )
            return [problem(TLS, text, advice)]
        case Trust.NOT_YET_VALID:
            text = "the coordinator's certificate is not valid yet by the clock of this host"
            return [problem(TLS, text, "check the clocks of both hosts: date; chronyc tracking")]
        case Trust.CLIENT_REFUSED:
            return [_refused_client(wish, shake)]
        case _:
            text = f"the TLS handshake fails: {shake.error}"
            advice = (
                "check --tls-ca, --tls-cert and --tls-server-name here, and the coordinator's log"
            )
            return [problem(TLS, text, advice)]


def check_own(wish: Wish, now_s: float) -> list[Finding]:
    """Judge the files of this side."""
    if wish.error:
        check, path = _find_culprit(wish)
        return [problem(check, wish.error, f"check the path and who may read it: ls -l {path}")]
    if wish.certificate is None:
        return []
    name = wish.certificate.subject or wish.cert_file
    return [_judge_life(OWN_CERTIFICATE, wish.certificate, now_s, f"the certificate {name!r}")]


def _find_culprit(wish: Wish) -> tuple[str, str]:
    """Return the check to which an unusable file belongs, and its path."""
    if wish.token_source and wish.token_source in wish.error:
        return TOKEN, wish.token_source
    if wish.ca_file and wish.ca_file in wish.error:
        return TLS, wish.ca_file
    is_key = wish.key_file and wish.key_file in wish.error
    return OWN_CERTIFICATE, (wish.key_file if is_key else wish.cert_file) or "FILE"


def _refused_client(wish: Wish, shake: Handshake) -> Finding:
    if not wish.cert_file:
        text = "the coordinator wants a certificate of this side, and it shows none"
        return problem(
            TLS,
            text,
            "add --tls-cert FILE and --tls-key FILE; rallypoint certs issue NAME makes them",
        )
    text = f"the coordinator does not accept the certificate {wish.cert_file}: {shake.error}"
    advice = "use one of the authority in the coordinator's --tls-client-ca, which has not ended"
    return problem(TLS, text, advice)


def _judge_life(check: str, one: Certificate | None, now_s: float, what: str) -> Finding:
    """Judge how long a certificate is still valid."""
    if one is None:
        return ok(check, "the handshake succeeds")
    life = judge_life(one, now_s)
    if life is Life.EXPIRED:
        return problem(check, f"{what} ended {_since(one, now_s)}", _RENEW)
    if life is Life.NOT_BEGUN:
        advice = "check the clocks of both hosts: date; chronyc tracking"
        return problem(check, f"{what} is not valid yet by the clock of this host", advice)
    text = f"{what} is valid for {durations.describe(one.ends_s - now_s)} more"
    return warning(check, text, _RENEW) if life is Life.ENDS_SOON else ok(check, text)


def _since(one: Certificate | None, now_s: float) -> str:
    if one is None or one.ends_s > now_s:
        return "before now"
    return f"{durations.describe(now_s - one.ends_s)} ago"


def _show_names(one: Certificate | None) -> str:
    names = (one.names or (one.subject,)) if one else ()
    shown = ", ".join(repr(name) for name in names[:NAMES_SHOWN_MAX] if name)
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f"{shown}{more}" or "no name"
