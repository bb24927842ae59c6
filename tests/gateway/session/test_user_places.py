"""The connections of users, as a session sees them: at login, while it waits, and at its end."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.observability.events import CloseCause
from gateway.session.mute import MuteReason
from protocol.sasl import Mechanism
from quotas.entities import QuotaEntity, QuotaKey
from quotas.user_connections import REFUSED_HOLD_MS
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import GatewayCore
from testkit.sasl import EXCHANGES, PLAIN_ALICE, SaslConversation, SaslCore, token_reply

COUNT, RATE = QuotaKey.CONNECTION_COUNT, QuotaKey.CONNECTION_CREATION_RATE
METADATA = wire.request("Metadata", 9, correlation_id=7, topics=[])


def core_with(kind: type[GatewayCore] = GatewayCore, **quotas: float) -> Any:
    core = kind()
    for key, value in quotas.items():
        core.set_quota(QuotaKey(key), value)
    return core


def logged_in(core: SaslCore, mechanism: str = "PLAIN") -> SaslConversation:
    c = SaslConversation(core=core).shakes_hands(mechanism)
    for message, answer in EXCHANGES[mechanism]:
        c.round(message, answer)
    return c


def used_up(core: Any, connections: int) -> None:
    for _ in range(connections):
        core.users.enter(core.user, object(), now_ms=core.clock.now_ms)


@pytest.mark.parametrize("mechanism", EXCHANGES)
def test_a_connection_counts_from_its_login_to_its_end(mechanism: str) -> None:
    core = core_with(SaslCore)
    c = SaslConversation(core=core).shakes_hands(mechanism)
    assert not core.users.by_user
    for message, answer in EXCHANGES[mechanism]:
        assert not core.users.by_user
        c.round(message, answer)
    assert core.users.by_user == {"alice": 1}
    c.session.ended(now_ms=core.clock.now_ms)
    assert not core.users.by_user


def test_a_listener_without_login_counts_its_connections_for_anonymous_at_once() -> None:
    core = core_with(connection_count=1)
    c = Conversation(core=core)
    assert core.users.by_user == {"ANONYMOUS": 1}
    refused = Conversation(core=core).still_muted()
    refused.at(REFUSED_HOLD_MS).closed(CloseCause.USER_CONNECTION_COUNT)
    c.client_sends(METADATA).upstream_sees(METADATA)


def test_over_the_count_the_login_is_answered_and_the_connection_ends_after_a_second() -> None:
    core = core_with(SaslCore, connection_count=1)
    logged_in(core).client_sends(METADATA).upstream_sees(METADATA)
    c = logged_in(core).still_muted()
    assert c.session.refusal is not None
    assert c.session.refusal.cause == "user_connection_count"
    assert "user alice" in str(c.session.refusal)
    c.client_sends(METADATA).after(REFUSED_HOLD_MS - 1).alive().upstream_sees()
    c.after(1).closed(CloseCause.USER_CONNECTION_COUNT).upstream_sees()
    assert core.users.by_user == {"alice": 1}


def test_where_too_many_are_held_a_refused_connection_ends_with_the_answer_to_its_login() -> None:
    core = core_with(SaslCore, connection_count=1)
    used_up(core, 3)
    c = SaslConversation(core=core).shakes_hands("PLAIN")
    c.sends_token(PLAIN_ALICE)
    reply = token_reply(1002)
    c.upstream_answers(reply).client_sees(reply).closed(CloseCause.USER_CONNECTION_COUNT)


def test_over_the_rate_a_connection_is_read_when_its_turn_comes() -> None:
    core = core_with(SaslCore, connection_creation_rate=2)
    used_up(core, 5)
    first, second = logged_in(core), logged_in(core)
    for c in (first, second):
        c.client_sends(METADATA).upstream_sees().still_muted()
        assert c.session.muted == MuteReason.AWAITING_TURN
    first.at(499).upstream_sees().at(500).upstream_sees(METADATA)
    second.at(999).upstream_sees().at(1_000).upstream_sees(METADATA)
    assert core.users.by_user["alice"] == 7


def test_what_was_read_before_the_mute_waits_for_the_turn_too() -> None:
    core = core_with(SaslCore, connection_creation_rate=1)
    used_up(core, 3)
    c = SaslConversation(core=core).shakes_hands("PLAIN")
    c.sends_token(PLAIN_ALICE)
    c.push(METADATA).upstream_answers(token_reply(1002)).take_client()
    c.at(999).upstream_sees().at(1_000).upstream_sees(METADATA)


def test_a_connection_that_ends_while_it_waits_gives_its_turn_to_the_next() -> None:
    core = core_with(SaslCore, connection_creation_rate=1)
    used_up(core, 3)
    first, second = logged_in(core), logged_in(core)
    first.session.ended(now_ms=core.clock.now_ms)
    assert logged_in(core).session.wake_at_ms == core.clock.now_ms + 2_000
    second.at(2_000).client_sends(METADATA).upstream_sees(METADATA)


def test_a_client_that_half_closes_while_it_waits_is_dropped_with_what_it_sent() -> None:
    core = core_with(connection_creation_rate=1)
    used_up(core, 3)
    c = Conversation(core=core).push(METADATA).client_half_closes()
    c.at(1_500).upstream_sees().closed(CloseCause.CLIENT_CLOSED)


def test_a_second_login_counts_once_and_never_waits() -> None:
    core = core_with(SaslCore, connection_count=1, connection_creation_rate=1)
    c = logged_in(core)
    for _ in range(20):
        c.shakes_hands("PLAIN").round(PLAIN_ALICE, b"").reading()
    assert core.users.by_user == {"alice": 1}
    assert core.authentications[0][0] is Mechanism.PLAIN


def test_a_failed_login_counts_for_no_user() -> None:
    core = core_with(SaslCore, connection_count=1)
    SaslConversation(core=core).shakes_hands("PLAIN").round(PLAIN_ALICE, error_code=58)
    assert not core.users.by_user
    assert logged_in(core).reading()


def test_a_wait_outlasts_the_deadlines_of_a_client_that_cannot_send() -> None:
    core = core_with(connection_creation_rate=1)
    used_up(core, 3)
    core.users.enter(core.user, object(), now_ms=core.clock.now_ms)
    c = Conversation(core=core)
    c.session._frame_deadline_ms = core.clock.now_ms + 1_500
    c.session.wake_at_ms = core.clock.now_ms + 1_500
    c.at(1_999).alive().at(2_000).reading()


def test_why_names_the_quota_of_a_user_whose_connection_waited() -> None:
    core = core_with(connection_creation_rate=1)
    used_up(core, 3)
    Conversation(core=core)
    (entry,) = core.journal.of("ANONYMOUS", "")
    assert (entry.by, entry.api, entry.told_ms, entry.entity) == (
        "connection",
        "held",
        1_000,
        QuotaEntity("ANONYMOUS"),
    )
