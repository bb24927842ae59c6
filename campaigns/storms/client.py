"""A client of the campaign, as a separate process: `python -m campaigns.storms.client PLAN`.

PLAN is the JSON of a `Plan`. The client connects, prints a line, and begins when it reads a line. A storm keeps its
rate, whatever the answers contain, and prints its answers at its end. An honest client sends at a steady rate, prints
its answers every second, and ends with its input. An answer's time begins when its request was due. Times are seconds
of the machine's monotonic clock. Answers have the kernel's time of arrival, because a busy process reads them late.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from testkit import wire

TOPIC: Final = "storms"
_COMMITTED: Final = [{"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}]
_LATEST: Final = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
METADATA: Final = "metadata"
COMMIT: Final = "offset_commit"

_SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("qq")
_SIZE: Final = struct.Struct(">i")
_CORRELATION_AT: Final = 8
_THROTTLE_AT: Final = 8
"""Offset of the throttle time in answers of these versions, after the size and the correlation id."""


class Request(NamedTuple):
    """One request, in a version whose answer begins with throttle_time_ms."""

    api: str
    version: int
    fields: dict[str, Any]


def requests(group: str) -> dict[str, Request]:
    """The clients' requests by kind; commits are for this group."""
    topics = [{"name": TOPIC, "partitions": _COMMITTED}]
    member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    wanted = [{"name": TOPIC, "partitions": _LATEST}]
    return {
        METADATA: Request("Metadata", 8, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}),
        COMMIT: Request("OffsetCommit", 7, {"group_id": group, **member, "topics": topics}),
        "list_offsets": Request("ListOffsets", 5, {"replica_id": -1, "isolation_level": 0, "topics": wanted}),
    }


@dataclass(frozen=True, slots=True)
class Plan:
    """The task of a client.

    Attributes:
        port: the broker's port at the gateway.
        client_id: client id of all requests.
        kinds: kinds of requests, which take turns.
        connections: number of connections.
        per_second: requests per second on each connection.
        seconds: duration; 0 for until the end of the input.
        in_flight: maximum number of unanswered requests of a connection.
    """

    port: int
    client_id: str
    kinds: tuple[str, ...]
    connections: int
    per_second: float
    seconds: float = 0.0
    in_flight: int = 500

    def text(self) -> str:
        """The plan as JSON for the command line."""
        return json.dumps(asdict(self))


class Answer(NamedTuple):
    """One answer.

    Attributes:
        connection: number of the client's connection.
        at_s: time of arrival.
        took_s: time since the request was due.
        throttle_ms: throttle time in the answer.
        kind: kind of its request.
    """

    connection: int
    at_s: float
    took_s: float
    throttle_ms: int
    kind: str


class _Connection:
    def __init__(self, plan: Plan, number: int, frames: dict[str, bytes]) -> None:
        self.number = number
        self.sock = socket.create_connection(("127.0.0.1", plan.port), timeout=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.sent = 0
        self.due_s = 0.0
        self._frames = frames
        self._kinds = plan.kinds
        self._under_way: deque[tuple[float, int, str]] = deque()
        self._received = b""

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    def send(self) -> None:
        kind = self._kinds[self.sent % len(self._kinds)]
        frame = self._frames[kind]
        correlation_id = self.sent
        id_ = _SIZE.pack(correlation_id)
        self.sock.sendall(frame[:_CORRELATION_AT] + id_ + frame[_CORRELATION_AT + 4 :])
        self._under_way.append((self.due_s, correlation_id, kind))
        self.sent += 1

    def receive(self, offset_s: float) -> list[Answer]:
        """The received answers; `offset_s` is how far the kernel's clock is ahead of the monotonic one."""
        data, ancillary, _, _ = self.sock.recvmsg(1 << 18, 64)
        if not data:
            raise SystemExit(f"connection {self.number} was closed")
        seconds, nanoseconds = next(
            (_TIMESPEC.unpack(value) for level, _, value in ancillary if level == socket.SOL_SOCKET)
        )
        at_s = seconds + nanoseconds / 1e9 - offset_s
        self._received += data
        found = []
        at = 0
        while len(self._received) - at >= 4:
            end = at + 4 + _SIZE.unpack_from(self._received, at)[0]
            if end > len(self._received):
                break
            due_s, correlation_id, kind = self._under_way.popleft()
            if _SIZE.unpack_from(self._received, at + 4)[0] != correlation_id:
                raise SystemExit(f"connection {self.number}: an answer out of order")
            throttle_ms = _SIZE.unpack_from(self._received, at + _THROTTLE_AT)[0]
            found.append(Answer(self.number, at_s, at_s - due_s, throttle_ms, kind))
            at = end
        self._received = self._received[at:]
        return found


def _first_answers(plan: Plan, frames: dict[str, bytes]) -> None:
    """Check one answer of each kind for errors, so that later counts are valid."""
    with socket.create_connection(("127.0.0.1", plan.port), timeout=60) as sock:
        for kind in plan.kinds:
            sock.sendall(frames[kind])
            size = sock.recv(4, socket.MSG_WAITALL)
            frame = size + sock.recv(_SIZE.unpack(size)[0], socket.MSG_WAITALL)
            api, version, _ = requests(plan.client_id)[kind]
            body = wire.decode_response(api, version, frame)
            codes = [
                getattr(each, "error_code", 0) for topic in body.topics for each in (topic, *topic.partitions)
            ]
            if any(codes):
                raise SystemExit(f"{api}: errors {codes}")


def _clock_offset_s() -> float:
    """The least of a few differences: the process may have to wait between the two readings of a difference."""
    return min(time.time() - time.monotonic() for _ in range(50))


def run(plan: Plan) -> None:
    """See the module."""
    made = requests(plan.client_id)
    frames = {
        kind: wire.request(made[kind].api, made[kind].version, client_id=plan.client_id, **made[kind].fields)
        for kind in plan.kinds
    }
    if not plan.seconds:
        _first_answers(plan, frames)
    every_s = 1 / plan.per_second
    connections = [_Connection(plan, number, frames) for number in range(plan.connections)]
    selector = selectors.DefaultSelector()
    for each in connections:
        selector.register(each.sock, selectors.EVENT_READ, each)
    print("ready", flush=True)
    if not plan.seconds:
        selector.register(sys.stdin, selectors.EVENT_READ)
    else:
        sys.stdin.readline()
    offset_s = _clock_offset_s()
    began_s = time.monotonic()
    end_s = began_s + plan.seconds if plan.seconds else float("inf")
    for each in connections:
        each.due_s = began_s + every_s * each.number / len(connections)
    answers: list[Answer] = []
    said_s = began_s
    while (now_s := time.monotonic()) < end_s:
        for each in connections:
            if each.due_s <= now_s and each.in_flight < plan.in_flight:
                each.send()
                each.due_s += every_s
        wake_s = min((each.due_s for each in connections if each.in_flight < plan.in_flight), default=end_s)
        for key, _ in selector.select(max(0.0, min(wake_s, end_s, now_s + 1) - time.monotonic())):
            if key.data is None:
                return
            answers += key.data.receive(offset_s)
        if not plan.seconds and now_s >= said_s + 1:
            print(json.dumps(answers), flush=True)
            answers, said_s = [], now_s
    sent = sum(each.sent for each in connections)
    print(json.dumps({"began_s": began_s, "sent": sent, "answers": answers}), flush=True)


if __name__ == "__main__":
    _given = json.loads(sys.argv[1])
    run(Plan(**_given | {"kinds": tuple(_given["kinds"])}))
