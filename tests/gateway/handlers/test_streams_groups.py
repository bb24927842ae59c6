"""StreamsGroupHeartbeat: what creates topics unpaid, or names the gateway's own, does not reach the broker."""

import pytest

from protocol.error_codes import ErrorCode
from quotas.entities import QuotaEntity
from testkit import wire
from testkit.conversation import Conversation
from testkit.frames import streams_heartbeat

JOIN = streams_heartbeat("g", "source", "g-changelog", correlation_id=7)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("rate", "own", "error_code"),
    [(2.0, (), ErrorCode.UNSUPPORTED_VERSION), (None, ("g-changelog",), ErrorCode.TOPIC_AUTHORIZATION_FAILED)],
)
def test_what_may_create_unpaid_or_own_topics_is_refused(
    rate: float | None, own: tuple[str, ...], error_code: int, version: int
) -> None:
    join = streams_heartbeat("g", "source", "g-changelog", version=version, correlation_id=7)
    c = Conversation(controller_mutation_rate=rate, own_topics=own).client_sends(join).upstream_sees()
    frame = c.take_client()
    refusal = wire.decode_response("StreamsGroupHeartbeat", version, frame)
    assert (wire.correlation_id_of(frame), refusal.error_code) == (7, error_code)
    # No member, no tasks, nothing to do.
    said = {name: value for name, value in refusal.to_dict().items() if value}
    lag = {"acceptable_recovery_lag": -1} if version >= 1 else {}
    assert said == {"error_code": error_code, "error_message": refusal.error_message, **lag}


@pytest.mark.parametrize("observed", [False, True])
def test_clients_without_an_enforced_quota_join_as_ever(observed: bool) -> None:
    c = Conversation(controller_mutation_rate=2 if observed else None, own_topics=("another",))
    c.core.limits.set_observed([QuotaEntity(user="ANONYMOUS")])
    c.client_sends(JOIN).upstream_sees(JOIN)
