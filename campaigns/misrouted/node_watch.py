"""Watches the bytes of client connections: which node a client named, and which node's records it got. Pure.

Every record of the topic `marked` contains the cluster and node on which it was written, and each partition has one
replica. So the watch finds every record that reaches a client on a connection to another node, in any message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocol.api_keys import ApiKey, describe
from protocol.api_versions import error_code_of, named_node
from protocol.error_codes import ErrorCode
from protocol.primitives import read_int16, read_int32

_MARK: Final = re.compile(rb"record of cluster=([\w-]+) node=(\d+);")
_LONGEST_MARK: Final = 80
_FIRST_VERSION_WITH_NODE: Final = 5
_MOST_BUFFERED: Final = 64 * 1024


class Node(NamedTuple):
    """A node of a cluster."""

    cluster_id: str
    node_id: int


def mark(node: Node) -> bytes:
    """The value of a marked record written on this node."""
    return f"record of cluster={node.cluster_id} node={node.node_id};".encode()


@dataclass(slots=True)
class Seen:
    """Results of all connections.

    Attributes:
        sent_back: client ids that got REBOOTSTRAP_REQUIRED.
        records: number of marked records that clients got.
        wrong: records that came on a connection to another node, each with the node that the client named.
        unnamed: client ids that connected to a broker's port and named no node. They cannot be judged.
        unnamed_records: number of marked records that they got there.
    """

    sent_back: set[str] = field(default_factory=set)
    records: int = 0
    wrong: list[tuple[Node, Node]] = field(default_factory=list)
    unnamed: set[str] = field(default_factory=set)
    unnamed_records: int = 0


class _FirstFrame:
    """Collects the first frame of a stream, whatever the chunks are."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.done = False

    def feed(self, data: bytes) -> bytes | None:
        """Add bytes; returns the frame once, when it is complete."""
        self._bytes += data
        if len(self._bytes) >= 4:
            end = 4 + read_int32(self._bytes, 0)[0]
            if len(self._bytes) >= end:
                self.done = True
                return bytes(self._bytes[:end])
        self.done = len(self._bytes) > _MOST_BUFFERED
        return None


class ConnectionWatch:
    """One connection of a client. Its first request is ApiVersions, with the names of KIP-1242 if it has any.

    Attributes:
        named: the node that the client wants to reach; None if it named none.
        client_id: client id of the first request.
    """

    def __init__(self, seen: Seen, *, bootstrap: bool = False) -> None:
        """Watch a connection.

        Args:
            seen: gets the results.
            bootstrap: whether it is on the bootstrap port, where clients name no node.
        """
        self._bootstrap = bootstrap
        self.named: Node | None = None
        self.client_id = ""
        self._seen = seen
        self._request = _FirstFrame()
        self._reply = _FirstFrame()
        self._tail = b""

    def from_client(self, data: bytes) -> None:
        """The next bytes of the client."""
        if self._request.done or (frame := self._request.feed(data)) is None:
            return
        key, at = read_int16(frame, 4)
        version, at = read_int16(frame, at)
        _, at = read_int32(frame, at)
        length, at = read_int16(frame, at)
        self.client_id = frame[at : at + max(length, 0)].decode()
        if key == ApiKey.API_VERSIONS and version >= _FIRST_VERSION_WITH_NODE:
            names = named_node(frame, describe(ApiKey.API_VERSIONS, version))
            self.named = None if names is None else Node(names[0].decode(), names[1])
            if names is None and not self._bootstrap:
                self._seen.unnamed.add(self.client_id)

    def to_client(self, data: bytes) -> None:
        """The next bytes for the client."""
        if not self._reply.done:
            frame = self._reply.feed(data)
            if frame is not None and error_code_of(frame) == ErrorCode.REBOOTSTRAP_REQUIRED:
                self._seen.sent_back.add(self.client_id)
        window = self._tail + data
        end = 0
        for found in _MARK.finditer(window):
            end = found.end()
            written = Node(found[1].decode(), int(found[2]))
            self._seen.records += 1
            if self.named is None:
                self._seen.unnamed_records += 1
            elif written != self.named:
                self._seen.wrong.append((written, self.named))
        self._tail = window[max(end, len(window) - _LONGEST_MARK) :]
