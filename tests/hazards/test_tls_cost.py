"""Hazards H22 and H23: what TLS can be made to cost."""

import asyncio
import ssl
import subprocess
from time import monotonic, thread_time

import pytest

from gateway.tls.records import SLICE_BYTES
from testkit.frames import heartbeat
from testkit.openssl_client import OpensslClient
from testkit.packages import require_package
from testkit.raw_client import HOST, until
from testkit.tls import Pki, TlsClient, handshakes, tls_gateway
from testkit.tls_conversation import TlsServer


# -- H22 -----------------------------------------------------------------------------------------------------
@pytest.mark.slow
async def test_h22_a_storm_of_handshakes_is_paced_and_all_come_in(pki: Pki) -> None:
    """How little it costs those who are connected is measured by `python -m benchmarks.tls.storm`."""
    async with tls_gateway(pki.keys(), connections={"max_tls_handshakes_per_second": 40}) as (_, running):
        # Those who say nothing have no place in the queue.
        silent = [await running.connect() for _ in range(30)]
        began = monotonic()  # the loop's time stands still within a turn
        storm = [asyncio.create_task(TlsClient.connect(running.port, pki.trusting())) for _ in range(40)]
        await asyncio.sleep(0.5)
        halfway = handshakes(running, "TLSv1.3")
        took_s = monotonic() - began
        assert halfway <= 40 * took_s + 2
        clients = await asyncio.gather(*storm)
        assert monotonic() - began >= 38 / 40
        # A client's handshake is over before the gateway has read its last message.
        await until(lambda: handshakes(running, "TLSv1.3") == 40)
        assert running.gateway.tls.handshake_limiter.delayed >= 30
        for client in clients:
            client.send(heartbeat(1))
            await client.receive_frame()
        for each in [*clients, *silent]:
            if isinstance(each, TlsClient):
                await each.close()
            else:
                each.close()
        await until(lambda: not running.channels)


# -- H23 -----------------------------------------------------------------------------------------------------
def connected(pki: Pki) -> tuple[TlsServer, OpensslClient]:
    server, client = TlsServer(pki), OpensslClient()
    for _ in range(3):
        client.shake_hands()
        server.deliver(client.take())
        client.give(bytes(server.socket.sent))
        server.socket.sent.clear()
    client.write(b"x")
    server.deliver(client.take())
    assert server.user.received == b"x"
    return server, client


def longest_turn_s(server: TlsServer, data: bytes) -> float:
    """CPU time that one read of the socket took at most: as long the loop is blocked."""
    longest_s = at = 0.0
    while at < len(data) and not server.socket.ended:
        view = server.transport.get_buffer(-1)
        count = min(len(view), len(data) - int(at))
        view[:count] = data[int(at) : int(at) + count]
        began = thread_time()
        server.transport.buffer_updated(count)
        longest_s = max(longest_s, thread_time() - began)
        at += count
    return longest_s


@pytest.mark.parametrize("ask_peer", [False, True])
def test_h23_a_few_key_updates_are_taken(pki: Pki, ask_peer: bool) -> None:
    server, client = connected(pki)
    for number in range(20):
        client.update_keys(ask_peer=ask_peer)
        client.write(b"%d," % number)
    server.deliver(client.take())
    assert server.user.received == b"x" + b"".join(b"%d," % number for number in range(20))
    assert bool(server.socket.sent) is ask_peer, "asked for, the server's own are sent at once"
    assert not server.socket.ended
    client.free()


@pytest.mark.parametrize("ask_peer", [False, True])
def test_h23_a_flood_of_key_updates_is_cut_before_it_costs_others(pki: Pki, ask_peer: bool) -> None:
    server, client = connected(pki)
    for _ in range(5_000):
        client.update_keys(ask_peer=ask_peer)
    # As many would cost 0.1 to 0.2 s.
    assert longest_turn_s(server, client.take()) < 0.05
    assert server.socket.ended == "aborted"
    assert len(server.socket.sent) < 16_384
    client.free()


@pytest.mark.parametrize("data_bytes", [1, 4, 100])
@pytest.mark.parametrize("updates", [1, 3, 70])
def test_h23_a_little_data_does_not_pay_for_a_flood_of_key_updates(pki: Pki, updates: int, data_bytes: int) -> None:
    server, client = connected(pki)
    for _ in range(-(-3_000 // updates)):
        for _ in range(updates):
            client.update_keys(ask_peer=False)
        client.write(bytes(data_bytes))
    assert longest_turn_s(server, client.take()) < 0.05
    assert server.socket.ended == "aborted"
    client.free()


def mutes(server: TlsServer) -> None:
    """The user takes nothing more once it has something, as a session does whose request goes to a broker."""
    take = server.user.data_received

    def once(data: bytes) -> None:
        take(data)
        server.transport.pause_reading()

    server.transport._deliver = once


def test_h23_key_updates_behind_a_request_that_mutes_are_cut_before_they_cost_others(pki: Pki) -> None:
    server, client = connected(pki)
    mutes(server)
    client.write(b"request")
    for _ in range(2_300):
        client.update_keys(ask_peer=True)
    data = client.take()
    assert len(data) < SLICE_BYTES
    assert longest_turn_s(server, data) < 0.05
    server.transport.resume_reading()
    began = thread_time()
    server.loop.turn_once()
    assert thread_time() - began < 0.05
    assert server.socket.ended == "aborted"
    assert len(server.socket.sent) < 16_384, "an answer to each that was decrypted"
    client.free()


def test_h23_records_of_one_byte_to_a_user_that_mutes_arrive_in_order_and_before_the_end(pki: Pki) -> None:
    server, client = connected(pki)
    mutes(server)
    sent = b"x"
    for number in range(2_000):
        client.write(bytes([number % 251]))
        sent += bytes([number % 251])
    server.deliver(client.take())
    client.write(b"the end")
    for number in range(60):
        server.transport.resume_reading()
        if number == 10:  # comes when reading continues, but behind what is left
            server.deliver(client.take(), turns=False)
            assert server.transport.eof_received() is True
        assert server.user.said == [] or server.user.received == sent + b"the end"
        server.loop.turn_once()
    assert server.user.received == sent + b"the end"
    assert server.user.said == ["eof"]
    client.free()


def test_h23_key_updates_among_much_data_are_taken(pki: Pki) -> None:
    server, client = connected(pki)
    for _ in range(300):
        client.update_keys(ask_peer=False)
        client.write(bytes(2_048))
    assert longest_turn_s(server, client.take()) < 0.05
    assert len(server.user.received) == 1 + 300 * 2_048
    assert not server.socket.ended
    client.free()


def test_h23_records_of_one_byte_are_served_and_hold_up_others_briefly(pki: Pki) -> None:
    server, client = connected(pki)
    for _ in range(20_000):
        client.write(b"y")
    assert longest_turn_s(server, client.take()) < 0.1
    assert len(server.user.received) == 20_001
    assert not server.socket.ended
    client.free()


async def test_h23_a_client_of_tls_1_2_can_not_renegotiate(pki: Pki) -> None:
    openssl = require_package("openssl")
    async with tls_gateway(pki.keys()) as (_, running):
        process = await asyncio.create_subprocess_exec(
            *(openssl, "s_client", "-connect", f"{HOST}:{running.port}", "-tls1_2"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdin is not None
        await until(lambda: handshakes(running, "TLSv1.2") == 1)
        process.stdin.write(b"R\n")
        said, _ = await asyncio.wait_for(process.communicate(), 60)
        assert b"no renegotiation" in said
        assert b"Compression: NONE" in said
        assert handshakes(running, "TLSv1.2") == 1


def test_h23_compression_is_not_agreed_on(pki: Pki) -> None:
    server = TlsServer(pki).shake_hands()
    tls: ssl.SSLObject = server.transport.get_extra_info("ssl_object")
    assert tls.compression() is None
