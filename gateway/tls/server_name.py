"""Reads the host that a client names in its ClientHello (server_name, RFC 6066). Pure.

OpenSSL could report it too, but only during the handshake, perhaps in a thread, and with a traceback on standard
error for a name that is not ASCII. Reading the bytes needs no cryptography, so the name is known before a handshake
takes a place in the queue. OpenSSL itself does not use the name: no callback is set that could read a different one.
"""

from __future__ import annotations

from typing import Final

_RECORD_HEADER_BYTES: Final = 5
_FIXED_BYTES: Final = 4 + 2 + 32  # header of the message, version, random
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0


class MalformedHello(Exception):
    """The lengths in a hello contradict each other."""


def server_name(hello: bytes) -> bytes | None:
    """The host name in a hello; None: the hello has none.

    Args:
        hello: the whole hello, with the headers of its records; see `HelloWalk`.

    Raises:
        MalformedHello: the hello cannot be parsed up to the name.
    """
    message = _message(hello)
    at = _FIXED_BYTES
    for length_bytes in (1, 2, 1):  # session id, ciphers, compression
        _, at = _vector(message, at, length_bytes)
    if at == len(message):
        return None
    extensions, at = _vector(message, at, 2)
    if at != len(message):
        raise MalformedHello
    at = 0
    while at < len(extensions):
        kind = extensions[at : at + 2]
        body, at = _vector(extensions, at + 2, 2)
        if int.from_bytes(kind, "big") == _SERVER_NAME:
            return _host(body)
    return None


def normalised(name: bytes) -> str | None:
    """A name for comparison: in lower case, without a final dot; None if it is not ASCII."""
    return name.decode("ascii").lower().removesuffix(".") if name.isascii() else None


def _message(hello: bytes) -> bytes:
    """The handshake message without the headers of its records."""
    found = bytearray()
    at = 0
    while at < len(hello):
        header = hello[at : at + _RECORD_HEADER_BYTES]
        begin = at + _RECORD_HEADER_BYTES
        at = begin + int.from_bytes(header[3:], "big")
        found += hello[begin:at]
    end = 4 + int.from_bytes(found[1:4], "big")
    if len(found) < end:
        raise MalformedHello
    return bytes(found[:end])


def _vector(data: bytes, at: int, length_bytes: int) -> tuple[bytes, int]:
    """The content of a field with a length, and where it ends."""
    begin = at + length_bytes
    end = begin + int.from_bytes(data[at:begin], "big")
    if begin > len(data) or end > len(data):
        raise MalformedHello
    return data[begin:end], end


def _host(body: bytes) -> bytes:
    """The only name of the list: no client sends another kind, and OpenSSL accepts no second name."""
    names, end = _vector(body, 0, 2)
    if end != len(body) or not names or names[0] != _HOST_NAME:
        raise MalformedHello
    name, end = _vector(names, 1, 2)
    if end != len(names) or not name:
        raise MalformedHello
    return name
