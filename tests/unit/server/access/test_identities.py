"""Who has made a forwarded call is signed for that call alone."""

from __future__ import annotations

import base64

import pytest

from rallypoint.server.access.caller import Caller, Proof
from rallypoint.server.access.identities import VALID_MS, Identities
from rallypoint.wire.access import Role

GET, DELETE = "/rallypoint.v1.JobService/GetJob", "/rallypoint.v1.JobService/DeleteJob"
ANN = Caller("ann", (Role.OPERATOR, Role.VIEWER), Proof.TOKEN, ("a*", "b*"), 5)
PEER = "ipv4:10.0.0.1:1"


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def made(secret: bytes = b"secret") -> tuple[Identities, Clock]:
    clock = Clock()
    identities = Identities(clock)
    if secret:
        identities.use(secret)
    return identities, clock


def sign(identities: Identities, job_id: str = "a[1]*") -> str:
    return identities.sign(ANN, method=GET, shard="3", job_id=job_id, peer=PEER)


@pytest.mark.parametrize("apart_ms", [0, VALID_MS, -VALID_MS])
def test_signed_caller_is_read(apart_ms: int) -> None:
    """By another coordinator of the store, whose clock differs; for the job of the call alone."""
    mine, _ = made()
    other, clock = made()
    clock.now_ms += apart_ms
    read = other.verify(sign(mine), method=GET, shard="3")

    assert read is not None
    caller, peer = read
    assert ("ann", ANN.roles, Proof.TOKEN, PEER) == (caller.name, caller.roles, caller.proof, peer)
    assert [True, False, False] == [caller.may_touch(job) for job in ("a[1]*", "a1b", "")]


def test_call_about_all_jobs_stays_one() -> None:
    """Who may make it was checked where the call came in."""
    mine, _ = made()
    read = mine.verify(sign(mine, ""), method=GET, shard="3")

    assert read is not None
    assert read[0].may_touch("")


@pytest.mark.parametrize("what", ["method", "shard", "old", "early", "secret", "none"])
def test_other_call_is_refused(what: str) -> None:
    """Another method or shard, too old, from the future, of another store, or before it is open."""
    mine, _ = made()
    secrets = {"secret": b"other", "none": b""}
    other, clock = made(secrets.get(what, b"secret"))
    clock.now_ms += {"old": VALID_MS + 1, "early": -VALID_MS - 1}.get(what, 0)
    method, shard = (DELETE if what == "method" else GET), ("2" if what == "shard" else "3")

    assert other.verify(sign(mine), method=method, shard=shard) is None


@pytest.mark.parametrize("text", ["", ".", "x", "x.y", "ä.ö", "e30=.00"])
def test_other_text_is_refused(text: str) -> None:
    """Whatever a client may send."""
    mine, _ = made()

    assert mine.verify(text, method=GET, shard="3") is None


def test_changed_text_is_refused() -> None:
    """Any part of it."""
    mine, _ = made()
    text, _, digest = sign(mine).rpartition(".")
    changed = base64.urlsafe_b64decode(text).replace(b"ann", b"bob")
    forged = f"{base64.urlsafe_b64encode(changed).decode()}.{digest}"

    assert mine.verify(forged, method=GET, shard="3") is None
    assert mine.verify(f"{text}.{'0' * 64}", method=GET, shard="3") is None
