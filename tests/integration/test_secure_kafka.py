"""The real Kafka with identities does what tests rely on, without a gateway in between."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from testkit.secure_kafka import LISTENERS, PASSWORDS, SecureKafka

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["SASL", "SASL_SSL"])
def test_listener_knows_alice(secure_kafka: SecureKafka, listener: str, mechanism: str) -> None:
    admin = AdminClient(
        {
            "bootstrap.servers": secure_kafka.bootstrap(listener),
            "security.protocol": LISTENERS[listener],
            "ssl.ca.location": str(secure_kafka.authority.certificate),
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": PASSWORDS["alice"],
        }
    )

    assert list(admin.list_topics(timeout=20).brokers) == [1]


def test_tls_listener_takes_a_certificate_of_its_authority(secure_kafka: SecureKafka) -> None:
    pair = secure_kafka.client("dave")
    admin = AdminClient(
        {
            "bootstrap.servers": secure_kafka.bootstrap("SSL"),
            "security.protocol": "SSL",
            "ssl.ca.location": str(secure_kafka.authority.certificate),
            "ssl.certificate.location": str(pair.certificate),
            "ssl.key.location": str(pair.key),
        }
    )

    assert list(admin.list_topics(timeout=20).brokers) == [1]
