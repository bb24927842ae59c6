"""The name in a hello is the one that OpenSSL reads, or none."""

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tls.records import Hello, HelloWalk
from gateway.tls.server_name import MalformedHello, normalised, server_name
from testkit.tls import Pki, raw_hello, server_name_extension


def hello_of_openssl(name: str | None, newest: ssl.TLSVersion) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = newest
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def read_by_openssl(pki: Pki, hello: bytes) -> str | None:
    """What a server's callback gets."""
    found: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.server.certificate, pki.server.key)
    context.sni_callback = lambda _tls, name, _context: found.append(name)  # type: ignore[assignment, misc]
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(hello)
    with contextlib.suppress(ssl.SSLError):
        context.wrap_bio(incoming, outgoing, server_side=True).do_handshake()
    return found[0]


def cut(hello: bytes, size: int) -> bytes:
    """The same message in records of this size."""
    message = hello[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", ["b1.kafka.test", "A.B", "b1.kafka.test.", "x" * 60 + ".test", None])
def test_the_name_is_the_one_that_openssl_reads(pki: Pki, name: str | None, newest: ssl.TLSVersion) -> None:
    hello = hello_of_openssl(name, newest)
    assert read_by_openssl(pki, hello) == name
    for each in (hello, cut(hello, 1), cut(hello, 7)):
        found = server_name(each)
        assert (None if found is None else found.decode()) == name


def test_names_are_compared_in_lower_case_and_without_the_last_dot() -> None:
    assert normalised(b"B1.Kafka.TEST.") == "b1.kafka.test"
    assert normalised(b"b1..") == "b1."
    assert normalised(b".") == ""
    assert normalised("b1.bücher".encode()) is None
    assert normalised(b"\xff") is None


def test_a_hello_without_extensions_has_no_name() -> None:
    assert server_name(raw_hello(None)) is None
    assert server_name(raw_hello(b"")) is None
    assert server_name(raw_hello(b"\x00\x17\x00\x00")) is None


@pytest.mark.parametrize(
    "extensions",
    [
        b"\x00",
        b"\x00\x00",
        b"\x00\x00\x00\x05",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x02\x00\x00",
        b"\x00\x00\x00\x05\x00\x03\x00\x00\x00",  # an empty name
        b"\x00\x00\x00\x06\x00\x04\x01\x00\x01a",  # of another kind
        b"\x00\x00\x00\x06\x00\x04\x00\x00\x02a",  # longer than the list
        b"\x00\x00\x00\x0a\x00\x08\x00\x00\x01a\x00\x00\x01b",  # two names
        b"\x00\x00\x00\x07\x00\x04\x00\x00\x01ab",  # bytes behind the list
    ],
)
def test_h30_lengths_that_contradict_each_other_are_found(extensions: bytes) -> None:
    with pytest.raises(MalformedHello):
        server_name(raw_hello(extensions))


@given(st.binary(max_size=400), st.integers(1, 50))
def test_h30_junk_is_a_name_or_malformed(junk: bytes, size: int) -> None:
    for hello in (raw_hello(junk), raw_hello(server_name_extension(b"b1.test") + junk), junk):
        with contextlib.suppress(MalformedHello):
            found = server_name(hello)
            assert found is None or found in hello
            if hello is not junk:
                assert server_name(cut(hello, size)) == found


@given(st.data())
def test_h30_a_changed_byte_is_a_name_or_malformed(data: st.DataObject) -> None:
    hello = bytearray(raw_hello(server_name_extension(b"b1.kafka.test")))
    hello[data.draw(st.integers(0, len(hello) - 1))] = data.draw(st.integers(0, 255))
    if HelloWalk().look(bytes(hello)) is Hello.WHOLE:
        with contextlib.suppress(MalformedHello):
            server_name(bytes(hello))
