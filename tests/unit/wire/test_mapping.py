"""A struct and a message that agree are mapped both ways, and a misfit is found at the start."""

from __future__ import annotations

from enum import Enum
from typing import Any, NewType

import pytest
from msgspec import Struct

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, round_pb2
from rallypoint.wire.mapping import Mapper, Misfit, numbers_of

Text = NewType("Text", str)


class Reason(Enum):
    """Some of the contract's reasons."""

    UNKNOWN = 1
    FIRST = 2


class State(Enum):
    """An enum without a member for what is unknown."""

    LOST = 1
    LEFT = 2


class Error(Struct, frozen=True):
    """Has the fields of ErrorRecord, one of them under another name."""

    message: Text
    traceback: str = ""
    before_ms: int | None = None


class Exit(Struct, frozen=True):
    """Has the fields of WorkerExit."""

    at: str
    exit_code: int | None
    signal: int | None
    run_time_ms: int
    outlived_signal_for_ms: int = 0
    error: Error | None = None
    failed_ms: int | None = None
    oom_killed: bool = False


class Spare(Struct, frozen=True):
    """Has the only field of Standby."""

    spare: bool


class Awaited(Struct, frozen=True):
    """Has the fields of AwaitedNode."""

    name: str
    state: State
    in_state_for_ms: int | None = None
    text: str = ""


class Waiting(Struct, frozen=True):
    """Has some fields of Waiting."""

    nodes: tuple[Awaited, ...]
    ready_nodes: int = 0


class Stop(Struct, frozen=True):
    """Has the fields of Stop."""

    round: int
    reason: Reason
    text: str
    shutdown_timeout_ms: int = 30_000


class Action(Enum):
    """Has the values of HangAction but for that of zero."""

    REPORT = "report"
    RESTART = "restart"


class Acts(Struct, frozen=True):
    """Has one field of JobSpec."""

    hang_action: Action = Action.REPORT


class Codes(Struct, frozen=True):
    """Has one field of JobSpec."""

    no_retry_exit_codes: tuple[int, ...]


def others(message: Any, *names: str) -> set[str]:
    """Return all fields of a message but these."""
    return set(message.DESCRIPTOR.fields_by_name).difference(names)


ERROR = Mapper(Error, node_pb2.ErrorRecord, {"before_ms": "age_at_exit"})
EXIT = Mapper(
    Exit,
    node_pb2.WorkerExit,
    {"failed_ms": "failed_at"},
    apart=("at", "agent_signalled_first", "age", "stderr_tail", "error_file", "stderr_file"),
    nested=(ERROR,),
)
STOP = Mapper(Stop, agent_pb2.Stop)
WAITING = Mapper(Waiting, job_pb2.Waiting, apart=others(job_pb2.Waiting, "nodes", "ready_nodes"))
CODES = Mapper(Codes, job_pb2.JobSpec, apart=others(job_pb2.JobSpec, "no_retry_exit_codes"))
ACTS = Mapper(Acts, job_pb2.JobSpec, apart=others(job_pb2.JobSpec, "hang_action"))
SPARE = Mapper(Spare, agent_pb2.Standby)


@pytest.mark.parametrize(
    ("mapper", "value", "rest"),
    [
        (
            EXIT,
            Exit("here", 0, None, 1, 2_500, Error(Text("m"), "t", 0), 1_700_000_000_123, True),
            ("at",),
        ),
        (EXIT, Exit("there", None, 9, 0), ("at",)),
        (STOP, Stop(3, Reason.FIRST, "why", 0), ()),
        (
            WAITING,
            Waiting((Awaited("a", State.LEFT, 5), Awaited("b", State.LOST, None, "x")), 2),
            (),
        ),
        (WAITING, Waiting(()), ()),
        (CODES, Codes((3, 1)), ()),
        (SPARE, Spare(True), ()),
    ],
)
def test_value_comes_back(mapper: Mapper[Any, Any], value: Struct, rest: tuple[str, ...]) -> None:
    """A struct is equal after it was a message; what is apart is passed by the caller."""
    sent = mapper.to_message(value).SerializeToString()
    message = mapper.to_message(value).FromString(sent)

    assert mapper.to_struct(message, **{name: getattr(value, name) for name in rest}) == value


def test_fields_have_their_units() -> None:
    """A time in ms is a Duration, or as Unix time a Timestamp, and an enum has its number."""
    error = Error(Text("m"), "t", 250)
    exit = EXIT.to_message(
        Exit("x", None, 9, 61_002, error=error, failed_ms=1_500), stderr_tail="tail"
    )
    stop = STOP.to_message(Stop(3, Reason.FIRST, "why"))

    assert (exit.run_time.seconds, exit.run_time.nanos) == (61, 2_000_000)
    assert exit.error.age_at_exit.ToMilliseconds() == 250
    assert exit.failed_at.ToMilliseconds() == 1_500
    assert exit.stderr_tail == "tail"
    assert stop.reason == round_pb2.ROUND_REASON_FIRST


def test_none_and_default_zero_are_absent() -> None:
    """None and a default of zero are absent; another zero is there."""
    exit = EXIT.to_message(Exit("x", 0, None, 0))

    assert [field.name for field, _ in exit.ListFields()] == ["exit_code", "run_time"]
    assert STOP.to_message(Stop(3, Reason.FIRST, "", 0)).HasField("shutdown_timeout")


def test_what_is_apart_is_named() -> None:
    """A caller passes what has no default, and nothing that is mapped."""
    with pytest.raises(TypeError):
        EXIT.to_struct(node_pb2.WorkerExit())
    with pytest.raises(TypeError):
        EXIT.to_message(Exit("x", 0, None, 0), exit_code=1)


def test_absent_reads_as_the_default() -> None:
    """A field that a peer did not set has the default, and one without a default is zero."""
    assert STOP.to_struct(agent_pb2.Stop(reason=round_pb2.ROUND_REASON_FIRST)) == Stop(
        0, Reason.FIRST, "", 30_000
    )
    assert EXIT.to_struct(node_pb2.WorkerExit(), at="") == Exit("", None, None, 0)
    assert Acts(Action.REPORT) == ACTS.to_struct(job_pb2.JobSpec())
    restart = job_pb2.JobSpec(hang_action=job_pb2.HANG_ACTION_RESTART)
    assert Acts(Action.RESTART) == ACTS.to_struct(restart)
    newer = job_pb2.JobSpec()
    newer.hang_action = 99  # type: ignore[assignment]
    assert Acts(Action.REPORT) == ACTS.to_struct(newer)


@pytest.mark.parametrize("number", [0, round_pb2.ROUND_REASON_GROWTH, 99])
def test_newer_number_is_unknown(number: Any) -> None:
    """A number that no member has reads as UNKNOWN."""
    assert STOP.to_struct(agent_pb2.Stop(reason=number)).reason is Reason.UNKNOWN


def test_enum_has_its_numbers() -> None:
    """Members have the numbers of their names, and of the names that were given for them."""
    numbers = numbers_of(State, job_pb2.AwaitedState.DESCRIPTOR, {State.LOST: "SILENT"})

    assert numbers == {
        State.LOST: job_pb2.AWAITED_STATE_SILENT,
        State.LEFT: job_pb2.AWAITED_STATE_LEFT,
    }


class TextStop(Stop, frozen=True):
    """Has a field that Stop lacks."""

    more: str = ""


class NumberSpare(Struct, frozen=True):
    """Has a type that Standby lacks."""

    spare: tuple[int, ...]


class NoneStarted(Struct, frozen=True):
    """May be None where Started has no presence."""

    round: int | None
    pids: tuple[int, ...]


class SingleStarted(Struct, frozen=True):
    """Has one value where Started has several."""

    round: int
    pids: int


class OtherStop(Struct, frozen=True):
    """Has an enum with other members than Stop's."""

    round: int
    reason: State
    text: str
    shutdown_timeout_ms: int


@pytest.mark.parametrize(
    ("struct", "message", "apart"),
    [
        (TextStop, agent_pb2.Stop, ()),
        (Spare, agent_pb2.Stop, ("spare",)),
        (Spare, agent_pb2.Standby, ("unheard",)),
        (NumberSpare, agent_pb2.Standby, ()),
        (NoneStarted, agent_pb2.Started, ()),
        (SingleStarted, agent_pb2.Started, ()),
        (OtherStop, agent_pb2.Stop, ()),
    ],
)
def test_misfit_is_found(struct: Any, message: Any, apart: tuple[str, ...]) -> None:
    """A field without a counterpart, or one of another type, is found when the mapper is made."""
    with pytest.raises(Misfit):
        Mapper(struct, message, apart=apart)
