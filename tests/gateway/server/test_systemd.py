"""What systemd reads: a datagram socket plays it."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.server.systemd import Notify
from testkit.raw_client import until


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(60)
        yield sock


def read(systemd: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in systemd.recv(4096).decode().splitlines())


def test_reload_stop_and_replacement_are_told(systemd: socket.socket) -> None:
    async def life() -> None:
        notify = Notify({"NOTIFY_SOCKET": systemd.getsockname()})
        notify.ready()
        notify.reloading()
        notify.ready()
        notify.replaced_by(4711)
        notify.stopping()  # the service is another process by now

    asyncio.run(life())
    assert read(systemd) == {"READY": "1"}
    reloading = read(systemd)
    assert reloading["RELOADING"] == "1"
    assert int(reloading["MONOTONIC_USEC"]) > 0
    assert [read(systemd), read(systemd)] == [{"READY": "1"}, {"MAINPID": "4711"}]
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(1)


FILLING = b"STATUS=fills the queue"


def fill(address: str) -> None:
    """Fill the queue of a receiver, by senders each of which has room for what it sends."""
    sent = 1
    while sent:
        sent = 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            sock.connect(address)
            with suppress(BlockingIOError):
                while True:
                    sent += sock.send(FILLING)


def emptied(systemd: socket.socket) -> list[bytes]:
    """Read all messages but those that filled the queue."""
    found = []
    with suppress(BlockingIOError):
        while True:
            found.append(systemd.recv(4096))
    return [each for each in found if each != FILLING]


def test_name_of_the_next_main_process_is_sent_again_while_the_queue_is_full(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.systemd._AGAIN_FOR_S", 60.0)
    systemd.setblocking(False)

    async def life() -> list[bytes]:
        notify = Notify({"NOTIFY_SOCKET": systemd.getsockname()})
        fill(systemd.getsockname())
        notify.replaced_by(4711)
        waiting = asyncio.create_task(notify.sent())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        found = []
        while not waiting.done():
            found += emptied(systemd)
            await asyncio.sleep(0.001)
        return found + emptied(systemd)

    assert asyncio.run(life()) == [b"MAINPID=4711"]


def life_with(environment: dict[str, str], life: Callable[[Notify], Awaitable[None]]) -> None:
    async def run() -> None:
        notify = Notify(environment)
        await life(notify)
        notify.close()
        assert notify._again is None

    asyncio.run(run())


def test_ready_and_watchdog_are_sent_again_while_the_queue_is_full(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster whose READY was lost counted as starting for as long as it served."""
    monkeypatch.setattr("gateway.server.systemd._AGAIN_FOR_S", 60.0)
    systemd.setblocking(False)

    async def life(notify: Notify) -> None:
        fill(systemd.getsockname())
        notify.ready()
        found: list[bytes] = []

        def both() -> bool:
            found.extend(emptied(systemd))
            return len(found) == 2

        await until(both)
        assert found == [b"READY=1", b"WATCHDOG=1"]
        assert (notify._unsent, notify._again) == ({}, None)

    life_with({"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "600000000"}, life)


@pytest.mark.parametrize("after", ["reloading", "stopping"])
def test_ready_is_not_sent_again_after_a_later_state(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    monkeypatch.setattr("gateway.server.systemd._AGAIN_FOR_S", 60.0)
    systemd.setblocking(False)

    async def life(notify: Notify) -> None:
        fill(systemd.getsockname())
        notify.ready()
        assert emptied(systemd) == []
        getattr(notify, after)()
        await until(lambda: notify._again is None)
        (found,) = emptied(systemd)
        assert found.split(b"=")[0] == after.upper().encode()

    life_with({"NOTIFY_SOCKET": systemd.getsockname()}, life)


def test_messages_are_not_sent_again_for_ever(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.systemd._AGAIN_FOR_S", 0.05)
    systemd.setblocking(False)

    async def life(notify: Notify) -> None:
        fill(systemd.getsockname())
        with capture_logs() as lines:
            notify.ready()
            await until(lambda: notify._again is None)
        assert [(line["event"], line["message"]) for line in lines] == [("systemd_not_told", "READY=1")]
        # The end of the process does not wait for a message.
        monkeypatch.setattr("gateway.server.systemd._AGAIN_FOR_S", 60.0)
        notify.ready()
        assert notify._again is not None

    life_with({"NOTIFY_SOCKET": systemd.getsockname()}, life)


@pytest.mark.parametrize(("watched", "successor", "fed"), [(0, False, True), (1, False, False), (1, True, True)])
def test_watchdog_is_fed_by_the_process_it_is_for(
    systemd: socket.socket, watched: int, successor: bool, fed: bool
) -> None:
    environment = {
        "NOTIFY_SOCKET": systemd.getsockname(),
        "WATCHDOG_USEC": "30000",
        "WATCHDOG_PID": str(os.getpid() + watched),
    }

    async def life() -> None:
        notify = Notify(environment, successor=successor)
        notify.ready()
        assert read(systemd) == {"READY": "1"}
        if fed:
            loop = asyncio.get_running_loop()
            found = [await loop.run_in_executor(None, read, systemd) for _ in range(3)]
            assert found == [{"WATCHDOG": "1"}] * 3
        notify.close()

    asyncio.run(life())


def test_nothing_is_sent_without_systemd_and_a_lost_one_is_survived(tmp_path: Path) -> None:
    async def life() -> None:
        for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}):
            notify = Notify(environment)
            notify.ready()
            notify.stopping()
            notify.close()

    asyncio.run(life())
