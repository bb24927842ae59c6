"""Charges one topic that a broker creates automatically because a request names it."""

from __future__ import annotations

from gateway.handlers.context import HandlerContext
from gateway.session.routes import Session
from gateway.usage.mutations import record_mutations
from gateway.usage.row import UsageRow
from protocol.api_keys import ApiKey
from quotas.mutations import MutationDecision


def charge_creation(
    context: HandlerContext,
    session: Session,
    client_id: str,
    name: bytes,
    permits: int,
    *,
    strict: bool,
    now_ms: int,
) -> tuple[MutationDecision, UsageRow | None]:
    """Decide about one topic as CreateTopics would, and record the decision in the usage records.

    Args:
        context: the listener's context.
        session: the client's session.
        client_id: of the request.
        name: of the topic.
        permits: the price of the topic.
        strict: whether the topic can be refused.
        now_ms: the time.

    Returns:
        The decision, and the client's row in the usage records; None without them.
    """
    decision = context.mutations.charge(
        session.user,
        client_id,
        permits,
        strict=strict,
        kind=session.kind,
        address=session.address,
        now_ms=now_ms,
    )
    if context.usage is None:
        return decision, None
    row = record_mutations(
        context.usage,
        context.listener,
        session.user,
        client_id,
        ApiKey.CREATE_TOPICS.name.lower(),
        [(name, decision)],
        strict=strict,
        correlation_id=0,  # a request may create several topics, each with its own record
        now_ms=now_ms,
    )
    return decision, row
