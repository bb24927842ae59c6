"""A Kafka client with one socket, which sends exactly the wanted messages in the wanted versions and times responses.

`testkit.wire` encodes and decodes the messages, thus kafka-python and never our own code.
"""

from __future__ import annotations

import itertools
import socket
import time
from dataclasses import dataclass
from struct import unpack
from types import TracebackType
from typing import Any, Self

from testkit import wire


class ConnectionEnded(Exception):
    """The other side closed or reset the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One response.

    Attributes:
        body: kafka-python's message.
        frame: the bytes it was decoded from, including the size.
        sent_ms: when the request had been handed to the kernel, on this process's monotonic clock.
        received_ms: when its last byte had arrived, on the same clock.
    """

    body: Any
    frame: bytes
    sent_ms: float
    received_ms: float

    @property
    def elapsed_ms(self) -> float:
        """Time from the request to the response."""
        return self.received_ms - self.sent_ms


@dataclass(frozen=True, slots=True)
class _Sent:
    name: str
    version: int
    correlation_id: int
    sent_ms: float


class WireClient:
    """One connection. Requests may be pipelined; responses are received in their order.

    Attributes:
        local_port: the client's port.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        client_id: str | None = "wire-client",
        timeout_s: float = 30,
        source: str = "",
    ) -> None:
        """Connects.

        Args:
            address: host and port.
            client_id: used in every request without one of its own.
            timeout_s: the longest wait for a response.
            source: the local address; None: chosen by the kernel.
        """
        self._client_id = client_id
        self._socket = socket.create_connection(address, timeout=timeout_s, source_address=(source, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.local_port: int = self._socket.getsockname()[1]
        self._correlation_ids = itertools.count(1)
        self._sent: list[_Sent] = []

    def send(self, name: str, version: int, **fields: Any) -> None:
        """Sends one request without waiting.

        Args:
            name: the API as kafka-python spells it: "CreateTopics".
            version: of the request.
            fields: of its body.
        """
        correlation_id = next(self._correlation_ids)
        frame = wire.request(
            name, version, correlation_id=correlation_id, client_id=self._client_id, **fields
        )
        self._socket.sendall(frame)
        self._sent.append(_Sent(name, version, correlation_id, now_ms()))

    def receive(self) -> Reply:
        """The response to the oldest unanswered request.

        Raises:
            ConnectionEnded: the connection has ended.
            TimeoutError: no response arrived in time.
        """
        sent = self._sent.pop(0)
        size = self._read(4)
        frame = size + self._read(unpack(">i", size)[0])
        received_ms = now_ms()
        assert wire.correlation_id_of(frame) == sent.correlation_id
        body = wire.decode_response(sent.name, sent.version, frame)
        return Reply(body, frame, sent.sent_ms, received_ms)

    def ask(self, name: str, version: int, **fields: Any) -> Reply:
        """Sends one request and waits for its response."""
        self.send(name, version, **fields)
        return self.receive()

    def send_bytes(self, data: bytes) -> None:
        """Sends bytes that are not a request, or a request that kafka-python cannot encode."""
        self._socket.sendall(data)

    def receive_frame(self) -> bytes:
        """One response frame, not decoded.

        Raises:
            ConnectionEnded: the connection has ended.
        """
        size = self._read(4)
        return size + self._read(unpack(">i", size)[0])

    def half_close(self) -> None:
        """Sends the end of the stream; responses can still be received."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                more = self._socket.recv(count - len(data))
            except ConnectionResetError as exc:
                raise ConnectionEnded("reset") from exc
            if not more:
                raise ConnectionEnded("closed")
            data += more
        return bytes(data)


def now_ms() -> float:
    """This process's monotonic clock."""
    return time.monotonic_ns() / 1e6
