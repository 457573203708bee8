"""What `doctor` says about TLS, the coordinator and this host."""

from __future__ import annotations

import pytest

from rallypoint.base.needs import Need
from rallypoint.cli.operator.doctor.checks.coordinator import (
    check_about,
    check_caller,
    check_clock,
    check_refusal,
    check_version,
)
from rallypoint.cli.operator.doctor.checks.encryption import (
    check_agreement,
    check_handshake,
    check_own,
)
from rallypoint.cli.operator.doctor.checks.machine import check_machine
from rallypoint.cli.operator.doctor.facts import (
    About,
    Caller,
    Handshake,
    Machine,
    Refusal,
    Software,
    Speech,
    Trust,
    Wish,
)
from rallypoint.cli.operator.doctor.findings import Finding, Level, problem
from rallypoint.wire.certificates import Certificate

DAY_S = 86_400.0
NOW_S = 1_800_000_000.0
PLAIN = Wish()
OVER_TLS = Wish(is_tls=True, ca_file="ca.pem")
GIBIBYTE = 1 << 30


def certificate(days_left: float = 90.0) -> Certificate:
    names = ("head", "10.0.0.1")
    return Certificate("head", "our CA", names, NOW_S - DAY_S, NOW_S + days_left * DAY_S)


def judged(findings: list[Finding]) -> list[tuple[Level, str]]:
    """Return level and text; advice is there exactly when something is wrong."""
    for one in findings:
        assert bool(one.advice) is (one.level is not Level.OK), one
    return [(one.level, one.text) for one in findings]


@pytest.mark.parametrize(
    ("wish", "speech", "expected"),
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
def test_both_sides_must_mean_tls(wish: Wish, speech: Speech, expected: object) -> None:
    """With TLS on both sides the handshake shows more."""
    assert judged(check_agreement(wish, speech)) == [expected]
    assert check_agreement(OVER_TLS, Speech.TLS) == []


@pytest.mark.parametrize(
    ("shake", "expected"),
    [
        (
            Handshake(Trust.TRUSTED, certificate()),
            (Level.OK, "the coordinator's certificate is valid for 90 days more"),
        ),
        (
            Handshake(Trust.TRUSTED, certificate(3)),
            (Level.WARNING, "the coordinator's certificate is valid for 3 days more"),
        ),
        (
            Handshake(Trust.UNKNOWN_AUTHORITY, certificate()),
            (
                Level.PROBLEM,
                "the coordinator's certificate is from 'our CA', which is not trusted here",
            ),
        ),
        (
            Handshake(Trust.WRONG_NAME, certificate()),
            (
                Level.PROBLEM,
                "the coordinator's certificate is for 'head', '10.0.0.1', not for 'localhost'",
            ),
        ),
        (
            Handshake(Trust.EXPIRED, certificate(-2)),
            (Level.PROBLEM, "the coordinator's certificate ended 2 days ago"),
        ),
        (
            Handshake(Trust.NOT_YET_VALID, certificate()),
            (
                Level.PROBLEM,
                "the coordinator's certificate is not valid yet by the clock of this host",
            ),
        ),
        (
            Handshake(Trust.CLIENT_REFUSED, certificate()),
            (
                Level.PROBLEM,
                "the coordinator wants a certificate of this side, and it shows none",
            ),
        ),
        (
            Handshake(Trust.FAILED, error="unsupported protocol"),
            (Level.PROBLEM, "the TLS handshake fails: unsupported protocol"),
        ),
    ],
)
def test_every_end_of_a_handshake_is_explained(shake: Handshake, expected: object) -> None:
    """With the names and dates of the certificate."""
    assert judged(check_handshake(OVER_TLS, "localhost", shake, NOW_S)) == [expected]


def test_a_certificate_of_this_side_is_judged() -> None:
    """Its files, and how long it is valid."""
    shown = Wish(is_tls=True, cert_file="me.pem", certificate=certificate(-1))
    broken = Wish(is_tls=True, cert_file="me.pem", error="me.pem cannot be read: no such file")
    tokenless = Wish(
        is_tls=True, cert_file="me.pem", token_source="me.token", error="me.token is empty"
    )
    refused = Handshake(Trust.CLIENT_REFUSED, error="unknown ca")

    assert check_own(OVER_TLS, NOW_S) == []
    assert judged(check_own(shown, NOW_S)) == [
        (Level.PROBLEM, "the certificate 'head' ended 1 day ago")
    ]
    assert judged(check_own(broken, NOW_S)) == [(Level.PROBLEM, broken.error)]
    assert check_own(broken, NOW_S)[0].check == "own certificate"
    assert check_own(tokenless, NOW_S) == [
        problem("token", tokenless.error, "check the path and who may read it: ls -l me.token")
    ]
    assert judged(check_handshake(shown, "head", refused, NOW_S)) == [
        (Level.PROBLEM, "the coordinator does not accept the certificate me.pem: unknown ca")
    ]


def about(
    ahead_s: float = 0.0, protocol: tuple[int, int] = (1, 1), caller: Caller | None = None
) -> About:
    return About(
        version="0.1.0",
        protocol_min=protocol[0],
        protocol_max=protocol[1],
        clock_ahead_s=ahead_s,
        clock_error_s=0.5,
        is_protected=caller is not None,
        caller=caller,
    )


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


HERE = Software("0.2.0", 2, 3, "3.11.7", "1.76.0")


@pytest.mark.parametrize(
    ("protocol", "level", "text"),
    [
        ((1, 1), Level.PROBLEM, "0.2.0 here, 0.1.0 there: the coordinator is too old"),
        ((4, 5), Level.PROBLEM, "0.2.0 here, 0.1.0 there: this host is too old"),
        (
            (1, 2),
            Level.OK,
            "0.2.0 here, 0.1.0 there, which understand each other; Python 3.11.7, gRPC 1.76.0",
        ),
    ],
)
def test_versions_need_a_protocol_in_common(
    protocol: tuple[int, int], level: Level, text: str
) -> None:
    """The side that is too old is named."""
    assert judged(check_version(about(protocol=protocol), HERE)) == [(level, text)]


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
            "what listens speaks gRPC, but is no coordinator, or a much older one",
        ),
        ("", "UNAVAILABLE", "no answer: why"),
        ("INTERNAL", "INTERNAL", "it fails with INTERNAL: why"),
    ],
)
def test_every_refusal_is_explained(reason: str, status: str, text: str) -> None:
    """By its constant, else by the status."""
    wish = Wish(token_source="a.token")

    assert judged(check_refusal(Refusal(status, reason, "why"), wish)) == [(Level.PROBLEM, text)]


def test_the_caller_is_shown_with_role_and_jobs() -> None:
    """And a token that ends soon is a warning."""
    ours = Caller("training", "agent", "token", ("train-*",))
    ending = Caller("ops", "operator", "token", (), 2 * DAY_S)

    assert judged(check_caller(about(caller=ours), PLAIN, is_exposed=True)) == [
        (
            Level.OK,
            "the coordinator knows you by token as 'training': agent, for the jobs train-*",
        )
    ]
    assert judged(check_caller(about(caller=ending), PLAIN, is_exposed=True)) == [
        (
            Level.WARNING,
            "the coordinator knows you by token as 'ops': operator; ends in 2 days",
        )
    ]


def test_a_coordinator_without_tokens_is_a_warning_beyond_its_host() -> None:
    """And so is a token that others can read."""
    readable = Wish(token_source="a.token", token_mode=0o100644)

    assert judged(check_caller(about(), PLAIN, is_exposed=False)) == [
        (Level.OK, "the coordinator asks for none, on this host alone")
    ]
    assert judged(check_caller(about(), readable, is_exposed=True)) == [
        (Level.WARNING, "others may read a.token (mode 0644)"),
        (
            Level.WARNING,
            "the coordinator asks for none: anyone who reaches it can change jobs",
        ),
    ]


def test_a_coordinator_that_is_not_ready_is_a_warning() -> None:
    """It has just started, or shards have no owner."""
    starting = About("0.1.0", 1, 1, 0.0, 0.0, is_reattaching=True)
    partial = About("0.1.0", 1, 1, 0.0, 0.0, unserved_shards=3)

    assert judged(check_about(about())) == [(Level.OK, "it answers, and keeps a journal")]
    relayed = About("0.1.0", 1, 1, 0.0, 0.0, is_relayed=True)
    assert judged(check_about(relayed)) == [
        (Level.OK, "it is a relay; the coordinator behind it answers, and keeps a journal")
    ]
    assert judged(check_about(starting)) == [
        (Level.WARNING, "it has just started, and waits for agents whose rounds already run")
    ]
    assert judged(check_about(partial)) == [
        (Level.WARNING, "3 shards have no owner: calls about their jobs wait")
    ]


WELL = Machine(65_536, 65_536, 16 * GIBIBYTE, 15 * GIBIBYTE, True, 32_768, 60_999)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (
            WELL,
            [
                (Level.OK, "a process may open 65,536"),
                (Level.OK, "/dev/shm has 15 GiB free of 16 GiB"),
                (Level.OK, "28,232 for connections (32768 to 60999)"),
            ],
        ),
        (
            Machine(128, 4_096, 64 << 20, 64 << 20, True, 60_000, 60_099),
            [
                (Level.WARNING, "a process may open 128: data loaders may need more"),
                (Level.WARNING, "/dev/shm has 64 MiB free of 64 MiB"),
                (Level.WARNING, "100 for connections (60000 to 60099)"),
            ],
        ),
        (
            Machine(512, 512, None, port_error="Too many open files"),
            [
                (Level.WARNING, "a process may open 512: data loaders may need more"),
                (
                    Level.PROBLEM,
                    "there is no /dev/shm: data loaders and NCCL fail without it",
                ),
                (Level.PROBLEM, "no free port can be opened: Too many open files"),
            ],
        ),
        (
            Machine(128, 128, None),
            [
                (Level.PROBLEM, "a process may open 128: too few for an agent and its workers"),
                (Level.PROBLEM, "there is no /dev/shm: data loaders and NCCL fail without it"),
                (Level.OK, "a free port can be opened"),
            ],
        ),
        (
            Machine(-1, -1, 16 * GIBIBYTE, 1 << 20, True),
            [
                (Level.OK, "no limit"),
                (Level.WARNING, "/dev/shm has 1 MiB free of 16 GiB"),
                (Level.OK, "a free port can be opened"),
            ],
        ),
    ],
)
def test_limits_of_a_host_are_judged(machine: Machine, expected: list[tuple[Level, str]]) -> None:
    """What workers cannot do without is a problem, what some need is a warning."""
    assert judged(check_machine(machine)) == [
        *expected,
        (Level.OK, "an agent can start its processes and threads"),
    ]


def test_needs_of_an_agent_are_judged() -> None:
    """What it does without is no problem."""
    needs = (
        Need("/proc"),
        Need("prctl", "prctl cannot be used here", "allow it"),
        Need("pidfds", "pidfds cannot be used here", "allow them", "processes are watched"),
    )
    machine = Machine(65_536, 65_536, 16 * GIBIBYTE, kernel=needs, startable=11)

    assert judged(check_machine(machine))[3:] == [
        (Level.OK, "agents can use /proc"),
        (Level.PROBLEM, "prctl cannot be used here"),
        (Level.OK, "pidfds cannot be used here; processes are watched"),
        (
            Level.PROBLEM,
            "only 11 more processes and threads can start; an agent with one worker needs about 15",
        ),
    ]


def test_advice_about_processes_is_that_of_the_probe() -> None:
    """It knows whether a limit or a profile is the reason."""
    machine = Machine(65_536, 65_536, 16 * GIBIBYTE, startable=0, startable_advice="allow clone3")

    assert "allow clone3" == check_machine(machine)[-1].advice


def test_folder_for_temporary_files_is_needed() -> None:
    """A read-only container may have none."""
    machine = Machine(65_536, 65_536, 16 * GIBIBYTE, folder_lack="none can be written: set TMPDIR")

    assert (Level.PROBLEM, "none can be written") in judged(check_machine(machine))


def test_the_advice_names_a_limit_that_is_allowed() -> None:
    """A process cannot raise its limit above the hard one."""
    raisable, fixed = Machine(512, 4_096, 1), Machine(512, 512, 1)

    assert check_machine(raisable)[0].advice.endswith("ulimit -n 4096")
    assert check_machine(fixed)[0].advice.endswith("the limit of the service, or limits.conf")
