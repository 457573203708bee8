"""What can go wrong between a coordinator and etcd: one class for each thing to do about it.

etcd answers with a status of gRPC and a text. The code alone does not say what has happened:
RESOURCE_EXHAUSTED is a full database, a message that is too large, or too many requests. So the
table below looks at the texts of etcd 3.4 and 3.5, which tests compare with a real server.
"""

from __future__ import annotations

from typing import ClassVar

import grpc


class EtcdError(Exception):
    """etcd did not do what was asked. The text is one line that says what to do."""

    is_repeated: ClassVar[bool] = False
    """Whether another endpoint, or the same one later, may answer."""


class EtcdUnreachable(EtcdError):
    """No endpoint answers."""

    is_repeated = True


class EtcdTimedOut(EtcdUnreachable):
    """No answer came in time: what was asked may happen, now or later."""


class EtcdLeaderLost(EtcdUnreachable):
    """The cluster has no leader: it elects one, or most members are gone."""


class EtcdOutOfSpace(EtcdError):
    """The database has reached its quota: etcd answers reads, and takes no change."""


class EtcdRefusedUser(EtcdError):
    """User, password or permission are wrong."""


class EtcdTokenExpired(EtcdError):
    """The token of the user is no longer valid; a new one is."""


class EtcdTooLarge(EtcdError):
    """The request is larger than etcd takes."""


class EtcdCompacted(EtcdError):
    """The revision that was asked for has been compacted away."""


class EtcdLeaseGone(EtcdError):
    """The lease has ended, or never began."""


class EtcdOtherCluster(EtcdError):
    """An endpoint belongs to another cluster than the one before."""


class EtcdOtherStore(EtcdError):
    """The store is not the one that was opened."""


OUT_OF_SPACE = (
    "etcd is out of space: compact and defragment it, then run `etcdctl alarm disarm`,"
    " or raise its quota"
)
CORRUPT = "etcd reports a corrupt member: replace it, then disarm the alarm"
TOO_LARGE = "a request is too large for etcd: its --max-request-bytes must be at least 1.5 MiB"
_TEXTS: tuple[tuple[str, type[EtcdError], str], ...] = (
    ("database space exceeded", EtcdOutOfSpace, OUT_OF_SPACE),
    ("invalid auth token", EtcdTokenExpired, "the token for etcd has expired"),
    ("auth store is old", EtcdTokenExpired, "the users of etcd have changed"),
    ("user name is empty", EtcdTokenExpired, "etcd asks for a user: name one with ?user="),
    (
        "authentication failed",
        EtcdRefusedUser,
        "etcd refuses user or password: correct ?user= and the file of the password",
    ),
    (
        "authentication is not enabled",
        EtcdRefusedUser,
        "etcd has no users: leave ?user= out, or enable authentication",
    ),
    (
        "permission denied",
        EtcdRefusedUser,
        "etcd grants the user too little: it needs to read and write the whole prefix",
    ),
    ("request is too large", EtcdTooLarge, TOO_LARGE),
    ("larger than max", EtcdTooLarge, TOO_LARGE),
    (
        "too many operations",
        EtcdTooLarge,
        "a transaction is too long for etcd: its --max-txn-ops must be at least 128",
    ),
    ("revision has been compacted", EtcdCompacted, "etcd has compacted this revision away"),
    ("lease not found", EtcdLeaseGone, "the lease has ended"),
    ("no leader", EtcdLeaderLost, "etcd has no leader: start its members, more than half of them"),
    ("leader changed", EtcdLeaderLost, "etcd has changed its leader"),
    ("not leader", EtcdLeaderLost, "etcd has changed its leader"),
    ("corrupt cluster", EtcdError, CORRUPT),
)
NO_ANSWER = "etcd did not answer in time: see that more than half of its members run"
_LATE = ("timed out", "deadline exceeded")
_REPEATED = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.ABORTED,
}


def to_error(code: grpc.StatusCode, details: str, endpoint: str) -> EtcdError:
    """Return the error for the status with which a call to `endpoint` ended."""
    for text, kind, line in _TEXTS:
        if text in details:
            return kind(line)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED or any(text in details for text in _LATE):
        return EtcdTimedOut(NO_ANSWER)
    if "too many requests" in details:
        return EtcdTimedOut("etcd is overloaded: give it faster disks, or fewer clients")
    first = (details.splitlines() or [""])[0]
    if "handshake failed" in details:
        return EtcdUnreachable(
            f"etcd at {endpoint} and this client do not trust each other: check ca=, cert= and key="
        )
    if code in _REPEATED and ("failed to connect" in details or "onnection" in details):
        return EtcdUnreachable(
            f"etcd at {endpoint} cannot be reached: see that its members run, and check its address"
        )
    if code in _REPEATED:
        return EtcdUnreachable(f"etcd at {endpoint} cannot be reached: {first or code.name}")
    return EtcdError(f"etcd at {endpoint} answers {code.name}: {first}")
