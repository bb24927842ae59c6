"""The gateway's own login to brokers with SASL ([upstream.sasl]), for its own requests only.

The password is read from its file at each login and kept no longer than that, so a new one needs no restart and
no dump of the process shows it for long. Errors say what the broker said, never what we sent.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from config.sections.upstream import UpstreamSasl
from protocol import sasl
from protocol.api_keys import ApiKey, describe
from protocol.error_codes import ErrorCode
from protocol.sasl import AuthenticateReply, Mechanism
from protocol.scram import ScramClient

Ask: TypeAlias = Callable[[bytes], Awaitable[bytes]]
"""Sends a request frame and returns the reply frame, or raises ConnectionError."""

_AUTHENTICATE: Final = describe(ApiKey.SASL_AUTHENTICATE, 1)
_CORRELATION_ID: Final = 1
_MOST_PASSWORD_BYTES: Final = 64 * 1024
_LONGEST_TEXT: Final = 200
_NONCE_BYTES: Final = 24


class LoginFailed(ConnectionError):
    """The brokers do not let the gateway in, or its password cannot be read."""


@dataclass(frozen=True, slots=True)
class BrokerLogin:
    """The gateway's credentials at one upstream.

    Attributes:
        mechanism: PLAIN or one of SCRAM's.
        user: name.
        password_file: see the module.
        client_id: of the requests.
    """

    mechanism: Mechanism
    user: str
    password_file: Path
    client_id: str

    @classmethod
    def of(cls, section: UpstreamSasl | None, *, client_id: str) -> BrokerLogin | None:
        """From the configuration; None when it has none."""
        if section is None:
            return None
        return cls(Mechanism(section.mechanism), section.username, Path(section.password_file), client_id)

    async def log_in(self, ask: Ask) -> None:
        """Go through the exchange on a new connection.

        Args:
            ask: see `Ask`.

        Raises:
            LoginFailed: see there.
            ConnectionError: the connection ended in between.
            ProtocolError: a reply cannot be read, or the broker could not prove that it knows the password.
        """
        password = read_password(self.password_file)
        reply = await ask(sasl.handshake_request(self.mechanism, _CORRELATION_ID, self.client_id))
        if (error_code := sasl.read_handshake_error(reply)) != ErrorCode.NONE:
            raise LoginFailed(f"login: the broker does not take {self.mechanism} (error {error_code})")
        if self.mechanism is Mechanism.PLAIN:
            await self._send(ask, f"\0{self.user}\0{password}".encode())
            return
        scram = ScramClient(self.mechanism, self.user, password, nonce=secrets.token_urlsafe(_NONCE_BYTES))
        challenge = await self._send(ask, scram.first())
        # A thread: the broker says how many rounds of hashing it takes, up to a second of them.
        proof = await asyncio.to_thread(scram.final, challenge.auth_bytes)
        signature = await self._send(ask, proof)
        scram.verify(signature.auth_bytes)

    async def _send(self, ask: Ask, message: bytes) -> AuthenticateReply:
        frame = await ask(sasl.authenticate_request(message, _CORRELATION_ID, self.client_id))
        reply = sasl.read_authenticate_reply(frame, _AUTHENTICATE)
        if reply.error_code != ErrorCode.NONE:
            said = sasl.read_error_message(frame, _AUTHENTICATE)[:_LONGEST_TEXT]
            raise LoginFailed(f"login as {self.user}: {said or f'error {reply.error_code}'}")
        return reply


def read_password(file: Path) -> str:
    """What is in a password file, without the line end.

    Raises:
        LoginFailed: it cannot be read, or there is nothing in it.
    """
    try:
        with file.open("rb") as opened:
            raw = opened.read(_MOST_PASSWORD_BYTES)
        password = raw.decode("utf-8").rstrip("\r\n")
    except OSError as exc:
        raise LoginFailed(f"password file {file}: {exc.strerror}") from None
    except UnicodeDecodeError:
        # The exception holds the bytes: it must not be the cause of ours.
        raise LoginFailed(f"password file {file}: not UTF-8") from None
    if not password or "\0" in password:
        raise LoginFailed(f"password file {file}: {'holds a NUL' if password else 'is empty'}")
    return password
