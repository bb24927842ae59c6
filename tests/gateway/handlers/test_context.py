"""What handlers share."""

from __future__ import annotations

from quotas.entities import QuotaKey
from tests.support.core import GatewayCore


def test_mutations_are_counted_while_any_mutation_quota_is_set() -> None:
    core = GatewayCore()
    assert not core.context.mutations_enabled
    core.set_quota(QuotaKey.PRODUCER_BYTE_RATE, 10)
    assert not core.context.mutations_enabled
    core.set_quota(QuotaKey.CONTROLLER_MUTATION_RATE, 10)
    assert core.context.mutations_enabled
    core.set_quota(QuotaKey.CONTROLLER_MUTATION_RATE, None)
    assert not core.context.mutations_enabled
