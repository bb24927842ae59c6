"""Connections of users of a real Kafka, through a gateway of two workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from gateway.usage.reader import read_last, rows_of
from quotas.usage_record import Row, UsageApi
from testkit.secure_kafka import MECHANISMS, PASSWORDS, SecureKafka
from testkit.tap import Tap
from testkit.wire_client import ConnectionEnded, WireClient
from tests.integration.conftest import eventually
from tests.integration.gateway_process import Address, GatewayOptions, GatewayProcess
from tests.integration.sasl_gateway import log_in, own_user, reauth_listener
from tests.integration.test_workers import worker_pids

pytestmark = pytest.mark.integration

COUNT: Final = 6
TABLES: Final = f"""
[server]
workers = 2
[quota_admin]
admins = ["User:gateway"]
[[quotas]]
user = "alice"
connection_count = {COUNT}
"""


@dataclass(frozen=True, slots=True)
class Ways:
    """A gateway; `reauth` leads to sessions that end."""

    gateway: GatewayProcess
    reauth: Address

    def connections(self, user: str) -> float:
        """As a scrape shows them."""
        return self.gateway.metric("gateway_user_connections", user=user) or 0.0


@pytest.fixture
def ways(secure_kafka: SecureKafka, tap: Tap, tmp_path: Path) -> Iterator[Ways]:
    """See `Ways`."""
    reauth, tables = reauth_listener(secure_kafka)
    tables += f'\n[usage]\nkind = "files"\ndirectory = "{tmp_path / "usage"}"\n'
    options = GatewayOptions(
        upstream=own_user(secure_kafka), listener='security_protocol = "SASL_PLAINTEXT"', tables=TABLES + tables
    )
    gateway = GatewayProcess(tmp_path, secure_kafka.addresses("SASL").values(), tap, options)
    gateway.start()
    try:
        yield Ways(gateway, reauth)
    finally:
        gateway.stop()


@pytest.fixture
def connect(ways: Ways) -> Iterator[Callable[[str, str], WireClient]]:
    """Connections that have logged in."""
    clients = []

    def connected(user: str, mechanism: str = "PLAIN") -> WireClient:
        clients.append(client := WireClient(ways.gateway.bootstrap, client_id=f"{user}-{len(clients)}"))
        assert log_in(client, mechanism, user).error_code == 0
        return client

    yield connected  # type: ignore[misc]
    for each in clients:
        each.close()


def is_served(client: WireClient) -> bool:
    try:
        client.ask("Metadata", 9, topics=[])
    except (ConnectionEnded, OSError):
        return False
    return True


def set_quota(client: WireClient, user: str, **quotas: float) -> list[Any]:
    """As an AdminClient sends it, which passes keys on that it does not know."""
    ops = [{"key": key, "value": value, "remove": False} for key, value in quotas.items()]
    entry = {"entity": [{"entity_type": "user", "entity_name": user}], "ops": ops}
    return list(client.ask("AlterClientQuotas", 1, entries=[entry], validate_only=False).body.entries)


def test_a_user_has_its_count_over_workers_and_mechanisms_and_gets_a_killed_workers_places_back(
    ways: Ways, connect: Callable[..., WireClient]
) -> None:
    alices = [connect("alice", MECHANISMS[at % len(MECHANISMS)]) for at in range(COUNT)]
    assert all(map(is_served, alices))
    refused, bob = connect("alice"), connect("bob")
    assert not is_served(refused)
    assert is_served(bob)
    eventually(lambda: ways.connections("alice") == COUNT)
    assert ways.gateway.metric("gateway_connections_closed_total", cause="user_connection_count") == 1
    assert "cause=user_connection_count" in ways.gateway.log_file.read_text()

    alices.pop().close()
    eventually(lambda: ways.connections("alice") == COUNT - 1)
    alices.append(connect("alice"))
    assert is_served(alices[-1])

    os.kill(worker_pids(ways.gateway)[-1], signal.SIGKILL)
    alices = [client for client in alices if is_served(client)]
    assert 0 < len(alices) < COUNT
    eventually(lambda: ways.connections("alice") == len(alices))
    alices += [connect("alice") for _ in range(COUNT - len(alices))]
    assert all(map(is_served, alices))
    assert not is_served(connect("alice"))


def test_usage_records_have_what_became_of_the_connections_of_all_workers(
    ways: Ways, connect: Callable[..., WireClient], tmp_path: Path
) -> None:
    assert all(is_served(connect("alice")) for _ in range(COUNT))
    assert not is_served(connect("alice"))
    assert is_served(connect("bob"))

    def sums() -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for line in read_last(tmp_path / "usage", 60).lines:
            for row in rows_of(line):
                if row[Row.API] == UsageApi.USER_CONNECT:
                    of_user = found.setdefault(row[Row.USER], [0.0, 0.0, 0.0, 0.0])
                    for at, position in enumerate((Row.OFFERED, Row.ADMITTED, Row.REJECTED, Row.DELAYED)):
                        of_user[at] += row[position]
        return found

    eventually(lambda: sums() == {"alice": [COUNT + 1, COUNT, 1, 1], "bob": [1, 1, 0, 0]})


def test_a_second_login_counts_once(ways: Ways) -> None:
    with WireClient(ways.reauth) as client:
        for _ in range(2):  # a broker takes one more per second
            assert log_in(client, "SCRAM-SHA-256", "alice").error_code == 0
            assert is_served(client)
        assert ways.connections("alice") == 1
    eventually(lambda: ways.connections("alice") == 0)


def test_clients_of_librdkafka_wait_for_their_turn_and_lose_nothing(
    ways: Ways, connect: Callable[..., WireClient]
) -> None:
    admin = connect("gateway")
    (answer,) = set_quota(admin, "alice", connection_creation_rate=2.0)
    assert answer.error_code == 0, answer.error_message
    described = admin.ask(
        "DescribeClientQuotas",
        1,
        components=[{"entity_type": "user", "match_type": 0, "match": "alice"}],
        strict=True,
    )
    assert {each.key: each.value for each in described.body.entries[0].values} == {
        "connection_creation_rate": 2.0,
        "connection_count": COUNT,
    }
    (answer,) = set_quota(admin, "alice", connection_count=1_000.0)
    assert answer.error_code == 0, answer.error_message
    settings = {
        "bootstrap.servers": str(ways.gateway.bootstrap),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": PASSWORDS["alice"],
    }
    producers = [Producer(settings) for _ in range(6)]
    errors: list[Any] = []
    for at, producer in enumerate(producers):
        producer.produce("user-connections", str(at), on_delivery=lambda error, _: errors.append(error))
    for producer in producers:
        assert producer.flush(60) == 0
    assert errors == [None] * len(producers)
    waits = ways.gateway.metric(
        "gateway_api_throttled_requests_total", quota="connection_creation_rate", user="alice"
    )
    assert waits
    assert waits > 0
    assert not ways.gateway.metric("gateway_connections_closed_total", cause="user_connection_rate")
