"""kafka-python's producer for cases in which it may fail: it is closed completely, even if its constructor raises.

Otherwise its selector's sockets stay open, and the garbage collector reports them in whichever test comes next.
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
    """A KafkaProducer with these settings. Its exceptions are passed to the caller."""
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
