"""Whether a broker is ready: whether a client could create a topic through it now.

Two requests over one raw connection, so that nothing but the standard library is needed and nothing on the cluster
changes: Metadata (which brokers does it see alive?) and a CreateTopics that must fail with
INVALID_REPLICATION_FACTOR (it reached an active controller, which refuses it before any quota is charged).
"""

import socket
import struct
from typing import Final

_CREATE_TOPICS: Final = 19
_METADATA: Final = 3
_CLIENT_ID: Final = b"sluice-readiness"
_PROBE_TOPIC: Final = b"sluice-readiness-probe"
_TIMEOUT_S: Final = 5.0
_MAX_REPLY_BYTES: Final = 1 << 20
# With an authorizer, a refusal to a client without rights comes from the controller just the same.
_REACHED_CONTROLLER: Final = frozenset({38, 29, 31})


def ready(host: str, port: int, *, broker_ids: set[int]) -> bool:
    """Whether the broker at this address sees all these brokers alive and reaches the controller.

    Args:
        host: where it listens, a plaintext listener.
        port: where it listens.
        broker_ids: those that must be alive in its view of the cluster.

    Returns:
        False also when no process listens or the answer makes no sense: a starting broker does that.
    """
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
            alive = _alive_brokers(_ask(connection, _METADATA, 1, struct.pack(">i", 0)))
            if not broker_ids <= alive:
                return False
            code = _create_error(_ask(connection, _CREATE_TOPICS, 2, _impossible_topic(len(alive) + 1)))
            return code in _REACHED_CONTROLLER
    except (OSError, EOFError, struct.error):
        return False


def _impossible_topic(replication_factor: int) -> bytes:
    name = struct.pack(">h", len(_PROBE_TOPIC)) + _PROBE_TOPIC
    topic = name + struct.pack(">ihii", 1, replication_factor, 0, 0)
    return struct.pack(">i", 1) + topic + struct.pack(">i?", int(_TIMEOUT_S * 1000), True)


def _ask(connection: socket.socket, api_key: int, api_version: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api_key, api_version, api_key, len(_CLIENT_ID)) + _CLIENT_ID
    connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
    (size,) = struct.unpack(">i", _read(connection, 4))
    if not 4 <= size <= _MAX_REPLY_BYTES:
        raise EOFError
    return _read(connection, size)[4:]


def _read(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise EOFError
        received += chunk
    return bytes(received)


def _alive_brokers(reply: bytes) -> set[int]:
    (count,) = struct.unpack_from(">i", reply)
    at, found = 4, set()
    for _ in range(count):
        broker_id, host_bytes = struct.unpack_from(">ih", reply, at)
        at += 6 + host_bytes + 4
        (rack_bytes,) = struct.unpack_from(">h", reply, at)
        at += 2 + max(rack_bytes, 0)
        found.add(broker_id)
    return found


def _create_error(reply: bytes) -> int:
    _throttle_time_ms, _topics, name_bytes = struct.unpack_from(">iih", reply)
    (code,) = struct.unpack_from(">h", reply, 10 + name_bytes)
    return int(code)
