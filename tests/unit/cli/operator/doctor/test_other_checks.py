"""What `doctor` says about TLS, the coordinator and this host."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import pytest

from rallypoint.base.limits import PROTOCOL_VERSION
from rallypoint.base.needs import Need
from rallypoint.cli.operator.doctor.coordinator import (
    Answer,
    check_about,
    check_caller,
    check_clock,
    check_refusal,
    check_version,
)
from rallypoint.cli.operator.doctor.encryption import (
    Handshake,
    check_agreement,
    check_handshake,
    check_own,
)
from rallypoint.cli.operator.doctor.findings import Finding, Level
from rallypoint.cli.operator.doctor.machine import (
    check_files,
    check_folder,
    check_kernel,
    check_ports,
    check_processes,
    check_shared_memory,
    read_shared_memory,
)
from rallypoint.cli.operator.reaching import Speech
from rallypoint.client.failures import Failure
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.wire.access import PLAIN, Access
from rallypoint.wire.certificates import Certificate
from rallypoint.wire.errors import Details
from rallypoint.wire.handshakes import Fault
from support.access.authority import Authority

DAY_S = 86_400.0
NOW_S = 1_800_000_000.0
OVER_TLS = Access(is_tls=True, ca_file="ca.pem")
GIBIBYTE = 1 << 30


def certificate(days_left: float = 90.0) -> Certificate:
    names = ("head", "10.0.0.1")
    return Certificate("head", "our CA", names, NOW_S - DAY_S, NOW_S + days_left * DAY_S)


def judged(*findings: Finding) -> list[tuple[Level, str]]:
    """Return level and text; advice is there exactly when something is wrong."""
    for one in findings:
        assert bool(one.advice) is (one.level is not Level.OK), one
    return [(one.level, one.text) for one in findings]


@pytest.mark.parametrize(
    ("access", "speech", "expected"),
    [
        (PLAIN, Speech.HTTP2, (Level.OK, "off on both sides: the network is not encrypted")),
        (
            OVER_TLS,
            Speech.HTTP2,
            (Level.PROBLEM, "TLS is on here, and the coordinator speaks without"),
        ),
        (PLAIN, Speech.TLS, (Level.PROBLEM, "the coordinator speaks TLS, and TLS is off here")),
    ],
)
def test_both_sides_must_mean_tls(access: Access, speech: Speech, expected: object) -> None:
    """With TLS on both sides the handshake shows more."""
    assert judged(*check_agreement(access, speech)) == [expected]
    assert check_agreement(OVER_TLS, Speech.TLS) == []


@pytest.mark.parametrize(
    ("shake", "expected"),
    [
        (
            Handshake(None, certificate()),
            (Level.OK, "the coordinator's certificate is valid for 90 days more"),
        ),
        (
            Handshake(None, certificate(3)),
            (Level.WARNING, "the coordinator's certificate is valid for 3 days more"),
        ),
        (
            Handshake(Fault.AUTHORITY, certificate()),
            (
                Level.PROBLEM,
                "the coordinator's certificate is from 'our CA', which is not trusted here",
            ),
        ),
        (
            Handshake(Fault.WRONG_NAME, certificate()),
            (
                Level.PROBLEM,
                "the coordinator's certificate is for 'head', '10.0.0.1', not for 'localhost'",
            ),
        ),
        (
            Handshake(Fault.EXPIRED, certificate(-2)),
            (Level.PROBLEM, "the coordinator's certificate ended 2 days ago"),
        ),
        (
            Handshake(Fault.NOT_YET, certificate()),
            (
                Level.PROBLEM,
                "the coordinator's certificate is not valid yet by the clock of this host",
            ),
        ),
        (
            Handshake(Fault.CLIENT_WANTED, certificate()),
            (
                Level.PROBLEM,
                "the coordinator wants a certificate of this side, and it shows none",
            ),
        ),
        (
            Handshake(Fault.OTHER, error="unsupported protocol"),
            (Level.PROBLEM, "the TLS handshake fails: unsupported protocol"),
        ),
    ],
)
def test_every_end_of_a_handshake_is_explained(shake: Handshake, expected: object) -> None:
    """With the names and dates of the certificate."""
    assert judged(check_handshake(OVER_TLS, "localhost", shake, NOW_S)) == [expected]


def test_a_certificate_of_this_side_is_judged(tmp_path: Path) -> None:
    """How long it is valid, and whether the coordinator accepts it."""
    pair = Authority(tmp_path).issue("ops", days=-1)
    access = Access(cert_file=pair.cert, key_file=pair.key)
    refused = Handshake(Fault.CLIENT_WANTED, error="unknown ca")

    assert check_own(Access(is_tls=True), NOW_S) == []
    (ended,) = judged(*check_own(access, NOW_S))
    assert ended[0] is Level.PROBLEM
    assert ended[1].startswith("the certificate 'ops' ended ")
    assert judged(check_handshake(access, "head", refused, NOW_S)) == [
        (
            Level.PROBLEM,
            f"the coordinator does not accept the certificate {pair.cert}: unknown ca",
        )
    ]


def about(
    ahead_s: float = 0.0,
    protocol: tuple[int, int] = (PROTOCOL_VERSION, PROTOCOL_VERSION),
    caller: coordinator_pb2.Caller | None = None,
    *,
    is_relayed: bool = False,
    **more: Any,
) -> Answer:
    """Return the answer of a coordinator to a call that has taken a second."""
    one = coordinator_pb2.Coordinator(
        version="0.0.9",
        min_protocol_version=protocol[0],
        protocol_version=protocol[1],
        **{"durable": True, **more},
    )
    one.uptime.FromMilliseconds(int((NOW_S + ahead_s) * 1000))
    one.started_at.FromMilliseconds(0)
    got = coordinator_pb2.GetCoordinatorResponse(coordinator=one, caller=caller)
    return Answer(got, NOW_S - 0.5, NOW_S + 0.5, is_relayed)


@pytest.mark.parametrize(
    ("ahead_s", "expected"),
    [
        (5.0, (Level.OK, "both hosts agree within 5 seconds")),
        (-5.4, (Level.OK, "both hosts agree within 5 seconds")),
        (
            60.5,
            (
                Level.WARNING,
                "the coordinator's clock is 1 minute ahead of the one here: times in logs do not "
                "match",
            ),
        ),
        (
            -7200.5,
            (
                Level.PROBLEM,
                "the coordinator's clock is 2 hours behind the one here: certificates and tokens "
                "may fail",
            ),
        ),
    ],
)
def test_clocks_may_differ_by_seconds(ahead_s: float, expected: object) -> None:
    """The time of the call is not held against a clock."""
    assert judged(check_clock(about(ahead_s))) == [expected]


@pytest.mark.parametrize(
    ("newer", "level", "text"),
    [
        (-1, Level.PROBLEM, "{} here, 0.0.9 there: the coordinator is too old"),
        (1, Level.PROBLEM, "{} here, 0.0.9 there: this host is too old"),
        (0, Level.OK, "{} here, 0.0.9 there, which understand each other; Python "),
    ],
)
def test_versions_need_a_protocol_in_common(newer: int, level: Level, text: str) -> None:
    """The side that is too old is named."""
    theirs = max(PROTOCOL_VERSION + 100 * newer, 0)
    ((found, shown),) = judged(check_version(about(protocol=(theirs, theirs))))

    assert found is level
    assert shown.startswith(text.format(version("rallypoint")))


@pytest.mark.parametrize(
    ("reason", "status", "text"),
    [
        (
            "ACCESS_TOKEN_MISSING",
            "UNAUTHENTICATED",
            "the coordinator asks for a token, and there is none here",
        ),
        (
            "ACCESS_TOKEN_INVALID",
            "UNAUTHENTICATED",
            "the coordinator does not know the token of a.token",
        ),
        ("ACCESS_TOKEN_EXPIRED", "UNAUTHENTICATED", "the token of a.token is over"),
        ("", "PERMISSION_DENIED", "the coordinator refuses the token: why"),
        (
            "",
            "UNIMPLEMENTED",
            "what listens speaks gRPC, but is not a coordinator, or a much older one",
        ),
        ("", "UNAVAILABLE", "no answer: why"),
        ("INTERNAL", "INTERNAL", "it fails with INTERNAL: why"),
    ],
)
def test_every_refusal_is_explained(reason: str, status: str, text: str) -> None:
    """By its constant, else by the status."""
    failure = Failure(grpc.StatusCode[status], "why", Details(reason=reason))

    assert judged(check_refusal(failure, Access(token_file="a.token"))) == [(Level.PROBLEM, text)]


def test_the_caller_is_shown_with_role_and_jobs() -> None:
    """And a token that ends soon is a warning."""
    agent, operator = coordinator_pb2.ACCESS_ROLE_AGENT, coordinator_pb2.ACCESS_ROLE_OPERATOR
    ours = coordinator_pb2.Caller(
        name="training",
        roles=[agent],
        proof=coordinator_pb2.CALLER_PROOF_ACCESS_TOKEN,
        jobs=["train-*"],
    )
    ending = coordinator_pb2.Caller(
        name="ops", roles=[operator], proof=coordinator_pb2.CALLER_PROOF_ACCESS_TOKEN
    )
    ending.expires_at.FromSeconds(int(NOW_S + 2.1 * DAY_S))

    assert judged(*check_caller(about(caller=ours), PLAIN, is_exposed=True)) == [
        (
            Level.OK,
            "the coordinator knows you by access token as 'training': agent, for the jobs train-*",
        )
    ]
    assert judged(*check_caller(about(caller=ending), PLAIN, is_exposed=True)) == [
        (
            Level.WARNING,
            "the coordinator knows you by access token as 'ops': operator; ends in 2.1 days",
        )
    ]


def test_a_coordinator_without_tokens_is_a_warning_beyond_its_host(tmp_path: Path) -> None:
    """And so is a token that others can read."""
    token = tmp_path / "a.token"
    token.touch(0o644)
    token.chmod(0o644)
    readable = Access(token_file=str(token))

    assert judged(*check_caller(about(), PLAIN, is_exposed=False)) == [
        (Level.OK, "the coordinator asks for none, on this host alone")
    ]
    assert judged(*check_caller(about(), readable, is_exposed=True)) == [
        (Level.WARNING, f"others may read {token} (mode 0644)"),
        (
            Level.WARNING,
            "the coordinator asks for none: anyone who reaches it can change jobs",
        ),
    ]


def test_a_coordinator_that_is_not_ready_is_a_warning() -> None:
    """It has just started, or shards have no owner."""
    shards = [coordinator_pb2.Shard(served=number == 0) for number in range(4)]

    assert judged(check_about(about())) == [(Level.OK, "it answers, and keeps a journal")]
    assert judged(check_about(about(is_relayed=True))) == [
        (Level.OK, "it is a relay; the coordinator behind it answers, and keeps a journal")
    ]
    assert judged(check_about(about(reattaching=True))) == [
        (Level.WARNING, "it has just started, and waits for agents whose rounds already run")
    ]
    assert judged(check_about(about(shards=shards))) == [
        (Level.WARNING, "3 shards have no owner: calls about their jobs wait")
    ]


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (65_536, 65_536, (Level.OK, "a process may open 65,536")),
        (128, 4_096, (Level.WARNING, "a process may open 128: data loaders may need more")),
        (128, -1, (Level.WARNING, "a process may open 128: data loaders may need more")),
        (
            128,
            128,
            (Level.PROBLEM, "a process may open 128: too few for an agent and its workers"),
        ),
        (-1, -1, (Level.OK, "no limit")),
    ],
)
def test_open_files_are_judged(soft: int, hard: int, expected: object) -> None:
    """An agent raises its own limit as far as it may."""
    assert judged(check_files(soft, hard)) == [expected]


def test_shared_memory_is_judged(tmp_path: Path) -> None:
    """What workers cannot do without is a problem, what some need is a warning."""
    found = [
        check_shared_memory(16 * GIBIBYTE, 15 * GIBIBYTE),
        check_shared_memory(64 << 20, 64 << 20),
        check_shared_memory(16 * GIBIBYTE, 1 << 20),
        check_shared_memory(*read_shared_memory(tmp_path / "none")),
        check_shared_memory(-1),
    ]

    assert judged(*found) == [
        (Level.OK, "/dev/shm has 15 GiB free of 16 GiB"),
        (Level.WARNING, "/dev/shm has 64 MiB free of 64 MiB"),
        (Level.WARNING, "/dev/shm has 1 MiB free of 16 GiB"),
        (Level.PROBLEM, "there is no /dev/shm: data loaders and NCCL fail without it"),
        (Level.PROBLEM, "/dev/shm cannot be written: data loaders and NCCL fail without it"),
    ]


def test_ports_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many the kernel may choose, and whether one can be opened."""
    ports = tmp_path / "ports"
    found = [check_ports(ports)]
    for text in ("32768\t60999\n", "60000\t60099\n"):
        ports.write_text(text)
        found.append(check_ports(ports))

    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("socket.create_server", fail)

    assert judged(*found, check_ports(ports)) == [
        (Level.OK, "a free port can be opened"),
        (Level.OK, "28,232 for connections (32768 to 60999)"),
        (Level.WARNING, "100 for connections (60000 to 60099)"),
        (Level.PROBLEM, "no free port can be opened: Too many open files"),
    ]


def test_needs_of_an_agent_are_judged() -> None:
    """What it does without is no problem."""
    needs = (
        Need("/proc"),
        Need("prctl", "prctl cannot be used here", "allow it"),
        Need("pidfds", "pidfds cannot be used here", "allow them", "processes are watched"),
    )

    assert judged(*check_kernel(needs)) == [
        (Level.OK, "agents can use /proc"),
        (Level.PROBLEM, "prctl cannot be used here"),
        (Level.OK, "pidfds cannot be used here; processes are watched"),
    ]


def test_processes_are_judged_with_the_advice_of_the_probe() -> None:
    """It knows whether a limit or a profile is the reason."""
    few = check_processes(11, "allow clone3")

    assert few.advice == "allow clone3"
    assert judged(few, check_processes(15, "")) == [
        (
            Level.PROBLEM,
            "only 11 more processes and threads can start; an agent with one worker needs about 15",
        ),
        (Level.OK, "an agent can start its processes and threads"),
    ]


def test_folder_for_temporary_files_is_needed() -> None:
    """A read-only container may have none."""
    found = check_folder("none can be written: set TMPDIR")

    assert (found.text, found.advice) == ("none can be written", "set TMPDIR")


def test_the_advice_names_a_limit_that_is_allowed() -> None:
    """A process cannot raise its limit above the hard one."""
    assert check_files(512, 4_096).advice.endswith("ulimit -n 4096")
    assert check_files(512, 512).advice.endswith("the limit of the service, or limits.conf")
