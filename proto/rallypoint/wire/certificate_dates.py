"""Warns of a certificate that others refuse for its dates, or soon will."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from rallypoint.base.log import get_logger
from rallypoint.wire.certificates import Life, judge_life, read_pem
from rallypoint.wire.credentials import Credentials

log = get_logger()

_RENEW = "others refuse it after its end: renew it"
_SET_CLOCK = "others refuse it before: check the clock of this host"


class CertificateDates:
    """The dates of a certificate, as they were when last looked at."""

    def __init__(self, credentials: Credentials) -> None:
        """Begin without a look; the certificate of `credentials` may be renewed."""
        self._credentials = credentials
        self._life = Life.VALID

    def look(self) -> None:
        """Log that the certificate is not valid, or ends soon, if the log does not have it."""
        try:
            one = read_pem(self._credentials.chain.decode("ascii", "replace"))
        except ValueError:
            return  # there is none, or it has a form that OpenSSL alone knows
        life, before = judge_life(one, time.time_ns() / 1e9), self._life
        self._life = life
        if life is before:
            return
        path = self._credentials.access.cert_file
        valid = f"{_show(one.begins_s)} to {_show(one.ends_s)}"
        match life:
            case Life.EXPIRED:
                log.warning("certificate_expired", path=path, valid=valid, then=_RENEW)
            case Life.NOT_BEGUN:
                log.warning("certificate_not_begun", path=path, valid=valid, then=_SET_CLOCK)
            case Life.ENDS_SOON:
                log.warning("certificate_nearly_expired", path=path, valid=valid, then=_RENEW)
            case Life.VALID:
                pass


def _show(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"
