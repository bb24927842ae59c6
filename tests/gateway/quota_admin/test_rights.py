"""Who may change quotas, and what is counted of it."""

import pytest

from config.sections.quota_admin import Authorize
from gateway.observability.events import AdminApi, AdminOutcome
from gateway.quota_admin.rights import Asker
from quotas.entities import QuotaEntity, QuotaKey
from quotas.layered_quotas import QuotaChange
from testkit.quota_admin import ScriptedAlterations

ASKER = Asker("alice", "192.0.2.1:40000", "tests")


@pytest.mark.parametrize(
    ("authorize", "others"), [(Authorize.DENY, False), (Authorize.ASK_CLUSTER, None), (Authorize.ANYONE, True)]
)
def test_admins_always_may_and_others_as_is_configured(authorize: Authorize, others: bool | None) -> None:
    admin = ScriptedAlterations(authorize=authorize, admins=["root"]).admin
    assert admin.may("root") is True
    assert admin.may("alice") is others
    assert admin.may("User:root") is others
    assert admin.may("") is others


def test_rights_change_in_a_running_gateway_and_outcomes_are_counted() -> None:
    admin = ScriptedAlterations(authorize=Authorize.DENY, admins=["root"]).admin
    admin.set_rights(Authorize.DENY, ["alice"])
    assert (admin.may("alice"), admin.may("root")) == (True, False)
    admin = ScriptedAlterations().admin
    admin.count(AdminApi.ALTER_QUOTAS, AdminOutcome.DONE)
    admin.count(AdminApi.ALTER_QUOTAS, AdminOutcome.DONE)
    assert admin.outcomes[AdminApi.ALTER_QUOTAS, AdminOutcome.DONE] == 2
    assert ASKER.via == "listener tests, 192.0.2.1:40000"


def test_a_change_is_written_down_with_what_was_in_force_before_and_is_now() -> None:
    scripted = ScriptedAlterations()
    entity, key = QuotaEntity(user="u"), QuotaKey.PRODUCER_BYTE_RATE
    scripted.quotas.replace_base([(entity, key, 7.0)])
    scripted.admin.note_changes(ASKER, [(QuotaChange(entity, key, None), 9.0)])
    assert scripted.audit.lines == [("changed", "alice", "user=u", "producer_byte_rate", 9.0, 7.0)]
    assert scripted.admin.changes == 1
