"""TLS as a protocol to the socket and a transport to the channel."""

import ssl

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.observability.events import TlsFailure
from gateway.tls.handshake_steps import Step
from gateway.tls.records import PLAIN_BYTES, RECORD_BYTES, SLICE_BYTES
from testkit.tls import Pki
from testkit.tls_conversation import TlsServer, User

_CIPHERS_CHANGED = b"\x14\x03\x03\x00\x01\x01"


@pytest.fixture
def server(pki: Pki) -> TlsServer:
    return TlsServer(pki).shake_hands()


# -- handshake -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pieces", [0, 1, 7])
def test_the_user_is_told_once_the_handshake_is_done_however_it_arrives(pki: Pki, pieces: int) -> None:
    server = TlsServer(pki)
    assert server.user.transport is None
    server.shake_hands(pieces=pieces)
    assert server.user.transport is server.transport
    assert server.failures == []
    assert server.loop.timers == 0, "the deadline is over"


def test_nothing_is_computed_before_the_handshake_may_begin(pki: Pki) -> None:
    server = TlsServer(pki, waits=True).shake_hands()
    assert server.socket.sent == b""
    assert not server.socket.reading
    server.waits = False
    server.transport.proceed()
    assert server.socket.reading
    server.shake_hands()
    assert server.user.transport is not None


def test_what_comes_right_behind_the_handshake_is_delivered(pki: Pki) -> None:
    server = TlsServer(pki)
    with pytest.raises(ssl.SSLWantReadError):
        server.client.do_handshake()
    server.exchange()
    server.client.do_handshake()
    server.client_sends(b"in the same segment as the client's Finished")
    assert server.user.received == b"in the same segment as the client's Finished"


def test_a_handshake_that_ends_early_is_told_with_its_reason(pki: Pki) -> None:
    server = TlsServer(pki)
    server.loop.advance(10_000)
    assert server.failures == [TlsFailure.TIMEOUT]
    assert server.socket.ended == "aborted"
    server.transport.connection_lost(None)
    assert server.failures == [TlsFailure.TIMEOUT], "told once"
    server = TlsServer(pki)
    assert server.transport.eof_received() is False
    assert server.failures == [TlsFailure.CLOSED]
    server = TlsServer(pki, trust=False)
    with pytest.raises(ssl.SSLCertVerificationError):
        server.shake_hands()
    server.exchange()
    assert server.failures == [TlsFailure.REJECTED_BY_PEER]
    server = TlsServer(pki, refuses=True).shake_hands()
    server.client_sends(b"secret")
    assert server.failures == [TlsFailure.NO_PRINCIPAL]
    assert server.user.transport is None
    assert server.user.received == b""
    assert server.socket.ended == "closed"
    server = TlsServer(pki, waits=True).shake_hands()
    for _ in range(100):
        server.deliver(bytes(4_096))
    assert server.failures == [TlsFailure.PROTOCOL]
    server = TlsServer(pki)
    server.deliver(b"\x16\x03\x01")
    assert server.transport.eof_received() is False
    assert server.failures == [TlsFailure.CLOSED]


def test_k09_a_hello_takes_no_place_before_it_is_whole(pki: Pki) -> None:
    server = TlsServer(pki, waits=True)
    with pytest.raises(ssl.SSLWantReadError):
        server.client.do_handshake()
    hello = server.client_sent()
    server.deliver(hello[:-1], pieces=100)
    assert server.hellos == 0
    assert server.socket.reading
    server.deliver(hello[-1:])
    assert server.hellos == 1
    assert not server.socket.reading


def test_a_refused_client_costs_no_cryptography(pki: Pki) -> None:
    server = TlsServer(pki, waits=True).shake_hands()
    server.transport.refuse(TlsFailure.OVERLOADED)
    assert server.socket.sent == b""
    assert server.socket.ended == "aborted"
    server.transport.proceed()
    assert server.failures == [TlsFailure.OVERLOADED]


def test_an_error_without_a_reason_is_a_failure_like_others(pki: Pki) -> None:
    server = TlsServer(pki, newest=ssl.TLSVersion.TLSv1_2)
    with pytest.raises(ssl.SSLWantReadError):
        server.client.do_handshake()
    server.exchange()
    with pytest.raises(ssl.SSLWantReadError):
        server.client.do_handshake()
    flight = server.client_sent()
    keys = flight[: 5 + int.from_bytes(flight[3:5], "big")]
    server.deliver(keys + _CIPHERS_CHANGED + b"\x16\x03\x03\x00\x00")
    assert server.failures == [TlsFailure.PROTOCOL]
    assert server.socket.ended == "closed"
    server = TlsServer(pki, newest=ssl.TLSVersion.TLSv1_2).shake_hands()
    server.deliver(b"\x17\x03\x03\x00\x00")
    assert server.failures == [TlsFailure.PROTOCOL]
    assert server.socket.ended == "closed"


# -- receiving -----------------------------------------------------------------------------------------------
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(0, 3 * RECORD_BYTES), max_size=6), pieces=st.sampled_from([0, 1_000, 16_406]))
def test_every_byte_arrives_in_order_whatever_the_records_and_segments(
    pki: Pki, sizes: list[int], pieces: int
) -> None:
    server = TlsServer(pki).shake_hands()
    sent = b"".join(bytes([number + 1]) * size for number, size in enumerate(sizes))
    at = 0
    for size in sizes:
        server.client_sends(sent[at : at + size], pieces=pieces)
        at += size
    assert server.user.received == sent


def test_records_that_arrive_together_are_delivered_as_one_chunk(server: TlsServer) -> None:
    server.client_sends(bytes(3 * RECORD_BYTES))
    assert [len(chunk) for chunk in server.user.chunks] == [3 * RECORD_BYTES]


def test_nothing_is_delivered_while_reading_is_paused(server: TlsServer) -> None:
    server.transport.pause_reading()
    assert not server.socket.reading
    server.client_sends(b"held")
    assert server.user.received == b""
    server.transport.resume_reading()
    assert server.socket.reading
    assert server.user.received == b"", "not from within the call"
    server.loop.turn_once()
    assert server.user.received == b"held"


def test_a_pause_right_after_a_resume_holds(server: TlsServer) -> None:
    server.transport.pause_reading()
    server.client_sends(b"held")
    server.transport.resume_reading()
    server.transport.pause_reading()
    server.loop.turn_once()
    assert server.user.received == b""


def test_the_peers_goodbye_is_a_half_close(server: TlsServer) -> None:
    server.client_says_goodbye()
    assert server.user.said == ["eof"]
    server.transport.write(b"what it is owed")
    assert server.client_sees() == b"what it is owed"
    assert server.socket.ended == ""
    # The FIN that follows says nothing new.
    assert server.transport.eof_received() is True
    assert server.user.said == ["eof"]


def test_a_fin_without_a_goodbye_is_a_half_close_too(server: TlsServer) -> None:
    assert server.transport.eof_received() is True
    assert server.user.said == ["eof"]
    server.transport.write(b"what it is owed")
    assert server.client_sees() == b"what it is owed"


def test_a_user_that_keeps_nothing_open_is_closed_after_eof(server: TlsServer) -> None:
    server.user.keeps_open = False
    assert server.transport.eof_received() is False
    assert server.socket.ended == "closed"


def test_a_record_that_was_changed_on_its_way_closes_and_is_not_delivered(server: TlsServer) -> None:
    record = bytearray(server.encrypted(b"pay 10"))
    record[-1] ^= 1
    server.deliver(bytes(record))
    assert server.user.received == b""
    assert server.socket.ended == "closed"
    assert server.failures == [TlsFailure.PROTOCOL]
    server.client_sends(b"more")
    assert server.user.received == b"", "nothing is taken after that"


def test_what_came_before_a_broken_record_is_delivered(server: TlsServer) -> None:
    good, bad = server.encrypted(b"good"), bytearray(server.encrypted(b"bad"))
    bad[-1] ^= 1
    server.deliver(good + bytes(bad))
    assert server.user.received == b"good"
    assert server.socket.ended == "closed"


def test_more_than_the_buffer_for_plain_bytes_holds_is_delivered_bit_by_bit(server: TlsServer) -> None:
    server.transport.pause_reading()
    server.client_sends(b"x" * 3 * PLAIN_BYTES)
    server.transport.resume_reading()
    for turn in range(1, 5):
        server.loop.turn_once()
        assert len(server.user.received) <= turn * PLAIN_BYTES
    assert server.user.received == b"x" * 3 * PLAIN_BYTES


def test_a_lost_connection_is_passed_on(server: TlsServer) -> None:
    server.transport.connection_lost(None)
    assert server.user.said == ["lost"]
    server.transport.write(b"to nobody")
    assert server.transport.is_closing()


# -- sending -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, RECORD_BYTES, SLICE_BYTES, SLICE_BYTES + 1, 5 * SLICE_BYTES + 3])
def test_what_is_written_is_sent_at_once_and_whole(server: TlsServer, size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    server.transport.write(data)
    assert server.client_sees() == data


def test_lines_share_records(server: TlsServer) -> None:
    server.transport.writelines([b"a"] * 500)
    assert len(server.socket.sent) < 600
    assert server.client_sees() == b"a" * 500


def test_close_says_goodbye_and_is_the_end_of_writing(server: TlsServer) -> None:
    server.transport.write(b"last")
    server.transport.close()
    server.transport.write(b"too late")
    assert server.client_sees() == b"last"
    assert server.socket.ended == "closed"
    server.client_sends(b"unheard")
    assert server.user.received == b""


def test_abort_sends_nothing(server: TlsServer) -> None:
    server.transport.abort()
    assert server.socket.ended == "aborted"
    assert server.socket.sent == b""


def test_what_is_unsent_is_what_the_socket_has_not_sent(server: TlsServer) -> None:
    server.socket.unsent = 12_345
    assert server.transport.get_write_buffer_size() == 12_345
    server.transport.set_write_buffer_limits(high=99)
    assert server.socket.limits == (99, None)
    server.transport.pause_writing()
    server.transport.resume_writing()
    assert server.user.said == ["full", "writable"]


def test_what_the_socket_knows_can_be_asked(server: TlsServer) -> None:
    assert server.transport.get_extra_info("peername") == ("192.0.2.1", 5)
    assert server.transport.get_extra_info("ssl_object").version() == "TLSv1.3"


# -- one step in a turn --------------------------------------------------------------------------------------
def begin_together(pki: Pki) -> tuple[TlsServer, TlsServer]:
    """Two clients of one loop; the first one has taken the turn with its hello, the second one's has just come."""
    first = TlsServer(pki)
    second = TlsServer(pki, beside=first)
    for server in (first, second):
        with pytest.raises(ssl.SSLWantReadError):
            server.client.do_handshake()
        server.arrive()
    return first, second


def test_a_second_handshake_of_the_same_turn_waits_for_the_next(pki: Pki) -> None:
    first, second = begin_together(pki)
    assert first.socket.sent != b""
    assert second.socket.sent == b""
    first.loop.turn_once()
    assert second.socket.sent != b""


def test_bytes_and_a_fin_that_come_while_a_step_is_due_are_behind_it(pki: Pki) -> None:
    first, second = begin_together(pki)
    first.loop.turn_once()
    second.arrive(said=bytes(second.socket.sent))
    second.client.do_handshake()
    second.arrive()
    second.client.write(b"a request")
    second.arrive()
    assert second.transport.eof_received() is True
    assert (second.user.transport, second.failures) == (None, [])
    first.loop.turn_once()
    assert second.user.received == b"a request"
    assert second.user.said == ["eof"]


def until_it_is_let_in(pki: Pki, user: User) -> tuple[TlsServer, TlsServer]:
    """The last step of the second one's handshake is due, and behind it is a request, received with it."""
    first, second = begin_together(pki)
    second.user = user
    first.loop.turn_once()
    second.arrive(said=bytes(second.socket.sent))
    second.client.do_handshake()
    second.client.write(b"a request")
    second.arrive()
    return first, second


def test_what_comes_while_a_step_is_due_stays_in_the_kernel_but_for_one_read(pki: Pki) -> None:
    first, second = until_it_is_let_in(pki, User())
    assert second.socket.reading
    second.client.write(b" and another")
    second.arrive()
    assert not second.socket.reading
    first.loop.turn_once()
    assert second.user.received == b"a request and another"
    assert second.socket.reading


class OneAtATime(User):
    """Takes nothing more while it is busy with what it has."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.pause_reading()


def test_a_fin_that_came_with_the_handshake_is_told_only_when_the_user_takes_it(pki: Pki) -> None:
    """Where TLS is not in between a socket that is not read shows no FIN either: a request is still under way."""
    first, second = until_it_is_let_in(pki, OneAtATime())
    assert second.transport.eof_received() is True
    first.loop.turn_once()
    assert second.user.received == b"a request"
    assert second.user.said == []
    second.transport.resume_reading()
    first.loop.turn_once()
    assert second.user.said == ["eof"]
    second.transport.resume_reading()
    first.loop.turn_once()
    assert second.user.said == ["eof"]


def test_a_hello_in_pieces_is_answered_by_a_long_step_too(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    server = TlsServer(pki)
    steps: list[bool] = []
    submit = server.steps.submit

    def note(step: Step, *, long: bool) -> None:
        steps.append(long)
        submit(step, long=long)

    monkeypatch.setattr(server.steps, "submit", note)
    server.shake_hands(pieces=100)
    assert steps == [True, False]


def test_a_fin_behind_half_a_handshake_is_the_end_of_it(pki: Pki) -> None:
    _, second = begin_together(pki)
    assert second.transport.eof_received() is True
    second.loop.turn_once()
    assert second.failures == [TlsFailure.CLOSED]
    assert second.socket.ended == "closed"


@pytest.mark.parametrize("way", ["deadline", "abort", "lost"])
def test_a_client_that_ends_while_a_step_is_due_costs_no_cryptography(pki: Pki, way: str) -> None:
    first, second = begin_together(pki)
    if way == "deadline":
        first.loop.advance(10_000)
    elif way == "abort":
        second.transport.abort()
    else:
        second.transport.connection_lost(None)
    first.loop.turn_once()
    assert second.socket.sent == b""
    assert second.failures == [TlsFailure.TIMEOUT if way == "deadline" else TlsFailure.CLOSED]


def test_what_comes_while_a_step_is_computed_does_not_touch_it(pki: Pki) -> None:
    """The other half of `compute` may be in a thread: nothing but it may use OpenSSL's part until `conclude`."""
    first, second = begin_together(pki)
    incoming = second.transport._incoming
    held = incoming.pending
    second.deliver(bytes(4_096), turns=False)
    second.transport.eof_received()
    second.transport.refuse(TlsFailure.TIMEOUT)
    assert incoming.pending == held
    first.loop.turn_once()
    assert second.failures == [TlsFailure.TIMEOUT]


def test_what_comes_while_a_step_is_due_is_bounded(pki: Pki) -> None:
    _, second = begin_together(pki)
    for _ in range(100):
        second.deliver(bytes(4_096), turns=False)
    assert second.failures == [TlsFailure.PROTOCOL]


def test_l06_a_handshake_has_its_time_again_when_the_process_stood_still(pki: Pki) -> None:
    server = TlsServer(pki)
    server.loop.clock.advance(60_000)
    server.loop.advance(9_999)
    assert server.failures == []
    server.shake_hands()
    assert server.user.transport is server.transport
