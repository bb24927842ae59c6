"""The topic of a fleet when the cluster refuses its settings, or when it cannot be read."""

import asyncio
import threading

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from gateway.fleet.topic import ShareTopic, ShareTopicSettings
from testkit.raw_client import until
from testkit.topic_cluster import NONE, TopicCluster

REQUEST_TIMED_OUT, POLICY_VIOLATION = 7, 44
UNKNOWN = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic"))


@pytest.mark.parametrize(
    ("failure", "reason", "traceback"),
    [
        (TimeoutError(), "the brokers did not answer in time", False),
        (UNKNOWN, "no such topic", False),
        (ValueError("a bug"), "ValueError: a bug", True),
    ],
)
async def test_the_reason_is_named_and_only_a_bug_has_a_traceback(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, reason: str, traceback: bool
) -> None:
    def fails(_: ShareTopic) -> None:
        raise failure

    monkeypatch.setattr(ShareTopic, "_have_topic", fails)
    topic = ShareTopic(ShareTopicSettings("shares", None, 1_000, {}), "a")
    assert topic.trouble == "topic shares has not been read since the start"
    with capture_logs() as logs:
        topic.start(lambda _: None)
        await until(lambda: topic.trouble == f"topic shares: {reason}")
        await topic.stop()
    (line,) = logs
    assert (line["event"], line["error"]) == ("fleet_topic_not_followed", reason)
    assert (line["exc_info"] is not None) is traceback


async def test_settings_that_the_cluster_refuses_are_left_to_it() -> None:
    """A managed cluster may want a retention of an hour at least."""
    cluster = TopicCluster()
    cluster.refusals = [POLICY_VIOLATION]
    async with cluster.broker:
        topic = ShareTopic(ShareTopicSettings("fleet", None, 1_000, cluster.client), "a")
        topic.start(lambda _shares: None)
        await until(lambda: len(cluster.asked_for) == 2)
        await topic.stop()
    wanted, made = cluster.asked_for
    assert {each.name for each in wanted.configs} == {"cleanup.policy", "retention.ms", "segment.ms", "segment.bytes"}
    assert (made.name, made.num_partitions, made.replication_factor, list(made.configs)) == ("fleet", 1, -1, [])


@pytest.mark.parametrize("refusals", [[POLICY_VIOLATION] * 2, [REQUEST_TIMED_OUT]])
async def test_a_topic_that_is_there_is_followed_though_it_could_not_be_made(refusals: list[int]) -> None:
    cluster = TopicCluster()
    cluster.refusals, cluster.there = refusals, NONE
    async with cluster.broker:
        followed = threading.Event()
        topic = ShareTopic(ShareTopicSettings("fleet", None, 1_000, cluster.client), "a")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(topic, "_follow", followed.set)
            topic.start(lambda _shares: None)
            assert await asyncio.to_thread(followed.wait, 60)
            await topic.stop()
