"""StreamsGroupHeartbeat: what creates topics unpaid, or names the gateway's own, does not reach the broker."""

from struct import unpack_from

import pytest

from protocol.error_codes import ErrorCode
from quotas.entities import QuotaEntity
from testkit.conversation import Conversation
from testkit.frames import streams_heartbeat

JOIN = streams_heartbeat("g", "source", "g-changelog", correlation_id=7)


@pytest.mark.parametrize(
    ("rate", "own", "error_code"),
    [(2.0, (), ErrorCode.UNSUPPORTED_VERSION), (None, ("g-changelog",), ErrorCode.TOPIC_AUTHORIZATION_FAILED)],
)
def test_what_may_create_unpaid_or_own_topics_is_refused(
    rate: float | None, own: tuple[str, ...], error_code: int
) -> None:
    c = Conversation(controller_mutation_rate=rate, own_topics=own).client_sends(JOIN).upstream_sees()
    assert unpack_from(">ibih", c.take_client(), 4) == (7, 0, 0, error_code)


@pytest.mark.parametrize("observed", [False, True])
def test_clients_without_an_enforced_quota_join_as_ever(observed: bool) -> None:
    c = Conversation(controller_mutation_rate=2 if observed else None, own_topics=("another",))
    c.core.limits.set_observed([QuotaEntity(user="ANONYMOUS")])
    c.client_sends(JOIN).upstream_sees(JOIN)
