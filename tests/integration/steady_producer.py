"""Sends one record after the other by TLS until it is ended; a line for each that is acknowledged.

``python -m tests.integration.steady_producer FAMILY BOOTSTRAP TOPIC CA``; librdkafka logs in by PLAIN with a further
USER and PASSWORD.
"""

import itertools
import sys
import time

import confluent_kafka
import kafka


def _librdkafka(bootstrap: str, topic: str, ca: str, user: str = "", password: str = "") -> None:
    settings = {"bootstrap.servers": bootstrap, "security.protocol": "SSL", "ssl.ca.location": ca, "linger.ms": 0}
    if user:
        login = {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": password}
        settings |= {"security.protocol": "SASL_SSL", **login}
    producer = confluent_kafka.Producer(settings)
    for number in itertools.count():
        producer.produce(topic, f"librdkafka {number}", partition=0, on_delivery=_print_number)
        producer.flush()
        time.sleep(0.1)


def _print_number(error: object, message: confluent_kafka.Message) -> None:
    print(error or message.value().split()[1].decode(), flush=True)


def _kafka_python(bootstrap: str, topic: str, ca: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, security_protocol="SSL", ssl_cafile=ca)
    for number in itertools.count():
        producer.send(topic, f"kafka-python {number}".encode(), partition=0).get(60)
        print(number, flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    {"librdkafka": _librdkafka, "kafka-python": _kafka_python}[sys.argv[1]](*sys.argv[2:])
