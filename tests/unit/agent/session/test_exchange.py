"""What an agent sends on its connections, and which answers count."""

from rallypoint.agent.core.reports import ReadyReport, Report, SucceededReport
from rallypoint.agent.session.exchange import BEATS_MAX, DEFAULT_LEASE_MS, Exchange
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.durations import to_duration

SESSION = "0" * 31 + "1"
EPOCH = 5
REPORTS: tuple[Report, ...] = (SucceededReport(1), ReadyReport(1, 2_000))


def connected(exchange: Exchange) -> agent_pb2.SessionRequest:
    """Begin the next connection, and return its Hello."""
    exchange.begin()
    return exchange.hello(agent_pb2.Hello(job_id="j"), EPOCH, now_ms=10)


def send_all(exchange: Exchange, first: int, reports: tuple[Report, ...]) -> list[int]:
    """Send what is unsent; return the numbers."""
    numbers = []
    for sequence, report in exchange.unsent(first, reports):
        message = exchange.report(sequence, report, EPOCH, now_ms=20)
        assert (SESSION, exchange.connection, EPOCH) == (
            message.session_id,
            message.connection,
            message.epoch,
        )
        numbers.append(message.sequence)
        exchange.sent(sequence)
    return numbers


def response(exchange: Exchange, **fields: object) -> agent_pb2.SessionResponse:
    """Return a message of the coordinator for the latest connection."""
    return agent_pb2.SessionResponse(
        connection=exchange.connection,
        epoch=EPOCH,
        **fields,  # type: ignore[arg-type]  # the message checks them
    )


def test_connections_are_numbered() -> None:
    """From 1, and every message carries the number."""
    exchange = Exchange(SESSION)

    assert [1, 2, 3] == [connected(exchange).connection for _ in range(3)]
    assert 3 == exchange.heartbeat(EPOCH, 30).connection


def test_reports_are_sent_once_and_repeated_on_the_next_connection() -> None:
    """Only what was acknowledged meanwhile is left out."""
    exchange = Exchange(SESSION)
    connected(exchange)

    assert [7, 8] == send_all(exchange, 7, REPORTS)
    assert [] == send_all(exchange, 7, REPORTS)
    assert [9] == send_all(exchange, 7, (*REPORTS, SucceededReport(2)))

    connected(exchange)

    assert [8] == send_all(exchange, 8, REPORTS[1:])


def test_only_messages_of_the_connection_count() -> None:
    """Neither those for another connection nor those of an older coordinator."""
    exchange = Exchange(SESSION)
    connected(exchange)
    late = response(exchange)
    connected(exchange)

    assert not exchange.accept(late, EPOCH)
    assert not exchange.accept(response(exchange), EPOCH + 1)
    assert exchange.accept(response(exchange), EPOCH)
    assert not exchange.is_welcome


def test_welcome_counts_for_its_connection_and_confirms_the_hello() -> None:
    """It also sets the interval and the lease, which the next connection keeps."""
    exchange = Exchange(SESSION)
    connected(exchange)
    welcome = agent_pb2.Welcome(heartbeat_interval=to_duration(300), lease=to_duration(900))
    message = response(exchange, welcome=welcome)

    assert exchange.accept(message, EPOCH) and exchange.take_timing(message)
    assert [10] == list(exchange.confirmed(message))
    assert (300, 900) == (exchange.interval_ms, exchange.silence_ms_max)

    connected(exchange)

    assert not exchange.is_welcome
    assert (300, DEFAULT_LEASE_MS) == (exchange.interval_ms, exchange.silence_ms_max)


def test_answer_confirms_the_latest_heartbeat_that_it_names() -> None:
    """Once, and never one of an earlier connection."""
    exchange = Exchange(SESSION)
    connected(exchange)
    for now_ms in (100, 200, 300):
        exchange.heartbeat(EPOCH, now_ms)
    answer = response(exchange, acknowledgement=agent_pb2.Acknowledgement(heartbeat=2))

    assert not exchange.take_timing(answer)
    assert [200] == list(exchange.confirmed(answer))
    assert [] == list(exchange.confirmed(answer))

    connected(exchange)

    assert [] == list(exchange.confirmed(answer))


def test_heartbeats_without_answers_are_bounded() -> None:
    """The oldest is forgotten, and then confirms nothing."""
    exchange = Exchange(SESSION)
    connected(exchange)
    for now_ms in range(BEATS_MAX + 1):
        exchange.heartbeat(EPOCH, now_ms)
    answer = response(exchange, acknowledgement=agent_pb2.Acknowledgement(heartbeat=1))

    assert [] == list(exchange.confirmed(answer))
