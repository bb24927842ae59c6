"""One spelling of each node's name is that node; everything else is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.server_names import BOOTSTRAP, ServerNames, check_name, check_pattern

NAMES = ServerNames.of("Kafka.example.com", "b{node}.Kafka.example.com")
LARGEST = 2**31 - 1


@given(st.integers(0, LARGEST))
def test_a_nodes_name_is_that_node_again(node: int) -> None:
    assert NAMES.node_of(NAMES.name_of(node)) == node


@given(st.text("b0123456789-+.kafkexmplco_ \x00é٣", max_size=30))
def test_no_other_text_is_a_node(text: str) -> None:
    for name in (text, f"b{text}.kafka.example.com"):
        node = NAMES.node_of(name)
        assert node in (None, BOOTSTRAP) or name == NAMES.name_of(node)


def test_the_bootstrap_name_is_any_node() -> None:
    assert NAMES.node_of("kafka.example.com") == BOOTSTRAP


@pytest.mark.parametrize(
    "name",
    [
        "",
        "b.kafka.example.com",
        "b-1.kafka.example.com",
        "b+1.kafka.example.com",
        "b01.kafka.example.com",
        "b00.kafka.example.com",
        "b1_0.kafka.example.com",
        "b 1.kafka.example.com",
        "b1.b1.kafka.example.com",
        "b1.kafka.example.com.example.com",
        "xb1.kafka.example.com",
        "b1.kafka.example.co",
        f"b{LARGEST + 1}.kafka.example.com",
        f"b{2**32 + 1}.kafka.example.com",
        "b99999999999.kafka.example.com",
        f"b{'9' * 60_000}.kafka.example.com",
        "b٣.kafka.example.com",
        "b1²3.kafka.example.com",
        "*.kafka.example.com",
        "10.0.0.1",
        "::1",
    ],
)
def test_h30_what_is_nearly_a_name_is_none(name: str) -> None:
    assert NAMES.node_of(name) is None


def test_a_pattern_may_begin_with_the_node() -> None:
    names = ServerNames.of("all.example", "{node}-kafka.example")
    assert names.node_of("12-kafka.example") == 12
    assert names.node_of("-kafka.example") is None
    # What stands around the node must not overlap in the name.
    assert ServerNames.of("all.example", "ab{node}b.example").node_of("ab.example") is None


@pytest.mark.parametrize("text", ["kafka.example", "a.b", "K-1.EXAMPLE", "xn--bcher-kva.example", "1.example"])
def test_names_that_clients_send(text: str) -> None:
    assert check_name(text) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kafka", "has no dot"),
        ("", "is not a host name"),
        ("kafka.example.", "is not a host name"),
        ("kafka_1.example", "is not a host name"),
        ("bücher.example", "is not a host name"),
        ("-kafka.example", "is not a host name"),
        ("10.0.0.1", "is not a host name"),
        ("::1", "is not a host name"),
        (f"{'a' * 64}.example", "is not a host name"),
        (".".join(["a" * 50] * 6), "is not a host name"),
    ],
)
def test_names_that_clients_do_not_send_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_name(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kafka.example", "does not contain {node} once"),
        ("b{node}.{node}.example", "does not contain {node} once"),
        ("b.kafka{node}", "behind its last dot"),
        ("10.0.0.{node}", "behind its last dot"),
        ("{node}", "behind its last dot"),
        (f"{'a' * 54}{{node}}.example", "with 2147483647 for {node} is not a host name"),
    ],
)
def test_patterns_that_make_no_names_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_pattern(text)
