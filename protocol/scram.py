"""The client's side of SCRAM (RFC 5802), for the gateway's own connections. Pure: the nonce is an argument.

Names and passwords are used unchanged, without SASLprep, as in Kafka. There is no channel binding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

from protocol.errors import MalformedBody
from protocol.sasl import Mechanism

MOST_ITERATIONS: Final = 1_000_000
"""The most iterations that a broker may require; they take about a second here."""

_HASHES: Final = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}
_GS2_HEADER: Final = "n,,"


class ScramClient:
    """One exchange: `first`, then `final` with the broker's first response, then `verify` with its last one."""

    def __init__(self, mechanism: Mechanism, user: str, password: str, *, nonce: str) -> None:
        """Start an exchange.

        Args:
            mechanism: SCRAM_SHA_256 or SCRAM_SHA_512.
            user: the user to log in.
            password: kept until the exchange has ended.
            nonce: printable, without a comma, never used before.
        """
        self._hash = _HASHES[mechanism]
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._password = password.encode()
        self._nonce = nonce
        self._bare = f"n={name},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """The first message."""
        return (_GS2_HEADER + self._bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """The message with the proof.

        Args:
            server_first: ``r=nonce,s=salt,i=iterations``.

        Raises:
            MalformedBody: the message cannot be read, has another nonce, or requires too many iterations.
        """
        fields = _fields(server_first)
        nonce, iterations = fields.get("r", ""), fields.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise MalformedBody("SCRAM: the server's nonce does not continue ours")
        # At most nine digits, because int() raises an error of its own for thousands of them.
        digits = iterations if iterations.isascii() and iterations.isdigit() else "0"
        if len(digits) > 9 or not 1 <= int(digits) <= MOST_ITERATIONS:
            raise MalformedBody(f"SCRAM: iterations not in 1..{MOST_ITERATIONS}")
        salted = hashlib.pbkdf2_hmac(
            self._hash, self._password, _decoded(fields.get("s", "")), int(iterations)
        )
        without_proof = f"c={base64.b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        signed = b",".join((self._bare.encode(), server_first, without_proof.encode()))
        client_key = self._mac(salted, b"Client Key")
        stored_key = self._digest(client_key)
        proof = bytes(a ^ b for a, b in zip(client_key, self._mac(stored_key, signed), strict=True))
        self._server_signature = self._mac(self._mac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check that the broker knows the password too.

        Args:
            server_final: ``v=signature``.

        Raises:
            MalformedBody: the signature is wrong or missing.
        """
        signature = _decoded(_fields(server_final).get("v", ""))
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise MalformedBody("SCRAM: the server could not prove that it knows the password")

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)

    def _digest(self, message: bytes) -> bytes:
        return hashlib.new(self._hash, message).digest()


def _fields(message: bytes) -> dict[str, str]:
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError as exc:
        raise MalformedBody("SCRAM: not ASCII") from exc
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise MalformedBody("SCRAM: bad base64") from exc
