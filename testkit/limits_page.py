"""docs/reference/limits.md, with the fixed bounds that the code has: `python -m testkit.limits_page` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gateway.handlers import own_topics, topic_use
from gateway.handlers.context import MAX_REQUEST_BYTES
from gateway.server import admin_connections, quota_routes, tls_setup
from gateway.server.status_routes import MAX_VIEWERS
from gateway.session.announced import PASS_ON_BYTES
from gateway.session.memory_budget import SMALL_BYTES
from gateway.session.routes import MAX_SASL_BYTES
from gateway.session.session import MAX_HELD_BYTES, MAX_LOCAL_REPLY_BYTES, MAX_REQUESTS_BEFORE_LOGIN
from protocol.client_quota_messages import MAX_ENTRIES
from protocol.describe_configs import MOST_ASKED
from protocol.metadata import MOST_NAMES
from protocol.named_topics import MOST_PARTITIONS
from protocol.node_endpoints import MAX_TAIL_BYTES
from protocol.primitives import MAX_ELEMENTS
from quotas.entities import MAX_NAME_CHARS

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "limits.md"

_HEAD: Final = """# Limits

Bounds that cannot be configured. Kafka has none, or larger ones. Most other limits are keys of [the
configuration](configuration.md), mainly in `[limits]` and `[connections]`. This page is generated
by `python -m testkit.limits_page`.

How long the largest allowed bodies occupy the event loop, and how much memory they need, is
measured in [benchmarks/results/limits.md](../../benchmarks/results/limits.md).
"""

_ENDS: Final = "ends the connection"

_GROUPS: Final = {
    "Requests": [
        ("bytes of a request that the gateway reads whole", MAX_REQUEST_BYTES, _ENDS),
        ("bytes of a request before the login", MAX_SASL_BYTES, _ENDS),
        ("requests before the login", MAX_REQUESTS_BEFORE_LOGIN, _ENDS),
        ("elements of most arrays, such as the topics of a CreateTopics", MAX_ELEMENTS, _ENDS),
        ("names in a Metadata request of a client with a mutation quota", MOST_NAMES, _ENDS),
        (
            "topics and partitions in a request that is searched for the gateway's own topics",
            MOST_PARTITIONS,
            _ENDS,
        ),
        ("topics of a Produce, while topics have quotas", topic_use.MOST_TOPICS, _ENDS),
        ("entities in an AlterClientQuotas", MAX_ENTRIES, _ENDS),
        ("resources and setting names in a DescribeConfigs", MOST_ASKED, _ENDS),
        (
            "unknown topic ids in a Produce, where the gateway has topics of its own",
            own_topics.MOST_LOOKUPS,
            "the others are answered with error 100 (UNKNOWN_TOPIC_ID); the client's next try finds more known",
        ),
        (
            "characters of a user or client id",
            MAX_NAME_CHARS,
            "counted under a shortened name: its beginning, `~` and a digest",
        ),
    ],
    "Responses": [
        ("bytes after the records of a response, where brokers are named", MAX_TAIL_BYTES, _ENDS),
        (
            "bytes of the gateway's own replies that wait for an earlier reply",
            MAX_LOCAL_REPLY_BYTES,
            "the client is not read",
        ),
    ],
    "Buffers": [
        (
            "bytes of an incomplete request that are buffered before the gateway forwards it",
            PASS_ON_BYTES,
            "forwarded if `limits.announced_max_request_bytes` has room",
        ),
        (
            "bytes that a connection may always buffer, whatever the total",
            SMALL_BYTES,
            "not read while the total is above `limits.queued_max_request_bytes`",
        ),
        (
            "bytes read ahead from a client whose request waits at the bound of its quota",
            MAX_HELD_BYTES,
            "a disconnect behind them is not noticed",
        ),
    ],
    "Admin port and TLS": [
        (
            "connections to the admin port",
            admin_connections.MAX_CONNECTIONS,
            "the longest silent one is closed",
        ),
        ("viewers of `/events` at the same time", MAX_VIEWERS, "refused"),
        ("bytes of a `POST /quotas/import`", quota_routes.MAX_IMPORT_BYTES, "status 413"),
        ("TLS handshakes that wait for their start", tls_setup.MAX_WAITING, "refused: `overloaded`"),
    ],
}


def page() -> str:
    """docs/reference/limits.md as it should be."""
    lines = [_HEAD]
    for title, rows in _GROUPS.items():
        lines += [f"## {title}", "", "| What | At most | Beyond it |", "|---|---:|---|"]
        lines += [f"| {what} | {most:,} | {beyond} |" for what, most, beyond in rows]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
