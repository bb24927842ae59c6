"""What is kept of an answer for a client that reads slowly, counted in bytes."""

import asyncio
import fcntl
import socket
import sys

import pytest

from gateway.net import fitted_reads
from gateway.net.channel import ClientChannel
from gateway.net.fitted_reads import LEAST_READ_BYTES, MOST_READ_BYTES, MOST_UNSENT_BYTES
from testkit import broker as scripts
from testkit.broker import FETCH
from testkit.frames import fetch
from testkit.gateway import broker_and_gateway
from testkit.raw_client import settled, until

MIB = 1024 * 1024


@pytest.mark.parametrize("kernel", ["tells", "small buffer", "does not tell", "tells too much"])
async def test_a_slow_client_costs_one_small_read_and_a_fast_one_is_read_for_in_large_ones(
    monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    """A chunk lives for as long as any of it is unsent: then all of it counts."""
    send_buffer_bytes = 300_000 if kernel == "small buffer" else None
    held: list[int] = []
    reads: list[int] = []
    received = ClientChannel.upstream_received

    def watched(channel: ClientChannel, data: bytes) -> None:
        transport = channel._transport
        assert transport is not None
        before = transport.get_write_buffer_size()
        received(channel, data)
        reads.append(len(data))
        held.append(before + len(data) if transport.get_write_buffer_size() else 0)

    monkeypatch.setattr(ClientChannel, "upstream_received", watched)
    if kernel == "does not tell":
        monkeypatch.setattr(fitted_reads, "_SO_MEMINFO", 9_999)
    if kernel == "tells too much":
        monkeypatch.setattr(fitted_reads, "room_bytes", lambda client: 2 * MOST_READ_BYTES - 1)
    async with broker_and_gateway() as (broker, running):
        broker.script(FETCH, scripts.huge(12 * MIB))
        async with await running.connect(receive_buffer_bytes=65_536) as client:
            await until(lambda: bool(running.channels))
            transport = running.channels[0]._transport
            assert transport is not None
            if send_buffer_bytes is not None:
                transport.get_extra_info("socket").setsockopt(1, 7, send_buffer_bytes)  # SOL_SOCKET, SO_SNDBUF
            await client.send(fetch(1) + fetch(2))
            for _ in range(2):
                # It stands still till nothing more is read for it, then takes all.
                await settled(lambda: running.channels[0].session.bytes_from_upstream)
                still_at = len(reads)
                await client.receive_frame()
    first = next(at for at, size in enumerate(held) if size)
    large = [size for size in held[first + (kernel == "small buffer") :] if size > LEAST_READ_BYTES]
    # Where nothing is reported, one read behind each MiB that was taken whole may leave something.
    assert len(large) <= (sum(reads) // MIB if kernel == "does not tell" else 0)
    if kernel != "tells too much":
        assert max(reads[still_at:]) > 4 * LEAST_READ_BYTES, "the large reads did not come back"


async def test_the_kernel_keeps_no_more_for_a_client_that_stands_still_than_its_bound() -> None:
    async with broker_and_gateway() as (broker, running):
        broker.script(FETCH, scripts.huge(12 * MIB))
        async with await running.connect(receive_buffer_bytes=65_536) as client:
            await client.send(fetch(1))
            await until(lambda: bool(running.channels) and running.channels[0]._fitted)
            (channel,) = running.channels
            await settled(lambda: channel.session.bytes_from_upstream)
            transport = channel._transport
            assert transport is not None
            assert 0 < kept_unsent_bytes(transport) <= 1.1 * MOST_UNSENT_BYTES


def kept_unsent_bytes(transport: asyncio.Transport) -> int:
    """What the kernel has of it and did not send."""
    connection: socket.socket = transport.get_extra_info("socket")
    return int.from_bytes(fcntl.ioctl(connection.fileno(), 0x894B, bytes(4)), sys.byteorder)  # SIOCOUTQNSD
