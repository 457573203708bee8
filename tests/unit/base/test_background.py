"""What runs beside a context: its owner hears when it ends too soon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from rallypoint.base.background import Background, TaskEnded, keep_looking

LIMIT_S = 10.0


async def fail() -> None:
    raise LookupError("a bug")


async def end() -> None:
    await asyncio.sleep(0)


async def give_up() -> None:
    raise asyncio.CancelledError


async def stay() -> None:
    await asyncio.Event().wait()


def new_failed() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("work", "expected"), [(fail, LookupError), (end, TaskEnded), (give_up, TaskEnded)]
)
async def test_owner_hears_of_an_end(
    work: Callable[[], Coroutine[Any, Any, None]], expected: type[Exception]
) -> None:
    """Of an exception, a return and a cancellation from inside; the others run on."""
    failed = new_failed()
    async with Background(failed) as background:
        other = background.start(stay())
        background.start(work())
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(expected):
                await failed

        assert not other.done()
    assert other.cancelled()


async def test_end_of_the_context_is_no_failure() -> None:
    """Its tasks are cancelled, or end by themselves once that is expected."""
    failed, may_end = new_failed(), asyncio.Event()

    async def wait() -> None:
        await may_end.wait()

    async with Background(failed) as background:
        task = background.start(wait())
        background.start(stay())
        background.expect_ends()
        may_end.set()
        async with asyncio.timeout(LIMIT_S):
            await task

    assert not failed.done()


async def test_look_that_fails_is_made_again() -> None:
    """The log has each reason once, and all other looks are made."""
    made, enough = [0, 0], asyncio.Event()

    async def broken() -> None:
        made[0] += 1
        raise LookupError("a bug" if made[0] < 4 else "another bug")

    async def sound() -> None:
        made[1] += 1
        if made[1] == 6:
            enough.set()

    failed = new_failed()
    with capture_logs() as lines:
        async with Background(failed) as background, asyncio.timeout(LIMIT_S):
            background.start(keep_looking([broken, sound], 0.0))
            await enough.wait()

    assert [6, 6] == made
    assert ["look_failed"] * 2 == [line["event"] for line in lines]
    assert not failed.done()
