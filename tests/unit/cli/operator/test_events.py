"""`rallypoint events`: a job that is unknown is not followed for ever."""

from __future__ import annotations

from collections import UserList
from unittest.mock import MagicMock, Mock

import pytest

from rallypoint.cli.operator import app
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.client.errors import UnknownJob
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import job_pb2

EVENT = events_pb2.Event(job_id="gone", text="it began")


class Pages(UserList[events_pb2.Event]):
    """Events as the client reads them, in pages."""

    latest = events_pb2.ListEventsResponse()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return a client of a coordinator that knows no job but `train`; `gone` has left events."""

    def list_events(job: str, *, kinds: list[int]) -> Pages:
        return Pages([EVENT] if job == "gone" and not kinds else [])

    made = Mock(
        get_job=Mock(side_effect=UnknownJob("there is no job 'x'", job_id="trian")),
        list_jobs=Mock(return_value=[job_pb2.JobSummary(job_id="train")]),
        list_events=Mock(side_effect=list_events),
        watch_events=MagicMock(),
    )
    monkeypatch.setattr(Invocation, "check_reachable", lambda self: None)
    monkeypatch.setattr(Invocation, "open_client", lambda self, limit_s: made)
    return made


@pytest.mark.parametrize(
    "more", [(), ("-f",), ("-f", "-n", "0"), ("-o", "json"), ("--kind", "round-sealed")]
)
def test_a_job_that_is_unknown_is_an_error(
    more: tuple[str, ...], client: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the name that may be meant, as in all commands."""
    assert app.main("events", ["trian", *more]) == 3
    shown = capsys.readouterr()

    assert shown.out == ""
    assert shown.err.endswith("there is no job 'x'; did you mean 'train'?\n")
    client.watch_events.assert_not_called()


@pytest.mark.parametrize("more", [(), ("--kind", "round-sealed"), ("-n", "0")])
def test_a_job_that_is_gone_has_events(
    more: tuple[str, ...], client: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if none of them is wanted."""
    assert app.main("events", ["gone", *more]) == 0

    assert ("it began" in capsys.readouterr().out) == (not more)


def test_a_job_without_events_is_followed(client: Mock) -> None:
    """It exists."""
    client.get_job.side_effect = None
    client.watch_events.return_value.__enter__.return_value = []
    assert app.main("events", ["new", "-f"]) == 0

    client.watch_events.assert_called_once()
