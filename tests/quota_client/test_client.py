"""What an operator reads when quotas cannot be read or altered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, SaslAuthenticationFailedError

from quota_client.client import QuotaClient, QuotaClientError

BROKERS = (SimpleNamespace(host="kafka-1.example", port=9092), SimpleNamespace(host="kafka-2.example", port=9093))


class Admin:
    """A cluster that is reached, and whose brokers do not answer."""

    def __init__(self, **_options: Any) -> None:
        self._manager = SimpleNamespace(cluster=SimpleNamespace(brokers=lambda: BROKERS))

    def describe_all_quotas(self) -> Any:
        raise KafkaTimeoutError("Request timed out")

    def close(self) -> None:
        pass


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(**_options: Any) -> Any:
        raise KafkaTimeoutError("Unable to bootstrap from ['gw:19092']")

    monkeypatch.setattr("quota_client.client._Admin", unreachable)
    with pytest.raises(QuotaClientError) as caught:
        QuotaClient("gw:19092")
    assert str(caught.value) == "gw:19092: no answer in time; check the address, and that security_protocol fits"


def test_brokers_that_it_sends_clients_to_are_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quota_client.client._Admin", Admin)
    with QuotaClient("gw:19092") as client, pytest.raises(QuotaClientError) as caught:
        client.describe()
    assert str(caught.value) == (
        "gw:19092: no answer in time; check the address, and that security_protocol fits; it sends clients to "
        "kafka-1.example:9092, kafka-2.example:9093, which this machine must reach too"
    )


def test_other_errors_keep_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(**_options: Any) -> Any:
        raise SaslAuthenticationFailedError("no such user")

    monkeypatch.setattr("quota_client.client._Admin", refusing)
    with pytest.raises(QuotaClientError, match="no such user"):
        QuotaClient("gw:19092")


def test_a_refusal_names_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Admin):
        def describe_all_quotas(self) -> Any:
            return SimpleNamespace(error_code=31, error_message=None)

    monkeypatch.setattr("quota_client.client._Admin", Refusing)
    with (
        QuotaClient("gw:19092") as client,
        pytest.raises(QuotaClientError, match=r"^gw:19092: CLUSTER_AUTHORIZATION_FAILED \(error 31\): "),
    ):
        client.describe()
