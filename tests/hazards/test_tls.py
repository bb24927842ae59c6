"""What TLS adds to the hazards of a peer, shown on the channel; listeners speak plaintext so far."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from gateway.channel import ClientChannel
from gateway.close_cause import CloseCause
from tests.support import broker as scripts
from tests.support import wire
from tests.support.broker import FETCH
from tests.support.gateway import broker_and_gateway
from tests.support.packages import require_package
from tests.support.raw_client import until

pytestmark = pytest.mark.asyncio


def server_context(folder: Path) -> ssl.SSLContext:
    """A context with a certificate made for this test."""
    openssl = require_package("openssl")
    command = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=localhost"
    subprocess.run([openssl, *command.split()], cwd=folder, check=True, capture_output=True, timeout=30)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def test_b09_client_that_never_reads_over_tls_is_cut_at_the_same_deadline(tmp_path: Path) -> None:
    """A TLS transport's close() would wait 30 s for the peer's goodbye; the channel must abort."""
    context = server_context(tmp_path)
    async with broker_and_gateway(write_timeout_ms=400) as (broker, running):
        broker.script(FETCH, scripts.huge(64 * 1024 * 1024))
        channels: list[ClientChannel] = []

        async def attach_tls(channel: ClientChannel, accepted: socket.socket) -> None:
            channels.append(channel)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: channel, accepted, ssl=context)

        running.listener._attach = attach_tls  # type: ignore[method-assign]
        trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", running.port, ssl=trusting, server_hostname="localhost", limit=8192
        )
        writer.write(wire.request("Fetch", 4, correlation_id=1, topics=[]))
        await running.ended_by(CloseCause.WRITE_TIMEOUT)
        # Ended means that the transport is gone too, not only that its end was asked for.
        await until(lambda: channels[0]._transport is None, seconds=2)
        assert not reader.at_eof()
        writer.transport.abort()
