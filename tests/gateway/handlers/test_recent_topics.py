"""Topics that were changed a moment ago, while the broker's Metadata still shows the world before."""

from collections.abc import Iterator
from typing import Any

from gateway.handlers.recent_topics import (
    CREATION_NOTE_MS,
    MOST_CREATION_NOTES,
    MOST_NOTES,
    MOST_UNDER_WAY_MS,
    NOTE_MS,
    Creations,
    OpenCharge,
    RecentTopics,
)
from protocol.api_keys import ApiKey
from protocol.error_codes import ErrorCode
from quotas.mutations import MutationDecision
from quotas.resolution import Rule, TrackerKey
from testkit.cluster import ScriptedCluster
from testkit.conversation import Conversation
from testkit.frames import creatable

FULL = 20.0
"""Tokens of a full bucket at 2/s over ten windows of a second."""


class LaggingCluster(ScriptedCluster):
    """Decides by the topics there are, and shows those there were at first."""

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        super().__init__(topics)
        self._shown = dict(self.topics)

    def _metadata(self, version: int, body: Any) -> dict[str, Any]:
        now, self.topics = self.topics, self._shown
        try:
            return super()._metadata(version, body)
        finally:
            self.topics = now


def talk(topics: dict[str, int] | None = None) -> Conversation:
    """A conversation under a quota with a cluster whose Metadata never catches up."""
    return Conversation(controller_mutation_rate=2, cluster=LaggingCluster(topics))


def create(c: Conversation, name: str, partitions: int, *, version: int = 7) -> Any:
    """Exchange a CreateTopics request for one topic."""
    return c.exchange("CreateTopics", version, topics=creatable((name, partitions)), timeout_ms=1_000)


def grow(c: Conversation, name: str, count: int) -> Any:
    """Exchange a CreatePartitions request for one topic."""
    topics = [{"name": name, "count": count, "assignments": None}]
    return c.exchange("CreatePartitions", 3, topics=topics, timeout_ms=1_000, validate_only=False)


def test_a_topic_of_a_moment_ago_costs_what_it_has() -> None:
    c = talk()
    create(c, "a", 5)
    c.exchange("DeleteTopics", 6, topics=[{"name": "a"}], timeout_ms=1_000)
    assert c.core.tokens == FULL - 5 - 5
    c = talk()
    topic_id = create(c, "a", 5).topics[0].topic_id
    c.exchange("DeleteTopics", 6, topics=[{"name": None, "topic_id": topic_id}], timeout_ms=1_000)
    assert c.core.tokens == FULL - 5 - 5
    c = talk()
    create(c, "a", 5)
    grow(c, "a", 6)
    grow(c, "a", 8)
    assert c.core.tokens == FULL - 5 - 1 - 2
    c = talk()
    create(c, "a", 30)
    assert grow(c, "a", 31).results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    c.after(2_000 - 1)
    assert create(c.another(), "a", 1).topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    c = talk({"a": 25})
    c.exchange("DeleteTopics", 6, topics=[{"name": "a"}], timeout_ms=1_000)
    assert c.core.tokens == FULL - 25
    assert create(c, "a", 1).topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_notes_are_of_what_was_done_last() -> None:
    c = talk()
    topics = creatable(("a", 5))
    c.exchange("CreateTopics", 7, topics=topics, timeout_ms=1_000, validate_only=True)
    grow(c, "a", 9)
    assert c.core.tokens == FULL
    recent = RecentTopics()
    recent.note(b"a", 3, now_ms=0)
    recent.note(b"a", 0, now_ms=1)
    assert recent.partitions(b"a", now_ms=2) == 0
    c = talk()
    create(c, "a", 5)
    c.exchange("Metadata", 12, topics=[{"name": "a"}], allow_auto_topic_creation=True)
    assert c.core.tokens == FULL - 5


def test_notes_expire_and_are_bounded_and_a_topic_long_not_shown_costs_what_it_was_created_with() -> None:
    recent = RecentTopics()
    recent.note(b"a", 3, now_ms=1_000)
    assert recent.partitions(b"a", now_ms=1_000 + NOTE_MS - 1) == 3
    assert recent.partitions(b"a", now_ms=1_000 + NOTE_MS) is None
    for number in range(MOST_NOTES + 1):
        recent.note(b"%d" % number, 1, now_ms=2_000)
    assert recent.partitions(b"0", now_ms=2_000) is None
    assert recent.partitions(b"1", now_ms=2_000) == 1
    c = talk()
    create(c, "a", 5)
    c.after(10 * NOTE_MS)
    c.exchange("DeleteTopics", 6, topics=[{"name": "a"}], timeout_ms=1_000)
    assert c.core.tokens == FULL - 5


def test_a_reply_tells_what_a_topic_is_like_only_if_nothing_else_was_under_way() -> None:
    recent = RecentTopics()
    first = recent.begin(b"a", 5, 1_000, now_ms=0)
    refused = recent.begin(b"a", 9, 1_000, now_ms=1)
    recent.end_refused(refused)
    assert recent.end_done(first, 5, now_ms=2)
    growing = recent.begin(b"a", 7, 1_000, now_ms=3)
    deleting = recent.begin(b"a", 0, 1_000, now_ms=3)
    assert not recent.end_done(growing, 7, now_ms=4)
    assert not recent.end_done(deleting, 0, now_ms=5)
    for shown_ms, gone, most in ((4 + NOTE_MS - 1, True, 7), (4 + NOTE_MS, True, 0), (5 + NOTE_MS, False, 0)):
        assert recent.may_be_deleted(b"a", now_ms=shown_ms) is gone
        assert recent.most_partitions(b"a", now_ms=shown_ms) == most
    overtaken = recent.begin(b"b", 7, 1_000, now_ms=6)
    recent.note(b"b", 0, now_ms=7)
    assert not recent.end_done(overtaken, 7, now_ms=8)


def test_what_a_client_does_not_wait_for_is_under_way_until_its_deadline_and_a_minute_at_most() -> None:
    recent = RecentTopics()
    recent.begin(b"a", 0, 1_000, now_ms=0)
    recent.begin(b"b", 0, 2**31 - 1, now_ms=0)
    for name, timeout_ms in ((b"a", 1_000), (b"b", MOST_UNDER_WAY_MS)):
        assert recent.may_be_deleted(name, now_ms=timeout_ms + NOTE_MS - 1)
        assert not recent.may_be_deleted(name, now_ms=timeout_ms + NOTE_MS)


def test_what_is_under_way_is_bounded_and_what_is_forgotten_is_not_taken_at_its_word() -> None:
    recent = RecentTopics()
    oldest = recent.begin(b"first", 0, 1_000, now_ms=0)
    for number in range(MOST_NOTES):
        recent.begin(b"%d" % number, 0, 1_000, now_ms=0)
    assert not recent.may_be_deleted(b"first", now_ms=0)
    assert recent.may_be_deleted(b"0", now_ms=0)
    assert not recent.end_done(oldest, 0, now_ms=1)


def open_charge(client_id: str, due_ms: int) -> OpenCharge:
    decision = MutationDecision(True, 0, 3, TrackerKey("", client_id), Rule.CLIENT, 1.0, 3)
    return OpenCharge("u", client_id, ApiKey.CREATE_TOPICS, 3, decision, due_ms)


def test_open_charges_are_bounded_and_their_client_s_alone() -> None:
    recent = RecentTopics()
    for number in range(MOST_NOTES + 1):
        recent.leave_open(b"%d" % number, open_charge("x" if number % 2 else "y", 10))
    assert recent.take_due("u", "x", now_ms=9) == {}
    assert recent.take_due("somebody else", "x", now_ms=10) == {}
    assert len(recent.take_due("u", "x", now_ms=10)) == MOST_NOTES // 2
    assert recent.take_due("u", "x", now_ms=10) == {}
    due = recent.take_due("u", "y", now_ms=10)
    assert (len(due), b"0" in due) == (MOST_NOTES // 2, False)


class _Walked(dict[bytes, int]):
    """Counts what is looked at."""

    seen = 0

    def __iter__(self) -> Iterator[bytes]:
        for each in super().__iter__():
            self.seen += 1
            yield each

    def items(self) -> Any:
        self.seen += len(self)
        return super().items()


def test_creations_beyond_the_cap_are_noted_without_a_look_at_all_others() -> None:
    creations = Creations()
    creations.expires_ms = _Walked()
    names = [str(number).encode() for number in range(MOST_CREATION_NOTES + 500)]
    assert creations.claim(names, now_ms=0) == names
    assert creations.expires_ms.seen <= 2 * 500
    assert creations.claim(names[:2] + names[-2:], now_ms=1) == names[:2]
    assert creations.claim([b"late"], now_ms=CREATION_NOTE_MS) == [b"late"]
    assert list(creations.expires_ms) == [*names[:2], b"late"]
