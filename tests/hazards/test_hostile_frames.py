"""Hazards A: frames that are wrong, sent over real sockets. What each module makes of them is tested with it."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack

import pytest

from gateway.net.channel import ClientChannel
from gateway.observability.events import CloseCause
from testkit import broker as scripts
from testkit import wire
from testkit.broker import EVERY_API, FETCH, ScriptedBroker
from testkit.frames import fetch
from testkit.gateway import RunningGateway, broker_and_gateway, gateway_process
from testkit.raw_client import RawClient, until

MIB = 1024 * 1024
QUOTA = {"default_client_id": True, "controller_mutation_rate": 1_000_000.0}
"""Never reached; it makes the gateway look into the requests that quotas are about."""

API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, METADATA, PRODUCE = 18, 19, 20, 37, 3, 0


def request(api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    """A request with a handmade body."""
    return wire.framed(wire.head(api_key, version, flexible=flexible) + body)


def future_api_versions(correlation_id: int) -> bytes:
    """A version that no one knows: the gateway answers this by itself."""
    return wire.framed(wire.head(API_VERSIONS, 99, flexible=True, correlation_id=correlation_id))


async def sends_and_is_closed(frame: bytes, cause: CloseCause) -> None:
    """Send a frame; it must close its connection for this cause, reach no broker and trouble no one else."""
    async with broker_and_gateway(quotas=[QUOTA]) as (broker, running):
        async with await running.connect() as other, await running.connect() as client:
            await other.send(fetch(1))
            await other.receive_frame()
            await client.send(frame)
            assert await client.receive_rest() == b""
            await running.ended_by(cause)
            await other.send(fetch(2))
            assert wire.correlation_id_of(await other.receive_frame()) == 2
        assert [request.api_key for connection in broker.client_connections for request in connection.requests] == [
            FETCH,
            FETCH,
        ]


class BatchScheduler:
    """How long single calls of the data path keep the loop, in CPU time of this thread."""

    def __init__(self) -> None:
        self.longest_ms = 0.0


@contextmanager
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchScheduler]:
    """Measure every chunk that is taken from a client.

    What the whole test run has piled up is left out of full collections meanwhile, as `gateway.app` does for what
    stands when it begins to serve.
    """
    turns = BatchScheduler()
    gc.collect()
    gc.freeze()
    original = ClientChannel.data_received

    def timed(channel: ClientChannel, data: bytes) -> None:
        start = time.thread_time()
        original(channel, data)
        turns.longest_ms = max(turns.longest_ms, (time.thread_time() - start) * 1000)

    with monkeypatch.context() as patched:
        patched.setattr(ClientChannel, "data_received", timed)
        yield turns


# -- sizes ---------------------------------------------------------------------------------------------------


# Each refusal in all its forms: test_frames. Here, that the socket is closed and the cause counted.


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        pytest.param(pack(">i", -1) + bytes(20), CloseCause.INVALID_FRAME_SIZE, id="a01"),
        pytest.param(pack(">i", 7) + bytes(7), CloseCause.INVALID_FRAME_SIZE, id="a02"),
        pytest.param(pack(">i", 104_857_601), CloseCause.FRAME_TOO_LARGE, id="a03"),
        pytest.param(pack(">ihhih", 524_289, 17, 0, 1, -1), CloseCause.FRAME_TOO_LARGE, id="a05-handshake"),
        pytest.param(pack(">ihhih", 524_289, 36, 0, 1, -1), CloseCause.FRAME_TOO_LARGE, id="a05-authenticate"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", CloseCause.TLS_ON_PLAINTEXT, id="a06"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", CloseCause.NOT_KAFKA, id="a07"),
        pytest.param(request(4, 0, bytes(20)), CloseCause.UNSUPPORTED_REQUEST, id="a35-leader-and-isr"),
        pytest.param(request(58, 0, bytes(20)), CloseCause.UNSUPPORTED_REQUEST, id="a35-envelope"),
        pytest.param(request(999, 0, bytes(20)), CloseCause.UNSUPPORTED_REQUEST, id="a12"),
        pytest.param(request(PRODUCE, 14, bytes(20)), CloseCause.UNSUPPORTED_REQUEST, id="a13"),
        pytest.param(request(PRODUCE, -1, bytes(20)), CloseCause.UNSUPPORTED_REQUEST, id="a14"),
        pytest.param(wire.framed(pack(">hhih", FETCH, 4, 5, 100) + bytes(8)), CloseCause.MALFORMED_FRAME, id="a20"),
        pytest.param(
            request(CREATE_TOPICS, 7, b"\x80\x80\x80\x80\x80\x01" + bytes(8), flexible=True),
            CloseCause.MALFORMED_FRAME,
            id="a25",
        ),
    ],
)
async def test_a01_a02_a05_a06_a07_a12_a25_a35_a_refused_request_closes(data: bytes, cause: CloseCause) -> None:
    await sends_and_is_closed(data, cause)


@pytest.mark.integration
async def test_a04_thousand_announced_frames_of_100_mb_cost_what_was_received(tmp_path: Path) -> None:
    relayed = wire.head(PRODUCE, 3, flexible=False)
    collected = wire.head(METADATA, 4, flexible=False)
    async with (
        ScriptedBroker() as broker,
        gateway_process(
            tmp_path,
            broker.port,
            frame_timeout_ms=3_000,
            first_frame_timeout_ms=60_000,
            min_frame_bytes_per_s=2**31 - 1,
        ) as process,
    ):
        clients = [await process.connect() for _ in range(1000)]
        await until(lambda: process.open_files() > 1000)
        before = process.rss_bytes()
        for number, client in enumerate(clients):
            announced, head = (100 * MIB, relayed) if number % 2 else (8 * MIB, collected)
            await client.send(pack(">i", announced) + head)
        await asyncio.sleep(0.2)
        grown = process.rss_bytes() - before
        assert grown / len(clients) < 4096, f"{grown / len(clients):.0f} bytes for each"
        # No one sends the rest: the deadline of the collected ones closes them, the others have theirs from accept.
        await until(lambda: process.open_files() < 700)
        for client in clients[::2]:
            assert await client.receive_rest() == b""
        for client in clients:
            client.close()


# -- segments ------------------------------------------------------------------------------------------------
async def test_a10_session_sliced_into_bytes_works_at_a_cost_that_grows_with_the_bytes_alone() -> None:
    async with broker_and_gateway() as (_, running), await running.connect() as client:
        frames = [wire.request("Metadata", 4, topics=[{"name": "x" * 200}]), fetch(2)]
        for frame in frames:
            for at in range(len(frame)):
                await client.send(frame[at : at + 1])
                await asyncio.sleep(0)
        await client.receive_frame()
        assert (await client.receive_frame())[8:] == frames[1]


async def test_a11_500_frames_in_one_segment_keep_their_order_and_leave_the_loop_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mixed = [
        wire.request("Metadata", 4, correlation_id=number, topics=[])
        if number % 5 == 0
        else future_api_versions(number)
        if number % 5 == 1
        else fetch(number)
        for number in range(500)
    ]
    with measured(monkeypatch) as turns:
        async with broker_and_gateway(quotas=[QUOTA]) as (_, running), await running.connect() as client:
            await client.send(fetch(0))
            await client.receive_frame()
            turns.longest_ms = 0.0
            await client.send(b"".join(mixed))
            answered = [wire.correlation_id_of(await client.receive_frame()) for _ in mixed]
    assert answered == list(range(500))
    assert turns.longest_ms < 10


# -- bodies that are looked into -----------------------------------------------------------------------------
@pytest.mark.parametrize("api_key", [CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, METADATA])
async def test_a27_array_as_long_as_a_large_frame_does_not_hold_up_the_loop(
    api_key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    elements = bytes(4 * MIB)
    body = pack(">i", len(elements) // 2) + elements
    with measured(monkeypatch) as turns:
        async with broker_and_gateway(quotas=[QUOTA]) as (broker, running), await running.connect() as client:
            # A broker would refuse this; here only what the gateway does with it counts.
            broker.script(EVERY_API, scripts.close)
            await client.send(request(api_key, 1, body))
            assert await client.receive_rest() == b""
            await until(lambda: not running.channels)
    assert turns.longest_ms < 50


async def test_i04_no_label_has_what_a_client_or_a_broker_sends_as_key_version_or_error() -> None:
    def series(running: RunningGateway) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        return {
            (sample.name, tuple(sorted(sample.labels.items())))
            for family in running.gateway.registry.collect()
            for sample in family.samples
        }

    async with broker_and_gateway() as (broker, running):
        broker.script(FETCH, scripts.raw(wire.response("Fetch", 11, error_code=31_999)))
        async with await running.connect() as client:
            await client.send(wire.request("Fetch", 11))
            await client.receive_frame()
        before = series(running)
        for number in range(0, 32_768, 500):
            async with await running.connect() as client:
                await client.send(request(number, number % 100, bytes(20)))
                await client.receive_rest()
            async with await running.connect() as client:
                await client.send(future_api_versions(1)[:6] + pack(">h", number) + future_api_versions(1)[8:])
                await client.receive_frame()
        assert {each for each in series(running) - before if not each[0].endswith("_bucket")} == set()


async def test_clients_find_the_gateway_unharmed_after_a_flood_of_nonsense() -> None:
    async with broker_and_gateway() as (_, running):
        for number in range(100):
            async with await RawClient.connect(running.port) as client:
                await client.send(bytes([number]) * 40)
        async with await running.connect() as client:
            await client.send(fetch(1))
            assert wire.correlation_id_of(await client.receive_frame()) == 1
