"""``python -m benchmarks.session``: the CPU cost of a session per request and per reply, without sockets.

To measure the compiled core:
``SLUICE_COMPILED=1 PYTHONPATH=build/compiled/sluice:. python -P -m benchmarks.session``.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from gateway.runtime.compiled_core import core_name
from testkit.core import GatewayCore

_VERSION: Final = 9
_BODY: Final = b"\0\0\0\1" + bytes(4)  # no tags, null transactional id, acks=1, ...


def request(correlation_id: int, frame_bytes: int, *, client_id: bytes = b"bench") -> bytes:
    """A Produce request of `frame_bytes` on the wire. Its body has only the fields that the gateway reads."""
    head = struct.pack(">hhih", 0, _VERSION, correlation_id, len(client_id)) + client_id + _BODY
    return struct.pack(">i", frame_bytes - 4) + head + bytes(frame_bytes - 4 - len(head))


def reply(correlation_id: int) -> bytes:
    """A short reply."""
    return struct.pack(">ii", 40, correlation_id) + bytes(36)


def best_us(step: Callable[[], tuple[int, int]], times: int) -> tuple[float, float]:
    """The least time of requests and of replies, in microseconds."""
    taken = [step() for _ in range(times)]
    return min(one for one, _ in taken) / 1e3, min(other for _, other in taken) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.session", description=__doc__)
    parser.add_argument("--times", type=int, default=4_000)
    times = parser.parse_args().times
    print(core_name())
    core = GatewayCore(controller_mutation_rate=1e6)
    session, now_ms = core.new_session(), core.clock.now_ms
    session.receive_from_client(request(0, 256), now_ms=now_ms)
    session.receive_from_upstream(reply(0), now_ms=now_ms)

    def together() -> tuple[int, int]:
        requests = b"".join(request(number, 256) for number in range(64))
        replies = b"".join(map(reply, range(64)))
        session.to_upstream.clear()
        session.to_client.clear()
        began = perf_counter_ns()
        session.receive_from_client(requests, now_ms=now_ms)
        between = perf_counter_ns()
        session.receive_from_upstream(replies, now_ms=now_ms)
        return between - began, perf_counter_ns() - between

    def single() -> tuple[int, int]:
        one, other = request(1, 256), reply(1)
        began = perf_counter_ns()
        relayed = session.relay_request(one, now_ms=now_ms)
        between = perf_counter_ns()
        relayed &= session.relay_reply(other, now_ms=now_ms)
        ended = perf_counter_ns()
        assert relayed
        return between - began, ended - between

    asked, answered = (taken / 64 for taken in best_us(together, times))
    print(f"64 in one chunk: {asked + answered:.2f} us per frame, {asked:.2f} request + {answered:.2f} reply")
    asked, answered = best_us(single, times * 10)
    print(f"one at a time:   {asked + answered:.2f} us, {asked:.2f} request + {answered:.2f} reply")


if __name__ == "__main__":
    main()
