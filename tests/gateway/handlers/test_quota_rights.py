"""Who may see and change quotas: known here, or asked of the broker on the client's own connection."""

import math
from typing import Any

import pytest

from config.sections.quota_admin import Authorize
from gateway.observability.events import AdminApi, AdminOutcome
from quotas.entities import QuotaEntity, QuotaKey
from testkit import wire
from testkit.conversation import Conversation
from testkit.frames import heartbeat
from testkit.quota_frames import alter, answers, describe, entry, make_durable

RATE = QuotaKey.PRODUCER_BYTE_RATE
ALICE = QuotaEntity(user="alice")


def test_g13_who_may_not_gets_31_for_every_entry_and_nothing_changes() -> None:
    c = Conversation(authorize=Authorize.DENY, user="mallory")
    c.core.limits.set(ALICE, RATE, 3.0)
    entries = [
        entry({"user": "alice"}, producer_byte_rate=5.0),
        entry({"user": "alice"}, producer_byte_rate=math.nan),
        entry({"foo": ""}),
    ]
    c.client_sends(alter(*entries))
    assert answers(c) == [(31, "Cluster authorization failed.")] * 3
    assert (c.core.desk.waiting, c.core.limits.get(ALICE, RATE)) == ([], 3.0)
    first, second = c.core.desk.audit.lines
    assert first == ("refused", "mallory", "user=alice", "producer_byte_rate", 3.0, 5.0)
    assert second[:4] == first[:4]
    assert c.core.desk.admin.outcomes == {(AdminApi.ALTER_QUOTAS, AdminOutcome.REFUSED): 1}
    c.client_sends(describe())
    body = wire.decode_response("DescribeClientQuotas", 1, c.take_client())
    assert (body.error_code, body.error_message, body.entries) == (31, None, None)
    assert c.core.desk.audit.lines[-1] == ("description refused", "mallory")


def test_g14_admins_may_and_those_who_did_not_authenticate_may_nothing_by_default() -> None:
    c = Conversation(authorize=Authorize.DENY)
    c.client_sends(alter(entry({"user": "alice"}, producer_byte_rate=5.0)))
    assert answers(c) == [(31, "Cluster authorization failed.")]
    c = Conversation(authorize=Authorize.DENY, admins=["root"], user="root")
    c.client_sends(alter(entry({"user": "alice"}, producer_byte_rate=5.0)))
    make_durable(c)
    assert answers(c) == [(0, None)]


class Asking:
    """A client of whom the cluster decides, and its question."""

    def __init__(self, *entries: dict[str, Any]) -> None:
        self.c = Conversation(authorize=Authorize.ASK_CLUSTER, user="alice")
        self.request = alter(*entries, correlation_id=9)
        self.c.client_sends(self.request, heartbeat(10))
        self.question = wire.decode_request("AlterClientQuotas", 1, self.c.take_upstream())

    def broker_says(self, *codes: int) -> Conversation:
        """One code for each entry."""
        rows = [{"error_code": code, "error_message": "broker's", "entity": []} for code in codes]
        return self.c.upstream_answers(
            wire.response("AlterClientQuotas", 1, correlation_id=9, throttle_time_ms=0, entries=rows)
        )


def test_the_cluster_is_asked_without_changing_or_telling_anything() -> None:
    asking = Asking(entry({"user": "alice"}, producer_byte_rate=5.0))
    assert asking.question.validate_only is True
    assert asking.question.entries[0].ops[0].value == 5.0
    c = asking.broker_says(0).upstream_sees()
    make_durable(c)
    assert answers(c) == [(0, None)]
    c.upstream_sees(heartbeat(10))
    c = Conversation(authorize=Authorize.ASK_CLUSTER)
    for code, entries in ((31, None), (0, [])):
        c.client_sends(describe())
        question = wire.decode_request("DescribeClientQuotas", 1, c.take_upstream())
        assert (list(question.components), question.strict) == ([], True)
        c.upstream_answers(
            wire.response("DescribeClientQuotas", 1, error_code=code, error_message=None, entries=entries)
        )
        body = wire.decode_response("DescribeClientQuotas", 1, c.take_client())
        assert (body.error_code, body.entries) == (code, entries)
        c.reading()


@pytest.mark.parametrize("code", [31, 7, 41, -1])
def test_whatever_is_no_permission_of_the_cluster_is_none(code: int) -> None:
    asking = Asking(*[entry({"user": "alice"}, producer_byte_rate=5.0)] * 2)
    c = asking.broker_says(42, code)
    assert answers(c) == [(code, "broker's")] * 2
    assert c.core.desk.waiting == []
    c.upstream_sees(heartbeat(10))


def test_only_a_yes_of_the_cluster_is_permission() -> None:
    c = Asking(entry({"user": "alice"}, producer_byte_rate=5.0)).broker_says()
    assert answers(c) == [(31, "Cluster authorization failed.")]
    assert c.core.desk.waiting == []
    asking = Asking(entry({"ip": "10.1.0.0/16"}, connection_creation_rate=5.0))
    c = asking.broker_says(42)
    make_durable(c)
    assert answers(c) == [(0, None)]
