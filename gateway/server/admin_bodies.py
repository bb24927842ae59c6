"""Long bodies on the admin port: read line by line and written row by row, in slices of the loop's time.

Only small texts are parsed. A JSON text of 30 MB may have ten million values, and parsing and freeing it would each
block the loop in one piece (hazard K21).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from gateway.runtime.slices import Slices
from gateway.server.admin_connections import AdminConnections

MAX_LINE_BYTES: Final = 128 * 1024
"""Enough for two names as long as Kafka's format allows, as text."""

_PIECE_BYTES: Final = 32 * 1024


class BodyTooLargeError(Exception):
    """A body or one of its lines is too large; the text names the limit."""


async def read_lines(
    request: web.Request, connections: AdminConnections, *, max_bytes: int, max_lines: int
) -> list[bytes]:
    """The lines of a body as bytes, not parsed, without blank lines.

    Args:
        request: its head was read.
        connections: keeps the deadline while this waits for the peer.
        max_bytes: the most bytes of the body.
        max_lines: the most lines that are not blank.

    Raises:
        BodyTooLargeError: the body is larger; the rest was not read.
        ConnectionError, OSError: the peer left, or took too long.
    """
    until = connections.deadline()
    lines: list[bytes] = []
    rest = b""
    total = 0
    slices = Slices(every=1)
    while True:
        with connections.waiting(request.protocol, until):
            data = await request.content.read(_PIECE_BYTES)
        total += len(data)
        if total > max_bytes:
            raise BodyTooLargeError(f"the body has more than {max_bytes} bytes")
        *whole, rest = (rest + data).split(b"\n") if data else (rest, b"")
        if max(map(len, (rest, *whole))) > MAX_LINE_BYTES:
            raise BodyTooLargeError(f"a line has more than {MAX_LINE_BYTES} bytes")
        lines += filter(bytes.strip, whole)
        if len(lines) > max_lines:
            raise BodyTooLargeError(f"there are more than {max_lines} lines")
        if not data:
            return lines
        if slices.over:
            await slices.next()


class RowWriter:
    """Writes responses with many rows. All responses together make one row at a time."""

    def __init__(self, connections: AdminConnections) -> None:
        """Nothing is written yet.

        Args:
            connections: keeps the deadline while a response waits for its peer.
        """
        self._connections = connections
        self._turn = asyncio.Lock()

    async def answer(
        self, request: web.Request, head: Mapping[str, Any], name: str, rows: Iterable[Any]
    ) -> web.StreamResponse:
        """Write ``{**head, name: [rows]}`` as JSON, within the deadline of the connection.

        Args:
            request: to be answered.
            head: few values.
            name: the key of the rows.
            rows: each is made only when it is written.
        """
        until = self._connections.deadline()
        response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
        text = f"{json.dumps(head)[:-1]}{', ' if head else ''}{json.dumps(name)}: ["
        left = iter(rows)
        first = True
        try:
            with self._connections.waiting(request.protocol, until):
                await response.prepare(request)
            while True:
                async with self._turn:
                    slices = Slices()
                    part: list[str] = []
                    for row in left:
                        part.append(json.dumps(row))
                        if slices.over:
                            break
                    # While the lock is kept, so that simultaneous responses share one slice.
                    await asyncio.sleep(0)
                text += ("" if first or not part else ", ") + ", ".join(part)
                first = first and not part
                if not part:
                    text += "]}"
                with self._connections.waiting(request.protocol, until):
                    await response.write(text.encode())
                if not part:
                    await response.write_eof()
                    break
                text = ""
        except ConnectionError:
            pass  # the peer left, or took too long
        return response
