"""TLS: records that are cut, damaged, sent twice or made up, before, in and behind a handshake.

Keys and random numbers differ from run to run, and are never looked at: what is said of a connection is what its
server did, and what came out of it.
"""

from __future__ import annotations

import atexit
import shutil
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Final

from gateway.tls.records import HelloWalk, RecordWalk
from testkit.tls import Pki
from testkit.tls_conversation import TlsServer
from tests.fuzz.both_cores.conversations import FAILED, Say, told

_SIZES: Final = (0, 1, 5, 100, 16_384, 16_640, 65_535)
_HEADER_BYTES: Final = 5
_RANDOM_AT: Final = 11  # of a ClientHello: behind the headers of record and message, and the version
_KEY_SHARE: Final = 51


@cache
def _folder() -> str:
    folder = mkdtemp(prefix="sluice-tls-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _pki() -> Pki:
    return Pki(Path(_folder()))


def forget_certificates() -> None:
    """Remove their folder before the process ends; the next connection makes another."""
    if _pki.cache_info().currsize:
        shutil.rmtree(_folder())
        _pki.cache_clear()
        _folder.cache_clear()


# -- without OpenSSL -----------------------------------------------------------------------------------------
def _walk_records(dice: Random, say: Say) -> None:
    data = b""
    for _ in range(dice.randrange(1, 12)):
        size = dice.choice((*_SIZES, dice.randrange(400)))
        data += bytes((dice.choice((20, 21, 22, 23, 255)), 3, 3)) + size.to_bytes(2, "big") + bytes(min(size, 900))
    walk = RecordWalk(dice.choice((0, 0, 3)))
    at = 0
    while at < len(data):
        end = min(len(data), at + dice.choice((1, 3, 5, 6, 100, 4_000)))
        say(f"{walk.count(memoryview(data)[at:end])} {walk.first} {walk.skip}")
        at = end


def _hello(dice: Random) -> bytes:
    """A ClientHello of this OpenSSL, with random numbers of the dice."""
    server = TlsServer(_pki())
    with suppress(ssl.SSLWantReadError):
        server.client.do_handshake()
    hello = bytearray(server.client_sent())
    hello[_RANDOM_AT : _RANDOM_AT + 32] = dice.randbytes(32)
    at = _RANDOM_AT + 32
    hello[at + 1 : at + 1 + hello[at]] = dice.randbytes(hello[at])
    at += 1 + hello[at]
    at += 2 + int.from_bytes(hello[at : at + 2], "big")
    at += 1 + hello[at] + 2  # compression methods, the length of all extensions
    while at < len(hello):
        kind, size = int.from_bytes(hello[at : at + 2], "big"), int.from_bytes(hello[at + 2 : at + 4], "big")
        if kind == _KEY_SHARE:
            hello[at + 10 : at + 4 + size] = dice.randbytes(size - 6)
        at += 4 + size
    return bytes(hello)


def _damaged(dice: Random, data: bytes) -> bytes:
    """Damage of a kind whose effect does not hang on what is encrypted."""
    out = bytearray(data)
    chance = dice.randrange(8)
    if not out or chance == 0:
        return bytes(out)
    if chance == 1:
        out[0] = dice.choice((0, 20, 21, 22, 23, 24, 71, 128, 255))
    elif chance == 2:
        out[1] = dice.choice((0, 2, 4, 255))
    elif chance == 3:
        out[3:5] = dice.choice((0, 1, 16_384, 16_641, 65_535)).to_bytes(2, "big")
    elif chance == 4:
        out[-1] ^= 1
    elif chance == 5:
        del out[-dice.randrange(1, len(out) + 1) :]
    elif chance == 6:
        out[:0] = bytes((dice.choice((20, 21, 22, 23)), 3, 3, 0, 2)) + b"\1\0"
    else:
        out *= 2
    return bytes(out)


def _look_at_hello(dice: Random, say: Say) -> None:
    hello = _hello(dice)
    if dice.random() < 0.5:  # in several records
        cut = dice.randrange(6, len(hello))
        head = hello[:3]
        first, second = hello[5:cut], hello[cut:]
        hello = head + len(first).to_bytes(2, "big") + first + head + len(second).to_bytes(2, "big") + second
    hello = bytearray(_damaged(dice, hello))
    for _ in range(dice.choice((0, 0, 1, 3))):
        if hello:
            hello[dice.randrange(min(len(hello), 50))] = dice.choice((0, 1, 3, 22, 64, 255))
    walk, end = HelloWalk(), 0
    while end < len(hello):
        end = min(len(hello), end + dice.choice((1, 4, 5, 9, 200, 600)))
        found = walk.look(bytes(hello[:end]))
        say(found.name)
        if found.name != "PART":
            break
    server = TlsServer(_pki())
    _try(say, partial(server.deliver, bytes(hello), pieces=dice.choice((0, 1, 7))))
    _say_server(server, say)


# -- with it -------------------------------------------------------------------------------------------------
def _try(say: Say, step: Callable[[], object]) -> None:
    try:
        step()
    except Exception as exc:  # noqa: BLE001  (what is looked for)
        say(f"{FAILED}{type(exc).__name__}: {exc}")


def _say_server(server: TlsServer, say: Say) -> None:
    user, socket = server.user, server.socket
    say(
        f"received {told(bytes(user.received))} in {len(user.chunks)} said {user.said} hellos {server.hellos}"
        f" failed {[each.name for each in server.failures]} reading {socket.reading} ended {socket.ended!r}"
        f" closing {server.transport.is_closing()}"
    )


def _records_of(data: bytes) -> list[bytes]:
    found = []
    while data:
        end = _HEADER_BYTES + int.from_bytes(data[3:5], "big")
        found.append(data[:end])
        data = data[end:]
    return found


def _shake_hands(server: TlsServer, dice: Random, say: Say) -> bool:
    """Whether the handshake came to its end; in one of four something of the client's is damaged."""
    spoiled = dice.randrange(12)
    for turn in range(4):
        try:
            server.client.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        except ssl.SSLError:
            return False
        flight = server.client_sent()
        if turn == spoiled:
            flight = b"".join(_damaged(dice, record) for record in _records_of(flight))
        _try(say, partial(server.deliver, flight, pieces=dice.choice((0, 0, 1, 50))))
        if server.waits:
            _try(say, server.transport.proceed)
            server.loop.turn_once()
        server.arrive(said=bytes(server.socket.sent))
        server.socket.sent.clear()
        if done:
            return not server.failures
    return False


def _talk(dice: Random, say: Say) -> None:
    newest = dice.choice((ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2))
    server = TlsServer(_pki(), waits=dice.random() < 0.2, refuses=dice.random() < 0.1, newest=newest)
    ready = _shake_hands(server, dice, say)
    _say_server(server, say)
    for _ in range(dice.choice((0, 4, 12)) if ready else 1):
        action = dice.choice(("send", "send", "send", "write", "pause", "resume", "time", "eof", "turn", "close"))
        transport = server.transport
        if action == "send" and ready:
            sent = server.encrypted(dice.choice((b"x", b"y" * 300, b"z" * 40_000)))
            records = _records_of(sent)
            if dice.random() < 0.2:
                at = dice.randrange(len(records))
                records[at] = _damaged(dice, records[at])
            if dice.random() < 0.1:
                dice.shuffle(records)
            if not server.socket.ended:
                _try(say, partial(server.deliver, b"".join(records), pieces=dice.choice((0, 1_000, 4_000, 20_000))))
        elif action == "write":
            _try(say, partial(transport.write, dice.choice((b"", b"a" * 100, b"b" * 70_000))))
        elif action == "pause":
            _try(say, transport.pause_reading)
        elif action == "resume":
            _try(say, transport.resume_reading)
        elif action == "time":
            _try(say, partial(server.loop.advance, dice.choice((1, 5_000, 11_000))))
        elif action == "eof" and dice.random() < 0.3:
            _try(say, transport.eof_received)
        elif action == "close" and dice.random() < 0.3:
            _try(say, dice.choice((transport.close, transport.abort, transport.write_eof)))
        elif action == "turn":
            server.loop.turn_once()
        _say_server(server, say)
    _try(say, partial(server.transport.connection_lost, None))
    _say_server(server, say)


def speak_tls(dice: Random, say: Say) -> None:
    """One connection, or what is looked at of one without OpenSSL."""
    dice.choice((_walk_records, _look_at_hello, _talk, _talk))(dice, say)
