"""What handlers share."""

from gateway.usage.table import UsageTable
from quotas.entities import QuotaKey
from quotas.limits import Enforcement
from testkit.core import GatewayCore


def test_mutations_are_counted_while_any_mutation_quota_is_set() -> None:
    core = GatewayCore()
    assert not core.context.mutations_enabled
    core.set_quota(QuotaKey.PRODUCER_BYTE_RATE, 10)
    assert not core.context.mutations_enabled
    core.set_quota(QuotaKey.CONTROLLER_MUTATION_RATE, 10)
    assert core.context.mutations_enabled
    core.set_quota(QuotaKey.CONTROLLER_MUTATION_RATE, None)
    assert not core.context.mutations_enabled


def test_mutations_are_seen_for_a_quota_or_for_usage_records_and_for_neither_with_all_quotas_off() -> None:
    plain, recording = GatewayCore(), GatewayCore(usage=UsageTable())
    assert (plain.context.mutations_seen, recording.context.mutations_seen) == (False, True)
    assert not recording.context.mutations_enabled
    for core in (plain, recording):
        core.set_quota(QuotaKey.CONTROLLER_MUTATION_RATE, 10)
        assert core.context.mutations_seen
        core.limits.set_mode(Enforcement.OFF)
        assert not core.context.mutations_seen
