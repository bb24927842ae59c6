import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.host_port import HostPort, parse_host_port, valid_host
from config.ip_address import check_address, check_address_or_block, check_peer


@pytest.mark.parametrize(("text", "host", "port"), [
    ("127.0.0.1:9092", "127.0.0.1", 9092), ("kafka-1.example:1", "kafka-1.example", 1),
    ("kafka_1:65535", "kafka_1", 65535), ("[::1]:9092", "::1", 9092),
    ("[fe80::1%eth0]:9092", "fe80::1%eth0", 9092),
])  # fmt: skip
def test_host_and_port_are_read_and_printed_the_same(text: str, host: str, port: int) -> None:
    assert parse_host_port(text) == HostPort(host, port)
    assert str(HostPort(host, port)) == text


@pytest.mark.parametrize("text", [
    "", "9092", ":9092", "host:", "host:0", "host:65536", "host:-1", "host:+1", "host:1 ", "host:1_0", "host:٣",
    "127.0.0.256:1", "1.2.3:1", "ho st:1", "-host:1", "höst:1", "[::1]", "[::1:9092", "[127.0.0.1]:1", "[]:1",
    "a\n:1", "x" * 254 + ":1",
])  # fmt: skip
def test_anything_else_is_refused_with_a_text_that_continues_the_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(is not|has too many) "):
        parse_host_port(text)


def test_ipv6_needs_brackets_and_port_zero_is_for_binding_only() -> None:
    with pytest.raises(ValueError, match=r"brackets: \[::1\]:9092"):
        parse_host_port("::1:9092")
    assert parse_host_port("127.0.0.1:0", lowest_port=0).port == 0
    with pytest.raises(ValueError, match=r"1\.\.65535"):
        parse_host_port("127.0.0.1:0")
    assert HostPort("0.0.0.0", 1).wildcard
    assert HostPort("::", 1).wildcard
    assert not HostPort("127.0.0.1", 1).wildcard


@given(st.text())
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        found = parse_host_port(text)
    except ValueError:
        return
    assert valid_host(found.host)
    assert parse_host_port(str(found)) == found


@pytest.mark.parametrize(("written", "name"), [
    ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("2001:DB8::0001", "2001:db8::1"),
    ("10.0.0.0/8", "10.0.0.0/8"), ("2001:DB8:0::/32", "2001:db8::/32"), ("0.0.0.0/0", "0.0.0.0/0"),
    ("10.1", "10.0.0.1"), ("010.0.0.1", "10.0.0.1"), ("[::1]", "::1"), ("fe80::1%eth0", "fe80::1"),
    ("::ffff:10.0.0.0/104", "10.0.0.0/8"), ("10.0.0.1/32", "10.0.0.1"),
])  # fmt: skip
def test_each_address_and_block_has_one_name(written: str, name: str) -> None:
    assert check_address_or_block(written) == name
    if "/" not in written:
        assert check_address(written) == name


@pytest.mark.parametrize("text", ["", "localhost", "10.0.0.", "fe80::1%", "10.0.0.1 ", "0x7f.1"])
def test_g11_names_and_what_is_no_address_are_refused(text: str) -> None:
    for check in (check_address, check_address_or_block):
        with pytest.raises(ValueError, match=r"^is not an IP address"):
            check(text)


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "/8", "10.0.0.0/", "here/8"])
def test_blocks_that_could_not_match_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        check_address_or_block(text)


@pytest.mark.parametrize("text", ["10.1", "10", "10.1/16", "fe80::1%eth0", "here"])
def test_a_peer_that_is_trusted_is_written_in_full(text: str) -> None:
    with pytest.raises(ValueError):
        check_peer(text)
    assert check_peer("2001:DB8::/32") == "2001:db8::/32"
    assert check_peer("::ffff:10.0.0.1") == "10.0.0.1"
