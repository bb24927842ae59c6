"""An OAuth token endpoint over HTTPS for tests. Its response is given as bytes, so it may be wrong in any way."""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

from testkit.certificates import KeyPair

SECRET: Final = "canary-of-client-9c41"
"""The gateway's secret for the endpoint. No output of the gateway may contain it."""

_LONGEST_S: Final = 60.0


def answer(body: bytes | dict[str, Any], status: str = "200 OK", *headers: str) -> bytes:
    """An HTTP response."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = (
        f"HTTP/1.1 {status}",
        f"Content-Length: {len(content)}",
        "Content-Type: application/json",
        *headers,
    )
    return "\r\n".join((*lines, "", "")).encode() + content


class TokenEndpoint:
    """Answers requests in threads; a context manager.

    Attributes:
        answers: makes the pieces of the next response; called in a thread.
        asked: the head and the form of each request.
        port: on 127.0.0.1.
    """

    def __init__(self, pair: KeyPair, answers: Callable[[], Iterable[bytes]]) -> None:
        """Starts to listen.

        Args:
            pair: certificate and key.
            answers: see the class.
        """
        self.answers = answers
        self.asked: list[tuple[str, str]] = []
        self.stopped = threading.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        endpoint = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.settimeout(_LONGEST_S)
                try:
                    with context.wrap_socket(self.request, server_side=True) as tls:
                        endpoint._answer(tls)
                except OSError:
                    pass  # the client has closed the connection

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        """Its URL."""
        return f"https://127.0.0.1:{self.port}/token"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def hang(self) -> Iterable[bytes]:
        """A response that never comes."""
        self.stopped.wait(_LONGEST_S)
        return ()

    def _answer(self, tls: ssl.SSLSocket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            received += _more(tls)
        head, _, body = received.partition(b"\r\n\r\n")
        sizes = (
            line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        size = int(next(sizes, b"0"))
        while len(body) < size:
            body += _more(tls)
        self.asked.append((head.decode(), body.decode()))
        for piece in self.answers():
            tls.sendall(piece)


def _more(tls: ssl.SSLSocket) -> bytes:
    data = tls.recv(65536)
    if not data:
        raise ConnectionError("the other side has closed")
    return data
