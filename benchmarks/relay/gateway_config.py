"""The gateway's configuration for a benchmark run: quotas that are on and never reached."""

from typing import Final

from quotas.entities import API_RATE_KEYS

_EVERY_LIMIT: Final = f"""\
producer_byte_rate = 1000000000000
consumer_byte_rate = 1000000000000
producer_byte_burst_seconds = 60
consumer_byte_burst_seconds = 60
producer_byte_guarantee = 1000000000
consumer_byte_guarantee = 1000000000
weight = 2
tier = 1
producer_record_rate = 1e15
consumer_record_rate = 1e15
{"".join(f"{key} = 1000000" + chr(10) for key in API_RATE_KEYS)}
[[quotas]]
default_user = true
connection_creation_rate = 1000000
connection_count = 1000000

[[groups]]
name = "everything"
client_ids = ["bench*"]

[[quotas]]
group = "everything"
producer_byte_rate = 1000000000000
consumer_byte_rate = 1000000000000
producer_byte_burst_seconds = 60
consumer_byte_burst_seconds = 60

[capacity]
producer_byte_rate = 1000000000000
consumer_byte_rate = 1000000000000

[overload]
mode = "observe"
"""
"""Limits for the run's client that Kafka lacks (docs/decisions/0053-limits-beyond-kafkas.md)."""


def gateway_config(
    upstream: str,
    listen_port: int,
    admin_port: int,
    first_broker_port: int,
    *,
    byte_quotas: bool = False,
    usage: str = "",
    topics: bool = False,
    every_limit: bool = False,
) -> str:
    """The TOML text for one gateway.

    Args:
        upstream: bootstrap address of the brokers, ``host:port``.
        listen_port: port for clients.
        admin_port: port of /metrics.
        first_broker_port: broker N is served at this port + N; the null broker and the embedded one have id 1.
        byte_quotas: whether to count the bytes of every Produce and Fetch, too.
        usage: directory for usage records; None for no records.
        topics: whether usage records also count by topic.
        every_limit: whether to set all limits that Kafka lacks, and byte rates with them.
    """
    rates = "producer_byte_rate = 1000000000000\nconsumer_byte_rate = 1000000000000\n" if byte_quotas else ""
    rates = _EVERY_LIMIT if every_limit else rates
    records = f'[usage]\nkind = "files"\ndirectory = "{usage}"\n' if usage else ""
    records += "topics = true\n" if topics else ""
    return f"""\
[upstream]
bootstrap = ["{upstream}"]

[[listeners]]
name = "bench"
bind = "127.0.0.1:{listen_port}"
advertised_host = "127.0.0.1"
first_broker_port = {first_broker_port}
broker_ports = 2

[admin]
bind = "127.0.0.1:{admin_port}"

[quota_store]
kind = "memory"

{records}
[[quotas]]
client_id = "bench"
controller_mutation_rate = 1000000.0
{rates}"""
