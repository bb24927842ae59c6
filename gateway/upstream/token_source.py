"""Gets OAuth tokens for the gateway's own login from a token endpoint, by client credentials (RFC 6749, 4.4).

A task gets the next token before the one in force expires, and waits longer after each failure. A failure leaves the
token in force until it expires. The endpoint's messages are not repeated: they may contain what was sent to it.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from urllib.parse import quote_plus

import aiohttp
import structlog
from aiohttp.connector import Connection

from gateway.upstream.secret_file import SecretFault, SecretFile, read_secret_text
from gateway.upstream.tokens import (
    MOST_RESPONSE_BYTES,
    Token,
    error_of_response,
    refresh_after_s,
    token_of_response,
)

_TIMEOUT_S: Final = 10.0
_MOST_CA_BYTES: Final = 4 * 1024 * 1024
_FIRST_AGAIN_S: Final = 0.5
_LAST_AGAIN_S: Final = 30.0
_LOOK_S: Final = 30.0
"""The interval of checks of the clock, which may be set while the task sleeps; a machine may sleep too."""

_log = structlog.get_logger("gateway.login")

Fetch: TypeAlias = Callable[[], Awaitable[Token]]
"""Gets a token, or raises ValueError with a text that shows no secret."""


class TokenEndpoint:
    """Requests tokens from an endpoint; see the module."""

    def __init__(
        self, url: str, *, ca: str | None, client_id: str, secret: SecretFile, scope: str | None
    ) -> None:
        """Nothing is sent yet.

        Args:
            url: of the endpoint, with https.
            ca: PEM file; None: the system's authorities. Read for each request.
            client_id, secret: the gateway's name and secret there.
            scope: of the token; None: the endpoint decides.
        """
        self._url = url
        self._ca = ca
        self._client_id = client_id
        self._secret = secret
        self._reading: asyncio.Future[ssl.SSLContext] | None = None
        self._form = {"grant_type": "client_credentials"} | ({} if scope is None else {"scope": scope})

    async def fetch(self) -> Token:
        """A new token.

        Raises:
            ValueError: the endpoint gives none; the text shows no secret.
        """
        secret = self._secret.text
        if secret is None:
            raise ValueError(self._secret.fault)
        pair = f"{quote_plus(self._client_id)}:{quote_plus(secret)}".encode()
        headers = {
            "Authorization": f"Basic {base64.b64encode(pair).decode()}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
        }
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                status, body = await self._ask(headers)
        except TimeoutError:
            raise ValueError(f"no answer within {_TIMEOUT_S:g} s") from None
        except aiohttp.ClientConnectorError as exc:
            raise ValueError(_connection_error(exc)) from None
        except (aiohttp.ClientError, ValueError):
            # Their texts may quote the response.
            raise ValueError("its answer is no proper HTTP, or broke off") from None
        except SecretFault as exc:  # of `ca`
            raise ValueError(str(exc)) from None
        if len(body) > MOST_RESPONSE_BYTES:
            raise ValueError(f"its answer has more than {MOST_RESPONSE_BYTES} bytes")
        if status != 200:
            raise ValueError(f"HTTP status {status} {error_of_response(body)}".rstrip())
        return token_of_response(body, now_s=time.time())

    async def _ask(self, headers: dict[str, str]) -> tuple[int, bytes]:
        # In a thread: the file system may be slow.
        reading = self._reading
        if reading is None or reading.done():
            reading = self._reading = asyncio.ensure_future(asyncio.to_thread(endpoint_context, self._ca))
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        # If a disk hangs, one thread waits, and not one per attempt: the process shares a few threads.
        context = await asyncio.shield(reading)
        transports: list[asyncio.Transport] = []

        class Response(aiohttp.ClientResponse):
            async def start(self, connection: Connection) -> aiohttp.ClientResponse:
                if connection.transport is not None:
                    transports.append(connection.transport)
                return await super().start(connection)

        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=context, force_close=True),
                    response_class=Response,
                    auto_decompress=False,
                ) as session,
                # The target of a redirect would get the secret.
                session.post(self._url, data=self._form, headers=headers, allow_redirects=False) as response,
            ):
                body = bytearray()
                while len(body) <= MOST_RESPONSE_BYTES and (chunk := await response.content.readany()):
                    body += chunk
                return response.status, bytes(body)
        finally:
            for each in transports:
                # A transport that is only closed waits for the TLS of the peer, which may never answer.
                each.abort()


def endpoint_context(ca: str | None) -> ssl.SSLContext:
    """The TLS context for a token endpoint. Blocks.

    Args:
        ca: PEM file with the authorities; None: the system's.

    Raises:
        SecretFault: the file is unusable.
    """
    authorities = None if ca is None else read_secret_text(ca, most_bytes=_MOST_CA_BYTES)
    try:
        # Comments between certificates may be in any language, but the library only accepts ASCII.
        return ssl.create_default_context(
            cadata=None if authorities is None else authorities.encode("ascii", "replace").decode()
        )
    except (ssl.SSLError, ValueError):
        raise SecretFault(f"{ca}: holds no PEM certificate") from None


def _connection_error(exc: aiohttp.ClientConnectorError) -> str:
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        # OpenSSL's message about a certificate, without names from it.
        return f"its certificate is not trusted: {getattr(exc.certificate_error, 'verify_message', '')}"
    if isinstance(exc, aiohttp.ClientConnectorSSLError):
        return "the TLS handshake failed"
    return os.strerror(exc.os_error.errno) if exc.os_error.errno else "no connection"


class TokenSource:
    """Keeps a token in force; see the module.

    Attributes:
        token: the last one; None: there was none yet.
        fault: why the last request got no token; None: it got one.
        reloads, failures: requests with and without a new token.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        upstream: str,
        wall_s: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Nothing is sent yet.

        Args:
            fetch: see `Fetch`.
            upstream: for the log.
            wall_s: seconds since 1970.
            sleep: waits for so many seconds.
            chance: a random number from 0 to 1.
        """
        self.token: Token | None = None
        self.fault: str | None = "no token yet"
        self.reloads = self.failures = 0
        self._fetch = fetch
        self._upstream = upstream
        self._wall_s = wall_s
        self._sleep = sleep
        self._chance = chance
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Get tokens from now on; returns when the first request was answered or has failed."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await self._asked.wait()

    async def stop(self) -> None:
        """Get no more tokens."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        again_s = _FIRST_AGAIN_S
        while True:
            began_s = self._wall_s()
            try:
                self.token = await self._fetch()
            except Exception as exc:  # noqa: BLE001  (no other task gets tokens)
                # Only the texts of ValueErrors are made to be shown.
                fault = str(exc) if isinstance(exc, ValueError) else type(exc).__name__
                self.failures += 1
                if fault != self.fault:
                    _log.error("login_token_not_refreshed", upstream=self._upstream, fault=fault)
                self.fault = fault
                self._asked.set()
                await self._sleep(again_s * (0.75 + self._chance() / 2))
                again_s = min(2 * again_s, _LAST_AGAIN_S)
                continue
            again_s = _FIRST_AGAIN_S
            self.reloads += 1
            expires_s = self.token.expires_s
            assert expires_s is not None  # endpoints' tokens have an end
            if self.fault is not None:
                _log.info("login_token_refreshed", upstream=self._upstream, expires_s=int(expires_s))
            self.fault = None
            self._asked.set()
            due_s = began_s + refresh_after_s(expires_s - began_s, self._chance())
            # A token without any lifetime must not cause a loop without a pause.
            await self._sleep(_FIRST_AGAIN_S)
            while (left_s := due_s - self._wall_s()) > 0:
                await self._sleep(min(left_s, _LOOK_S))
