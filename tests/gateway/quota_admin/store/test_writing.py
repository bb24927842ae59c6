"""Alterations outlive who asked for them."""

import asyncio

import pytest

from gateway.quota_admin.store.writing import WritesInProgress


async def test_an_alteration_goes_on_when_whoever_asked_goes_away_and_is_waited_for_at_the_end() -> None:
    writing, go_on, made = WritesInProgress(), asyncio.Event(), []

    async def alter() -> int:
        await go_on.wait()
        made.append(7)
        return 7

    asking = asyncio.create_task(writing.carry_out(alter()))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    ending = asyncio.create_task(writing.done())
    await asyncio.sleep(0)
    assert not ending.done()
    go_on.set()
    await ending
    assert made == [7]
