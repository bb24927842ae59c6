"""A socket of the gateway's is a socket like any other, only quicker to ask."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.net.listening import PlainSocket
from testkit.packages import require_package


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_what_is_accepted_is_plain_and_works(family: socket.AddressFamily, host: str) -> None:
    with PlainSocket(family, socket.SOCK_STREAM) as listening:
        try:
            listening.bind((host, 0))
        except OSError:
            pytest.skip(f"no {family.name} here")
        listening.listen(1)
        listening.setblocking(False)
        with socket.create_connection(listening.getsockname()[:2]) as client:
            accepted, peer = listening.accept()
            with accepted:
                assert isinstance(accepted, PlainSocket)
                assert peer == client.getsockname()
                assert accepted.getblocking()
                assert (accepted.family, accepted.type) == (family, socket.SOCK_STREAM)
                assert type(accepted.family) is type(accepted.type) is int
                client.sendall(b"first")
                assert accepted.recv(100) == b"first"


_CONNECTIONS = """
import asyncio, socket
import uvloop
from gateway.net.listening import PlainSocket

async def main():
    loop = asyncio.get_running_loop()
    with PlainSocket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        for way in ("close", "abort", "peer") * 3:
            with socket.create_connection(listening.getsockname()) as client:
                accepted, _ = listening.accept()
                transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, accepted)
                if way == "peer":
                    client.close()
                else:
                    getattr(transport, way)()
                await asyncio.sleep(0.02)
                assert accepted.fileno() == -1, way

uvloop.run(main())
"""


@pytest.mark.slow
def test_descriptor_of_an_accepted_socket_is_closed_once(tmp_path: Path) -> None:
    # The loop hides what a second close comes to, and by then the number may be another thread's.
    require_package("strace")
    calls = tmp_path / "calls"
    command = ["strace", "-f", "-e", "trace=close", "-o", str(calls), sys.executable, "-c", _CONNECTIONS]
    subprocess.run(command, check=True, timeout=60)
    closes = calls.read_text(encoding="utf-8").splitlines()
    assert len(closes) > 18
    assert [line for line in closes if "EBADF" in line] == []
