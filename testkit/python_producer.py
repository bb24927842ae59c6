"""kafka-python's producer where it may fail: closed whole, also when its constructor raises.

That leaves its selector's sockets open otherwise, for the garbage collector to complain of in whichever test is next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kafka
from kafka.net.compat import KafkaNetClient

_CLOSE_S = 2.0


@contextmanager
def python_producer(**settings: Any) -> Iterator[Any]:
    """A KafkaProducer with these settings; what it raises is the caller's."""
    clients: list[Any] = []

    def client(**config: Any) -> Any:
        clients.append(KafkaNetClient(**config))
        return clients[-1]

    producer = None
    try:
        producer = kafka.KafkaProducer(kafka_client=client, **settings)
        yield producer
    finally:
        if producer is not None:
            producer.close(timeout=_CLOSE_S)
        for each in clients:
            each.close()
