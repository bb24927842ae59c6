"""What is reported of mutations and logins, and what is not; and that off, nothing is."""

from __future__ import annotations

import pytest

from gateway.observability.events import CloseCause
from gateway.observability.traces import MAX_PHASES, SpanBudget, Trace
from testkit.cluster import ScriptedCluster
from testkit.conversation import Conversation
from testkit.core import START_MS
from testkit.frames import create_topics
from testkit.sasl import PLAIN_ALICE, SCRAM_CHALLENGE, SCRAM_FIRST, SaslConversation, oauth


class Sink(list[Trace]):
    """Keeps what is reported."""

    def take(self, trace: Trace, *, now_ms: int) -> None:
        assert trace.ended_ms == now_ms
        self.append(trace)


def phases(trace: Trace) -> list[tuple[str, int, int]]:
    return [(name, began - START_MS, ended - START_MS) for name, began, ended in trace.phases]


def test_a_mutation_is_told_with_the_time_of_each_of_its_questions_and_what_came_of_it() -> None:
    sink = Sink()
    c = Conversation(controller_mutation_rate=2, cluster=ScriptedCluster({"exists": 1}), traces=sink)
    c.client_sends(create_topics(1, ("a", 30), ("exists", 1), ("refused", 1)))
    for ms in (100, 250, 400):
        assert sink == []
        c.at(ms).upstream_answers(c.cluster.answer(c.take_upstream()))
    (told,) = sink
    assert phases(told) == [("ask_cluster", 0, 100), ("validate", 100, 250), ("broker", 250, 400)]
    assert (told.name, told.began_ms - START_MS, told.failure) == ("create_topics", 0, None)
    assert told.attributes == {
        "sluice.listener": "tests",
        "client.address": "192.0.2.1:40000",
        "enduser.id": "ANONYMOUS",
        "messaging.client.id": "tests",
        "sluice.api_version": 7,
        "sluice.correlation_id": 1,
        "sluice.topics": 3,
        "sluice.validate_only": False,
        "sluice.throttle_ms": 4_850,
        "sluice.outcome": "answered",
        "sluice.permits": 30,
        "sluice.refused_topics": 1,
    }
    # In debt it is answered here.
    c.after(5_000).client_sends(create_topics(2, ("b", 60))).serve()
    c.client_sends(create_topics(3, ("c", 1))).serve()
    assert [trace.attributes["sluice.outcome"] for trace in sink[1:]] == ["answered", "answered_here"]


def test_a_mutation_that_the_broker_never_answers_is_told_when_its_connection_ends() -> None:
    sink = Sink()
    c = Conversation(controller_mutation_rate=2, traces=sink).client_sends(create_topics(1, ("a", 1)))
    c.at(30_000).session.ended(now_ms=c.clock.now_ms)
    (told,) = sink
    assert (told.failure, phases(told)) == ("the connection ended", [("ask_cluster", 0, 30_000)])


@pytest.mark.parametrize("taken", [0, 58])
def test_a_login_is_told_with_the_name_that_the_broker_has_accepted_and_no_other(taken: int) -> None:
    sink = Sink()
    c = SaslConversation(traces=sink).shakes_hands("PLAIN").at(10)
    c.round(PLAIN_ALICE, b"", error_code=taken)
    (told,) = sink
    assert told.name == "login"
    assert [name for name, _, _ in told.phases] == ["handshake", "authenticate"]
    if taken:
        c.at(500).closed(CloseCause.AUTHENTICATION_FAILED)
        c.session.ended(now_ms=c.clock.now_ms)
        assert told.failure == "the broker refused it"
    else:
        assert (told.attributes["sluice.result"], told.attributes["enduser.id"]) == ("success", "alice")
        c.authenticates("SCRAM-SHA-256")
        assert sink.pop().attributes["sluice.result"] == "reauthenticated"
    assert sink == [told]
    text = repr((told.attributes, told.phases, told.failure))
    assert "canary" not in text
    assert ("alice" in text) is (taken == 0)


def test_a_login_that_never_ends_has_few_phases_and_is_told_when_the_connection_ends() -> None:
    sink = Sink()
    c = SaslConversation(traces=sink).shakes_hands("OAUTHBEARER")
    for _ in range(3 * MAX_PHASES):
        c.round(oauth("alice"), b"{}")
    c.session.ended(now_ms=c.clock.now_ms)
    assert [(trace.failure, len(trace.phases)) for trace in sink] == [("the connection ended", MAX_PHASES)]


def test_off_there_is_no_trace() -> None:
    c = Conversation(controller_mutation_rate=2).client_sends(create_topics(1, ("a", 1)))
    c.serve()
    assert c.session._open_traces is None
    assert SaslConversation().authenticates().session.authentication.trace is None  # type: ignore[union-attr]
    c2 = SaslConversation().shakes_hands("SCRAM-SHA-256").round(SCRAM_FIRST, SCRAM_CHALLENGE)
    assert c2.session._open_traces is None


def test_a_flood_of_one_kind_leaves_the_others_room() -> None:
    budget = SpanBudget(3)
    assert [budget.take("login", now_ms=1_000 + at) for at in range(5)] == [True] * 3 + [False] * 2
    assert budget.take("alter_quotas", now_ms=1_005)
    assert budget.take("login", now_ms=2_000)
