"""The same request to a broker with a quota of its own, and through the gateway to that broker without one.

The two sides are distinguished by client id: the broker limits `NAME-direct`, the gateway `NAME`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from testkit.wire_client import Reply, WireClient
from tests.integration.conftest import eventually

PREFIX: Final = "two-sides-"
PROBE: Final = "quota-probe"
THROTTLING_QUOTA_EXCEEDED: Final = 89


@dataclass(frozen=True, slots=True)
class Side:
    """One way to the broker."""

    address: tuple[str, int]
    client_id: str

    @property
    def prefix(self) -> str:
        """Of the names of this side's topics."""
        return f"{PREFIX}{self.client_id}."

    def ask(self, name: str, version: int, **fields: Any) -> Reply:
        """On a connection of its own: the mute of the one before is not what this is about."""
        with WireClient(self.address, client_id=self.client_id) as client:
            return client.ask(name, version, **fields)


def both_sides(broker: tuple[str, int], gateway: tuple[str, int], client_id: str) -> tuple[Side, Side]:
    """The broker's side and the gateway's."""
    return Side(broker, f"{client_id}-direct"), Side(gateway, client_id)


def results_of(reply: Reply, side: Side) -> list[tuple[str, int]]:
    """(topic without the side's prefix, error code) in the order of the answer, of any of the three APIs."""
    body = reply.body
    results = next(getattr(body, field) for field in ("topics", "results", "responses") if hasattr(body, field))
    return [((result.name or "").removeprefix(side.prefix), result.error_code) for result in results]


@contextmanager
def brokers_quota(address: tuple[str, int], client_ids: Iterable[str], rate: float) -> Iterator[None]:
    """The broker limits its side of these clients; all topics of both sides are gone at the end."""
    names = [f"{client_id}-direct" for client_id in client_ids]
    with WireClient(address) as broker:
        _set_quotas(broker, names, {"value": rate, "remove": False})
        try:
            # Answered does not mean in force: wait until the quota of one more client, set after them, refuses it.
            _set_quotas(broker, [PROBE], {"value": 0.001, "remove": False})
            eventually(partial(_refused, address))
            yield
        finally:
            _set_quotas(broker, [*names, PROBE], {"value": 0.0, "remove": True})
            topics = broker.ask("Metadata", 12, topics=None, allow_auto_topic_creation=False).body.topics
            ours = [topic.name for topic in topics if topic.name.startswith(PREFIX)]
            broker.ask("DeleteTopics", 5, topic_names=ours, timeout_ms=30_000)


def _refused(address: tuple[str, int]) -> bool:
    """Whether the probe is in debt; KRaft charges requests that only validate."""
    topic = {"name": f"{PREFIX}{PROBE}", "num_partitions": 1, "replication_factor": 1}
    with WireClient(address, client_id=PROBE) as client:
        answer = client.ask("CreateTopics", 7, topics=[topic], timeout_ms=10_000, validate_only=True)
    return bool(answer.body.topics[0].error_code == THROTTLING_QUOTA_EXCEEDED)


def _set_quotas(broker: WireClient, names: list[str], operation: dict[str, Any]) -> None:
    entries = [
        {
            "entity": [{"entity_type": "client-id", "entity_name": name}],
            "ops": [{"key": "controller_mutation_rate", **operation}],
        }
        for name in names
    ]
    answer = broker.ask("AlterClientQuotas", 1, entries=entries, validate_only=False).body
    assert [entry.error_code for entry in answer.entries] == [0] * len(names)
