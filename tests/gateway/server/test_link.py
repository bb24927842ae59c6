"""Supervisor and worker inform and ask each other over real socket pairs."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.quota_admin.store.interface import StoreError
from gateway.server.link import BlockingLink, Link, LinkLost


@asynccontextmanager
async def linked(handlers: dict[str, Any]) -> AsyncIterator[tuple[Link, list[str]]]:
    """One end of a link whose other end has these handlers; and how the first end learned of its loss."""
    lost: list[str] = []
    ours, theirs = socket.socketpair()
    asking, answering = Link({}, lambda: lost.append("asking")), Link(handlers, lambda: lost.append("answering"))
    await asking.open(ours)
    await answering.open(theirs)
    try:
        yield asking, lost
    finally:
        for link in (asking, answering):
            link.close()
            await link.closed.wait()


async def test_what_is_told_and_asked_is_handled_in_order_and_answered_by_name() -> None:
    seen: list[Any] = []

    async def later(value: int) -> int:
        await asyncio.sleep(0)
        return value + 1

    async with linked({"note": seen.append, "later": later, "seen": lambda: list(seen)}) as (link, _):
        link.tell("note", b"x" * 200_000)
        link.tell("note", 2)
        assert await asyncio.gather(link.ask("later", 1), link.ask("seen")) == [2, [b"x" * 200_000, 2]]


async def test_error_of_the_store_reaches_the_one_that_asked_and_a_bug_is_no_silence() -> None:
    async def refuse() -> None:
        raise StoreError("full")

    async def fail() -> None:
        raise ValueError("ours")

    async with linked({"refuse": refuse, "fail": fail}) as (link, _):
        with pytest.raises(StoreError, match="full"):
            await link.ask("refuse")
        with pytest.raises(LinkLost):
            await link.ask("fail")


async def test_question_that_is_open_when_the_other_process_dies_is_answered_by_that() -> None:
    ours, theirs = socket.socketpair()
    lost: list[str] = []
    link = Link({}, lambda: lost.append("it"))
    await link.open(ours)
    asked = asyncio.ensure_future(link.ask("anything"))
    await asyncio.sleep(0)
    theirs.close()
    with pytest.raises(LinkLost):
        await asked
    assert lost == ["it"]
    with pytest.raises(LinkLost):
        await link.ask("more")
    link.tell("nothing happens")


async def test_blocking_question_waits_once_for_a_process_that_stands_still_and_goes_on_with_it() -> None:
    ours, theirs = socket.socketpair()
    answering = Link({"double": lambda value: 2 * value}, lambda: None)
    asking = BlockingLink(ours, within_s=0.05)
    with pytest.raises(LinkLost):
        asking.ask("double", 1)  # the other end is not read yet
    with pytest.raises(LinkLost, match="stands still"):
        asking.ask("double", 2)
    await answering.open(theirs)
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        await asyncio.sleep(0.01)  # the late answer is on its way
        try:
            asking.tell("double", 0)
            break
        except LinkLost:
            assert asyncio.get_running_loop().time() < deadline
    asking = BlockingLink(ours, within_s=60)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(asking.ask("double", 21)))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert answers == [42]
    answering.close()
    await answering.closed.wait()
    ours.close()


async def test_what_did_not_fit_into_the_socket_is_said_later_and_no_frame_is_torn() -> None:
    heard: list[int] = []
    ours, theirs = socket.socketpair()
    answering = Link(
        {"note": lambda number, _: heard.append(number), "double": lambda value: 2 * value}, lambda: None
    )
    asking = BlockingLink(ours, within_s=0.05)
    said: list[int] = []
    for number in range(500):  # the other end is not read yet
        try:
            asking.tell("note", number, b"x" * 3_000)
            said.append(number)
        except LinkLost:
            with pytest.raises(LinkLost):
                asking.ask("double", 1)
    assert 0 < len(said) < 500
    await answering.open(theirs)

    def double() -> int:
        while True:
            try:
                return int(asking.ask("double", 21))
            except LinkLost:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    deadline = time.monotonic() + 60
    assert await asyncio.to_thread(double) == 42
    assert heard == said
    answering.close()
    await answering.closed.wait()
    ours.close()
