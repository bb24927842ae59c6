"""A socket of the gateway's is a socket like any other, only quicker to ask."""

import socket

import pytest

from gateway.net.listening import ListeningSocket


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_what_is_accepted_is_plain_and_works(family: socket.AddressFamily, host: str) -> None:
    with ListeningSocket(family) as listening:
        try:
            listening.bind((host, 0))
        except OSError:
            pytest.skip(f"no {family.name} here")
        listening.listen(1)
        listening.setblocking(False)
        with socket.create_connection(listening.getsockname()[:2]) as client:
            accepted, peer = listening.accept()
            try:
                assert not isinstance(accepted, socket.socket)
                assert peer == client.getsockname()
                assert accepted.getblocking()
                assert (accepted.family, accepted.type) == (family, socket.SOCK_STREAM)
                assert type(accepted.family) is type(accepted.type) is int
                client.sendall(b"first")
                assert accepted.recv(100) == b"first"
            finally:
                accepted.close()
