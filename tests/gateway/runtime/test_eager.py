import asyncio

import pytest

from gateway.runtime.eager import Eager


async def test_begins_within_the_call_and_goes_on_when_what_it_waits_for_is_there() -> None:
    told: list[str] = []
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def steps() -> None:
        told.append("begun")
        told.append(await answer)

    eager = Eager()
    eager.run(steps())
    assert told == ["begun"]
    answer.set_result("answered")
    await eager.over()
    assert told == ["begun", "answered"]
    await eager.over()
    eager.cancel()


async def test_cancelled_at_what_it_waits_for_and_at_whatever_it_waits_for_next() -> None:
    told: list[str] = []
    futures = [asyncio.get_running_loop().create_future() for _ in range(2)]

    async def steps() -> None:
        for future in futures:
            try:
                await future
            except asyncio.CancelledError:
                told.append("cancelled")
                if future is futures[1]:
                    raise

    eager = Eager()
    eager.run(steps())
    eager.cancel()
    await eager.over()
    assert told == ["cancelled", "cancelled"]


async def test_cancelled_with_the_task_that_waits_for_its_end() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def steps() -> None:
        await future

    eager = Eager()
    eager.run(steps())
    waiting = asyncio.create_task(eager.over())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert future.cancelled()


async def test_error_of_the_first_step_is_raised_where_it_began() -> None:
    async def steps() -> None:
        raise OSError("no such host")

    eager = Eager()
    with pytest.raises(OSError, match="no such host"):
        eager.run(steps())
    await eager.over()
