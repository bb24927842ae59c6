"""The topic of a fleet where the cluster refuses its settings; all else is in tests/integration/test_fleet.py."""

from gateway.fleet.topic import ShareTopic, ShareTopicSettings
from testkit.raw_client import until
from testkit.topic_cluster import TopicCluster

POLICY_VIOLATION = 44


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
