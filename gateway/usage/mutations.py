"""Controller mutations in usage records: an event per topic, and sums in the client's row. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.usage.row import Level, RowKey, UsageRow
from gateway.usage.table import LevelOf, UsageTable
from quotas.mutations import MutationDecision, MutationQuotas
from quotas.resolution import TrackerKey
from quotas.usage_record import UsageApi


def record_mutations(
    usage: UsageTable,
    listener: str,
    user: str,
    client_id: str,
    api: str,
    topics: Iterable[tuple[object, MutationDecision]],
    *,
    strict: bool,
    correlation_id: int,
    now_ms: int,
) -> UsageRow | None:
    """Count the decisions on the topics of one request.

    Args:
        usage: the table.
        listener, user, client_id: of the request.
        api: as `quotas.usage_record.Event.API` is written.
        topics: the name or id of each topic, and the decision on it. A topic that costs nothing is no mutation.
        strict: whether the client can read error 89.
        correlation_id: of the request.
        now_ms: the present.

    Returns:
        The client's row, for counting the effects of the decision; None when no topic costs anything.
    """
    charged = [(subject, decision) for subject, decision in topics if decision.permits]
    if not charged:
        return None
    first = charged[0][1]
    if first.limit is not None:
        user, client_id = first.tracker_key
    row = usage.row(listener, user, client_id, UsageApi.MUTATION)
    row.count(sum(decision.permits for _, decision in charged))
    for subject, decision in charged:
        if not decision.accepted:
            row.reject(decision.permits)
        usage.event(
            row,
            api,
            subject,
            decision.permits,
            strict=strict,
            admitted=decision.accepted,
            throttle_ms=decision.throttle_time_ms,
            correlation_id=correlation_id,
            now_ms=now_ms,
        )
    return row


def mutation_level(mutations: MutationQuotas) -> LevelOf:
    """A function that gives the limit and the tokens of a mutation counter."""

    def level_of(key: RowKey, now_ms: int) -> Level:
        limit, tokens, observe = mutations.level(TrackerKey(key.user, key.client_id), now_ms=now_ms)
        return Level(limit, None if tokens is None else round(tokens, 3), observe)

    return level_of
