import asyncio
import socket
import struct
from collections.abc import Iterator

import pytest

from gateway.net import peer_close
from gateway.net.channel import FIRST_LOOK_MS
from gateway.net.peer_close import INTERVAL_S, PeerCloseDetector, peer_gone
from testkit.clock import FakeClock
from testkit.fake_loop import FakeLoop
from testkit.raw_client import until


class Channel:
    """A channel whose client is one end of a pair of sockets."""

    def __init__(self, *, muted: bool, leaves_with_fin: bool = True) -> None:
        self.ours, self.client = socket.socketpair()
        self.muted = muted
        self.leaves_with_fin = leaves_with_fin
        self.found_gone = self.outlived = 0

    def unread_fd(self) -> int | None:
        return self.ours.fileno() if self.muted else None

    def client_gone(self) -> None:
        self.found_gone += 1
        self.muted = False

    def outlive_look(self) -> None:
        self.outlived += 1


@pytest.fixture
def channels() -> Iterator[list[Channel]]:
    made: list[Channel] = []
    yield made
    for channel in made:
        channel.ours.close()
        channel.client.close()


@pytest.fixture(autouse=True)
def impatient_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.net.peer_close.INTERVAL_S", 0.02)


def test_c08_two_looks_fit_into_the_five_seconds_that_a_dead_client_may_stay() -> None:
    assert 2 * INTERVAL_S < 5
    assert 2 * INTERVAL_S * 1000 < FIRST_LOOK_MS


def test_peer_is_gone_once_it_has_closed_whatever_it_sent_before(channels: list[Channel]) -> None:
    channels.append(Channel(muted=True))
    channels[0].client.send(b"more requests")
    assert not peer_gone(channels[0].ours.fileno())
    channels[0].client.close()
    assert peer_gone(channels[0].ours.fileno())


async def test_clients_that_closed_are_found_and_others_are_left_alone(channels: list[Channel]) -> None:
    channels += [Channel(muted=True), Channel(muted=True), Channel(muted=True), Channel(muted=False)]
    closed, half_closed, sending, read_from = channels
    watch = PeerCloseDetector(asyncio.get_running_loop(), channels)
    watch.start()
    sending.client.send(b"more requests")
    read_from.client.close()
    half_closed.client.shutdown(socket.SHUT_WR)
    await until(lambda: half_closed.found_gone)
    closed.client.close()
    await until(lambda: closed.found_gone)
    watch.stop()
    assert [channel.found_gone for channel in channels] == [1, 1, 0, 0]
    assert all(channel.outlived for channel in channels)


async def test_half_closed_client_that_may_wait_for_replies_is_left_alone_until_it_resets(
    channels: list[Channel],
) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    channels += [Channel(muted=True, leaves_with_fin=False), Channel(muted=True)]
    for end in (channels[0].ours, channels[0].client):
        end.close()
    channels[0].client = socket.create_connection(listening.getsockname())
    channels[0].ours, _ = listening.accept()
    listening.close()
    watch = PeerCloseDetector(asyncio.get_running_loop(), channels)
    watch.start()
    channels[0].client.shutdown(socket.SHUT_WR)
    channels[1].client.close()
    await until(lambda: channels[1].found_gone)
    assert channels[0].found_gone == 0
    channels[0].client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    channels[0].client.close()
    await until(lambda: channels[0].found_gone)
    watch.stop()


def test_stopped_watch_looks_no_more(channels: list[Channel], clock: FakeClock) -> None:
    channels.append(Channel(muted=True))
    loop = FakeLoop(clock)
    watch = PeerCloseDetector(loop, channels)  # type: ignore[arg-type]
    watch.start()
    loop.advance(1_000)
    watch.stop()
    channels[0].client.close()
    loop.advance(1_000)
    assert (loop.timers, channels[0].found_gone) == (0, 0)


async def test_first_looks_at_thousands_leave_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [Channel(muted=False) for _ in range(3)]
    monkeypatch.setattr(peer_close, "_LOOKS_PER_TURN", 2)
    detector = PeerCloseDetector(asyncio.get_running_loop(), many)
    detector._look()
    assert [channel.outlived for channel in many] == [1, 1, 0]
    await asyncio.sleep(0)
    assert [channel.outlived for channel in many] == [1, 1, 1]
    detector.stop()
    for channel in many:
        channel.ours.close()
        channel.client.close()


async def test_ends_of_many_that_left_together_leave_others_their_turn(
    channels: list[Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    channels += [Channel(muted=True) for _ in range(5)]
    for channel in channels:
        channel.client.close()
    monkeypatch.setattr(peer_close, "_ENDS_PER_TURN", 2)
    detector = PeerCloseDetector(asyncio.get_running_loop(), channels)
    detector._look()
    for gone in (2, 4, 5, 5):
        assert sum(channel.found_gone for channel in channels) == gone
        await asyncio.sleep(0)
    detector.stop()
