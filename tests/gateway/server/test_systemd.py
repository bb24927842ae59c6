"""What systemd reads: a datagram socket plays it."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.server.systemd import Notify


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


def fill(address: str) -> None:
    """Fill the queue of a receiver, by senders each of which has room for what it sends."""
    sent = 1
    while sent:
        sent = 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            sock.connect(address)
            with suppress(BlockingIOError):
                while True:
                    sent += sock.send(b"WATCHDOG=1")


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
            with suppress(BlockingIOError):
                found.append(systemd.recv(4096))
            await asyncio.sleep(0.001)
        with suppress(BlockingIOError):
            while True:
                found.append(systemd.recv(4096))
        return found

    assert [each for each in asyncio.run(life()) if each != b"WATCHDOG=1"] == [b"MAINPID=4711"]


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
