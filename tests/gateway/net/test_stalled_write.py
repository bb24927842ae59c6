"""How long a client may leave its replies lying, on a clock."""

import select
import socket
import time
from typing import Any

from gateway.net.stalled_write import StalledWriteDetector
from gateway.runtime.lateness import LATE_MS
from testkit.clock import FakeClock
from testkit.core import session_settings
from testkit.fake_loop import FakeLoop

PERIOD_MS = 10_000
ENOUGH_BYTES = 100 * PERIOD_MS // 1000


class Owner:
    def __init__(self) -> None:
        self.loop = FakeLoop(FakeClock(0))
        self.settings = session_settings(write_timeout_ms=PERIOD_MS, min_write_bytes_per_s=100)


class Scene:
    """A full transport that is watched."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.left_bytes = 1_000_000
        self.stalled = 0
        self.socket: socket.socket | None = None
        self.watch = StalledWriteDetector(self.owner, self, self.count)  # type: ignore[arg-type]

    def get_write_buffer_size(self) -> int:
        return self.left_bytes

    def get_extra_info(self, name: str) -> Any:
        assert name == "socket"
        return self.socket

    def count(self) -> None:
        self.stalled += 1

    def takes(self, taken_bytes: int) -> None:
        """The client takes so much in one period, in its middle."""
        self.owner.loop.advance(PERIOD_MS // 2)
        self.left_bytes -= taken_bytes
        self.owner.loop.advance(PERIOD_MS // 2)


def test_b08_b10_a_client_that_takes_nothing_is_found_after_each_period() -> None:
    scene = Scene()
    scene.owner.loop.advance(PERIOD_MS - 1)
    assert scene.stalled == 0
    scene.owner.loop.advance(1)
    assert (scene.stalled, scene.owner.loop.timers) == (1, 0)
    scene = Scene()
    scene.takes(10 * ENOUGH_BYTES)
    scene.takes(ENOUGH_BYTES)
    assert scene.stalled == 0
    scene.takes(ENOUGH_BYTES - 1)
    assert scene.stalled == 1
    scene = Scene()
    scene.watch.stop()
    scene.takes(0)
    assert (scene.stalled, scene.owner.loop.timers) == (0, 0)
    scene = Scene()
    scene.owner.settings = session_settings(write_timeout_ms=PERIOD_MS, min_write_bytes_per_s=0)
    scene.takes(0)
    assert scene.stalled == 0


def test_b08_what_is_under_way_when_the_transport_fills_is_nothing_that_the_client_reads() -> None:
    scene = Scene()
    scene.left_bytes -= 10 * ENOUGH_BYTES
    scene.owner.loop.advance(PERIOD_MS)
    assert scene.stalled == 1


def test_b10_what_the_peer_has_taken_counts_though_the_kernel_takes_nothing_more_of_us() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 200_000)
        ours.setblocking(False)
        while True:
            try:
                ours.send(bytes(65_536))
            except BlockingIOError:
                break
        scene = Scene()
        scene.watch.stop()
        scene.socket = ours
        scene.watch = StalledWriteDetector(scene.owner, scene, scene.count)  # type: ignore[arg-type]
        scene.owner.loop.advance(PERIOD_MS // 2)
        for _ in range(3):
            theirs.recv(16_384)
            time.sleep(0.005)
        scene.owner.loop.advance(PERIOD_MS // 2)
        assert scene.stalled == 0
        assert select.select([], [ours], [], 0) == ([], [], [])
        scene.owner.loop.advance(PERIOD_MS)
        assert scene.stalled == 1


def test_l06_a_period_in_which_the_process_stood_still_does_not_count() -> None:
    scene = Scene()
    scene.owner.loop.clock.advance(PERIOD_MS + LATE_MS)
    scene.owner.loop.advance(0)
    assert scene.stalled == 0
    scene.owner.loop.advance(PERIOD_MS)
    assert scene.stalled == 1


def test_b10_a_client_at_the_lowest_rate_stays_from_the_first_period_on() -> None:
    scene = Scene()
    for _ in range(4 * PERIOD_MS // 100):
        scene.owner.loop.advance(100)
        scene.left_bytes -= 10
    assert scene.stalled == 0


def test_l06_what_is_read_while_the_process_stands_still_before_the_first_look_is_not_missed() -> None:
    scene = Scene()
    scene.owner.loop.advance(PERIOD_MS // 20)
    scene.owner.loop.clock.advance(PERIOD_MS - PERIOD_MS // 20 - 10)
    scene.left_bytes -= 100 * ENOUGH_BYTES
    scene.owner.loop.advance(20)
    assert scene.stalled == 0
    scene.takes(ENOUGH_BYTES)
    assert scene.stalled == 0
    scene.takes(0)
    scene.takes(0)
    assert scene.stalled == 1
