"""Charges one topic that a broker creates by itself, because a request names it."""

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
    """Decide one topic as CreateTopics would, and keep the decision in the usage records.

    Args:
        context: of the listener.
        session: where the request came in.
        client_id: of the request.
        name: of the topic.
        permits: what it costs.
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
        correlation_id=0,  # as many topics as it names, each of them by itself
        now_ms=now_ms,
    )
    return decision, row
