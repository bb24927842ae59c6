"""A TLS client on OpenSSL itself, in memory, for key updates, which Python's `ssl` does not offer."""

from __future__ import annotations

import ctypes
import ctypes.util
from typing import Any, Final

import pytest

from testkit.packages import require_package

_WANT_READ: Final = 2
_PENDING: Final = 10  # BIO_CTRL_PENDING


class OpensslClient:
    """`take` returns bytes for the server, and `give` takes the server's bytes. Trusts any certificate."""

    def __init__(self) -> None:
        """Loads the library; skips the calling test if it is missing."""
        require_package("openssl")
        names = [ctypes.util.find_library(name) for name in ("ssl", "crypto")]
        if None in names:
            pytest.skip("missing libssl; install with: apt-get install openssl")
        self._ssl, self._crypto = (ctypes.CDLL(name) for name in names if name)
        for function in ("SSL_CTX_new", "TLS_client_method", "SSL_new"):
            getattr(self._ssl, function).restype = ctypes.c_void_p
        for function in ("BIO_new", "BIO_s_mem"):
            getattr(self._crypto, function).restype = ctypes.c_void_p
        self._context = self._pointer(self._ssl.SSL_CTX_new(self._pointer(self._ssl.TLS_client_method())))
        self._tls = self._pointer(self._ssl.SSL_new(self._context))
        self._in, self._out = (self._memory() for _ in range(2))
        self._ssl.SSL_set_bio(self._tls, self._in, self._out)
        self._ssl.SSL_set_connect_state(self._tls)

    @staticmethod
    def _pointer(value: Any) -> ctypes.c_void_p:
        assert value
        return ctypes.c_void_p(value)

    def _memory(self) -> ctypes.c_void_p:
        return self._pointer(self._crypto.BIO_new(self._pointer(self._crypto.BIO_s_mem())))

    def shake_hands(self) -> bool:
        """Does one step of the handshake. Returns whether it is complete."""
        result = self._ssl.SSL_do_handshake(self._tls)
        if result != 1:
            assert self._ssl.SSL_get_error(self._tls, result) == _WANT_READ
        return bool(result == 1)

    def give(self, data: bytes) -> None:
        """Takes bytes from the server."""
        if data:
            assert self._crypto.BIO_write(self._in, data, len(data)) == len(data)

    def take(self) -> bytes:
        """The bytes for the server."""
        size = self._crypto.BIO_ctrl(self._out, _PENDING, 0, None)
        buffer = ctypes.create_string_buffer(max(size, 1))
        self._crypto.BIO_read(self._out, buffer, size)
        return buffer.raw[:size]

    def write(self, data: bytes) -> None:
        """Encrypts data."""
        assert self._ssl.SSL_write(self._tls, data, len(data)) == len(data)

    def update_keys(self, *, ask_peer: bool) -> None:
        """Changes the keys, and with `ask_peer` requests that the server changes its own."""
        assert self._ssl.SSL_key_update(self._tls, int(ask_peer)) == 1
        self._ssl.SSL_do_handshake(self._tls)

    def free(self) -> None:
        """Frees all memory."""
        self._ssl.SSL_free(self._tls)
        self._ssl.SSL_CTX_free(self._context)
