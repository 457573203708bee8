"""Metrics: streams by group, measured functions, and handlers that fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rallypoint.elastic import metrics


class Values(metrics.MetricHandler):
    def __init__(self) -> None:
        self.values: list[metrics.MetricData] = []

    def emit(self, metric_data: metrics.MetricData) -> None:
        self.values.append(metric_data)

    @property
    def names(self) -> list[str]:
        return [data.name for data in self.values]


class Failing(metrics.MetricHandler):
    def emit(self, metric_data: metrics.MetricData) -> None:
        raise OSError("no route to the metrics server")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the handlers and failures of other tests."""
    monkeypatch.setattr(metrics, "_handlers", {})
    monkeypatch.setattr(metrics, "_failed", set())
    yield


@pytest.fixture
def values() -> Values:
    """A handler of the agents' group."""
    handler = Values()
    metrics.configure(handler, "torchelastic")
    return handler


def test_groups_have_handlers(values: Values, capsys: pytest.CaptureFixture[str]) -> None:
    """A group without a handler goes to the default one, which drops everything at first."""
    metrics.put_metric("restarts", 2)
    metrics.put_metric("loss", 3, "mine")
    metrics.configure(metrics.ConsoleMetricHandler())
    metrics.getStream("mine").add_value("loss", 4)

    (data,) = values.values
    assert (data.group_name, data.name, data.value) == ("torchelastic", "restarts", 2)
    assert data.timestamp > 1_700_000_000
    assert capsys.readouterr().out.endswith("][mine]: loss=4\n")


def test_prof_measures_functions(values: Values) -> None:
    """Success or failure, then the duration; named by class, or by module."""
    mine = Values()
    metrics.configure(mine, "mine")
    Trainer().fit()
    with pytest.raises(ValueError, match="bad"):
        fail()

    method = f"{test_prof_measures_functions.__module__.split('.')[-1]}.fail"
    assert values.names == ["Trainer.fit.success", "Trainer.fit.duration.ms"]
    assert mine.names == [f"{method}.failure", f"{method}.duration.ms"]
    assert values.values[0].value == 1 and values.values[1].value >= 0


class Trainer:
    @metrics.prof
    def fit(self) -> None:
        """Do nothing."""


@metrics.prof(group="mine")
def fail() -> None:
    raise ValueError("bad")


def test_failing_handler_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The measured function succeeds; one warning names the handler."""
    metrics.configure(Failing(), "torchelastic")
    Trainer().fit()

    (line,) = caplog.messages
    assert line.startswith("warning metric_handler_failed handler=Failing ")


def test_elapsed_time_is_whole_milliseconds() -> None:
    """From a Unix time in seconds, as torch's callers give it."""
    assert metrics.get_elapsed_time_ms(0) > 1_700_000_000_000
