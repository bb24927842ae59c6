"""Kafka's four security protocols, and what a file may say."""

import pytest

from config.security_protocol import SecurityProtocol


@pytest.mark.parametrize(
    ("name", "sasl", "tls"),
    [
        ("PLAINTEXT", False, False),
        ("SASL_PLAINTEXT", True, False),
        ("SSL", False, True),
        ("SASL_SSL", True, True),
    ],
)
def test_each_protocol_says_whether_it_has_sasl_and_tls(name: str, sasl: bool, tls: bool) -> None:
    protocol = SecurityProtocol(name)

    assert (protocol.sasl, protocol.tls) == (sasl, tls)
