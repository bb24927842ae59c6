"""The gateway's own login to brokers with SASL ([upstream.sasl]), for its own requests only.

`BrokerLogin` has the credentials in force: files are checked for changes, tokens are refreshed before they expire.
Discovery logs in with it here; librdkafka takes the same credentials (`librdkafka.py`). Errors contain the broker's
message, never what the gateway sent.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from config.sections.upstream import UpstreamSasl
from gateway.upstream.secret_file import SecretFault, SecretFile
from gateway.upstream.token_source import TokenEndpoint, TokenSource, endpoint_context
from gateway.upstream.tokens import Token, token_of
from protocol import sasl
from protocol.api_keys import ApiKey, describe
from protocol.error_codes import ErrorCode
from protocol.sasl import AuthenticateReply, Mechanism
from protocol.scram import ScramClient

Ask: TypeAlias = Callable[[bytes], Awaitable[bytes]]
"""Sends a request frame and returns the reply frame, or raises ConnectionError."""

_AUTHENTICATE: Final = describe(ApiKey.SASL_AUTHENTICATE, 1)
_CORRELATION_ID: Final = 1
_LONGEST_TEXT: Final = 200
_NONCE_BYTES: Final = 24
_TELLING: Final = 8
"""A broker's message is not repeated if it has so many characters of a secret, or all of a shorter secret."""


class LoginFailed(ConnectionError):
    """The brokers refuse the gateway's login."""


class NoCredentials(LoginFailed):
    """The gateway has no usable password or token now."""


class BrokerLogin:
    """The gateway's credentials at one upstream; a `FileUser`.

    Attributes:
        mechanism: of SASL.
        files: with the secrets.
        tokens: gets tokens from the token endpoint; None: there is no token endpoint.
    """

    def __init__(self, section: UpstreamSasl, *, upstream: str, path: str, client_id: str) -> None:
        """Read the files; a file that is unusable now is read again later.

        Args:
            section: valid.
            upstream: its name, for the log.
            path: of the section with `sasl`, such as ``upstream``.
            client_id: of the requests.
        """
        self.mechanism: Final = Mechanism(section.mechanism)
        self.user = section.username or ""
        self.tokens: TokenSource | None = None
        self._client_id = client_id
        self._path = path
        self._ca = section.token_endpoint_ca
        ((key, file),) = section.secret_files.items()
        by_token = section.token_file is not None
        self._secret = SecretFile(
            f"{path}.sasl.{key}", file, self._check_token if by_token else lambda text: None
        )
        self.files: Final = (self._secret,)
        if section.token_endpoint is not None and section.client_id is not None:
            endpoint = TokenEndpoint(
                section.token_endpoint,
                ca=section.token_endpoint_ca,
                client_id=section.client_id,
                secret=self._secret,
                scope=section.scope,
            )
            self.tokens = TokenSource(endpoint.fetch, upstream=upstream)
        self._sources: tuple[SecretFile | TokenSource, ...] = (
            self.files if self.tokens is None else (*self.files, self.tokens)
        )

    @classmethod
    def of(
        cls, section: UpstreamSasl | None, *, upstream: str, path: str, client_id: str
    ) -> BrokerLogin | None:
        """The login of a configuration; None: it has none."""
        return None if section is None else cls(section, upstream=upstream, path=path, client_id=client_id)

    @staticmethod
    def _check_token(text: str) -> None:
        token_of(text, now_s=time.time())

    def faults(self) -> list[str]:
        """Unusable files, by their keys. Blocks."""
        found = [f"{each.key}: {each.fault}" for each in self.files if each.fault is not None]
        try:
            if self._ca is not None:
                endpoint_context(self._ca)
        except SecretFault as exc:
            found.append(f"{self._path}.sasl.token_endpoint_ca: {exc}")
        return found

    async def start(self) -> None:
        """Get tokens from now on; returns when the first request was answered or has failed."""
        if self.tokens is not None:
            await self.tokens.start()

    async def stop(self) -> None:
        """Get no more tokens."""
        if self.tokens is not None:
            await self.tokens.stop()

    def reload(self, *, only_if_changed: bool, by: str) -> bool:
        """See `FileUser`."""
        return self._secret.reload(only_if_changed=only_if_changed, by=by)

    def password(self) -> str:
        """The password in force. In any thread.

        Raises:
            NoCredentials: there is none.
        """
        if self._secret.text is None:
            raise NoCredentials(f"{self._secret.key}: {self._secret.fault}")
        return self._secret.text

    def token(self) -> Token:
        """The token in force. In any thread.

        Raises:
            NoCredentials: there is none, or it has expired.
        """
        now_s = time.time()
        if self.tokens is not None:
            token, fault = self.tokens.token, self.tokens.fault
            if token is None or not token.usable(now_s):
                raise NoCredentials(f"no token that is valid: token endpoint: {fault or 'asked again now'}")
            return token
        text = self.password()
        try:
            return token_of(text, now_s=now_s)
        except ValueError as exc:
            raise NoCredentials(f"{self._secret.key}: {exc}") from None

    @property
    def refreshes(self) -> int:
        """How often there were new credentials since the start."""
        return sum(each.reloads for each in self._sources)

    @property
    def failures(self) -> int:
        """How often new credentials could not be read or fetched."""
        return sum(each.failures for each in self._sources)

    @property
    def last_refresh_failed(self) -> bool:
        """Whether the credentials in force are older than they should be, or missing."""
        return any(each.fault is not None for each in self._sources)

    def expires_s(self) -> float | None:
        """The end of the token in force, in seconds since 1970; None: there is no token, or its end is not known."""
        if self.mechanism is not Mechanism.OAUTHBEARER:
            return None
        try:
            return self.token().expires_s
        except NoCredentials:
            return None

    async def log_in(self, ask: Ask) -> None:
        """Log in on a new connection.

        Args:
            ask: see `Ask`.

        Raises:
            LoginFailed: the broker refuses, or there are no credentials (`NoCredentials`).
            ConnectionError: the connection ended meanwhile.
            ProtocolError: a reply cannot be read, or the broker could not prove that it knows the password.
        """
        secret = self.token().text if self.mechanism is Mechanism.OAUTHBEARER else self.password()
        reply = await ask(sasl.handshake_request(self.mechanism, _CORRELATION_ID, self._client_id))
        if (error_code := sasl.read_handshake_error(reply)) != ErrorCode.NONE:
            raise LoginFailed(f"login: the broker does not take {self.mechanism} (error {error_code})")
        if self.mechanism is Mechanism.PLAIN:
            await self._send(ask, f"\0{self.user}\0{secret}".encode(), secret)
        elif self.mechanism is Mechanism.OAUTHBEARER:
            refusal = await self._send(ask, f"n,,\x01auth=Bearer {secret}\x01\x01".encode(), secret)
            if refusal.auth_bytes:
                # The reason for the refusal; after this answer the broker ends the exchange (RFC 7628, 3.2.3).
                await self._send(ask, b"\x01", secret)
                raise LoginFailed("login by token: the broker refuses the token")
        else:
            await self._scram(ask, secret)

    async def _scram(self, ask: Ask, password: str) -> None:
        scram = ScramClient(self.mechanism, self.user, password, nonce=secrets.token_urlsafe(_NONCE_BYTES))
        challenge = await self._send(ask, scram.first(), password)
        # In a thread: the broker chooses the number of hash rounds, which may take up to a second.
        proof = await asyncio.to_thread(scram.final, challenge.auth_bytes)
        signature = await self._send(ask, proof, password)
        scram.verify(signature.auth_bytes)

    async def _send(self, ask: Ask, message: bytes, secret: str) -> AuthenticateReply:
        frame = await ask(sasl.authenticate_request(message, _CORRELATION_ID, self._client_id))
        reply = sasl.read_authenticate_reply(frame, _AUTHENTICATE)
        if reply.error_code != ErrorCode.NONE:
            said = sasl.read_error_message(frame, _AUTHENTICATE)[:_LONGEST_TEXT]
            if not said or _shows(said, secret):
                said = f"error {reply.error_code}"
            raise LoginFailed(f"login {f'as {self.user}' if self.user else 'by token'}: {said}")
        return reply


def _shows(text: str, secret: str) -> bool:
    length = min(_TELLING, len(secret))
    return any(text[at : at + length] in secret for at in range(len(text) - length + 1))
