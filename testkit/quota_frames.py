"""Requests of the quota APIs, and their answers, in conversations with a gateway."""

from __future__ import annotations

from typing import Any

from testkit import wire
from testkit.conversation import Conversation


def entry(entity: dict[str, str | None], **ops: float | None) -> dict[str, Any]:
    """One entry of an alteration; None removes a quota."""
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops.items()],
    }


def alter(
    *entries: dict[str, Any], version: int = 1, validate_only: bool = False, correlation_id: int = 1
) -> bytes:
    return wire.request(
        "AlterClientQuotas",
        version,
        entries=list(entries),
        validate_only=validate_only,
        correlation_id=correlation_id,
    )


def describe(*components: tuple[str, int, str | None], strict: bool = False, version: int = 1) -> bytes:
    rows = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    return wire.request("DescribeClientQuotas", version, components=rows, strict=strict)


def answers(c: Conversation, version: int = 1) -> list[tuple[int, str | None]]:
    """The response to an alteration's client, entry by entry."""
    body = wire.decode_response("AlterClientQuotas", version, c.take_client())
    return [(each.error_code, each.error_message) for each in body.entries]


def make_durable(c: Conversation, failure: str | None = None) -> Conversation:
    """The store finishes the oldest alteration, or lets it fail."""

    def finish(now_ms: int) -> None:
        c.core.desk.finish(now_ms=now_ms, failure=failure)

    return c.step(finish)
