"""A minimal TLS server, to measure `ssl` itself: `python -m benchmarks.tls.bare_server PORT CERTIFICATE KEY`.

It has uvloop, memory BIOs and the TLS settings of the gateway's listeners. It has no quotas, metrics, deadlines or
broker. No server in Python with the standard library's TLS can have cheaper handshakes.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from typing import cast

import uvloop


class Shaker(asyncio.Protocol):
    """Completes the handshake and then reads nothing."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._transport: asyncio.Transport | None = None
        self._done = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ready."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Continue the handshake with a flight of the client."""
        if self._done or self._transport is None:
            return
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
            self._done = True
        except ssl.SSLWantReadError:
            pass
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())


async def serve(port: int, certificate: str, key: str) -> None:
    """Serve until the process is killed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.num_tickets = 1
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Shaker(context), "127.0.0.1", port, backlog=512)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
