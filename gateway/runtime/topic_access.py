"""Creates the gateway's own topics, and finds out whether any client may write to them. [io]: it blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

_ANYBODY: Final = frozenset({"User:ANONYMOUS", "User:*"})
_CHANGES: Final = frozenset(
    {
        AclOperation.ALL,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.ALTER_CONFIGS,
    }
)

_SETTINGS_REFUSED: Final = (
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
)

_REPLICAS: Final = 3

_PASSING: Final = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    # Not every broker knows a new topic yet.
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_CONTROLLER,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.INVALID_REPLICATION_FACTOR,  # while not all brokers have started
)

FORBIDDEN: Final = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def may_pass(error: KafkaError) -> bool:
    """Whether the same request may succeed later. librdkafka's `retriable` is about transactions alone."""
    return error.code() in _PASSING


def own_replicas(admin: Any, brokers: Sequence[Any], *, timeout_s: float) -> int:
    """How many replicas a topic of the gateway's own should have: 3, or fewer in a small cluster.

    A cluster that is starting lists few brokers. So it is `default.replication.factor` at least, if that may be read.

    Args:
        admin: confluent-kafka's client.
        brokers: the nodes that the cluster lists.
        timeout_s: for the request.

    Raises:
        KafkaException: the brokers did not respond; another attempt may succeed.
    """
    listed = min(_REPLICAS, len(brokers))
    if listed == _REPLICAS:
        return listed
    try:
        default = _broker_configs(admin, brokers[0].id, timeout_s)["default.replication.factor"].value
        return max(listed, min(_REPLICAS, int(default)))
    except (LookupError, TypeError, ValueError):
        return listed
    except KafkaException as exc:
        if may_pass(exc.args[0]):
            raise
        return listed


def _broker_configs(admin: Any, broker_id: int, timeout_s: float) -> Any:
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker_id))
    (described,) = admin.describe_configs([resource], request_timeout=timeout_s).values()
    return described.result()


def make_topic(admin: Any, wanted: NewTopic, fallback: NewTopic, *, timeout_s: float) -> NewTopic:
    """Create a topic.

    Args:
        admin: confluent-kafka's client.
        wanted: the topic with all its settings.
        fallback: the same topic without the settings that a managed cluster may refuse.
        timeout_s: for each of the two requests.

    Returns:
        The topic that was created.

    Raises:
        KafkaException: why `wanted` was not created. The fallback was refused too, or could not avoid the error. Or
            why the fallback was not created, if that may pass.
    """
    try:
        _make(admin, wanted, timeout_s)
        return wanted
    except KafkaException as exc:
        if exc.args[0].code() not in _SETTINGS_REFUSED:
            raise
        try:
            _make(admin, fallback, timeout_s)
        except KafkaException as again:
            raise (again if may_pass(again.args[0]) else exc) from None
        return fallback


def _make(admin: Any, topic: NewTopic, timeout_s: float) -> None:
    (made,) = admin.create_topics([topic], request_timeout=timeout_s).values()
    made.result()


def is_there(admin: Any, topic: str, *, timeout_s: float) -> bool:
    """Whether a broker knows the topic, and the gateway may see it.

    Args:
        admin: confluent-kafka's client.
        topic: the topic's name.
        timeout_s: for the request.
    """
    (found,) = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s).values()
    return found.exception() is None


def open_to_anybody(admin: Any, topic: str, *, timeout_s: float) -> str | None:
    """Why any client may change a topic, in a few words; None: unknown clients may not, or the gateway may not ask.

    Args:
        admin: confluent-kafka's client.
        topic: the topic's name.
        timeout_s: for the request.
    """
    asked = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ALLOW,
    )
    try:
        broker = admin.describe_cluster(request_timeout=timeout_s).result(timeout_s).nodes[0].id
        # librdkafka reports no error if a cluster answers that it has no ACLs.
        if not _broker_configs(admin, broker, timeout_s)["authorizer.class.name"].value:
            return "the cluster has no authorizer"
        found = admin.describe_acls(asked, request_timeout=timeout_s).result(timeout_s)
    except (KafkaException, TimeoutError, LookupError):
        return None
    open_to = {acl.principal for acl in found if acl.operation in _CHANGES} & _ANYBODY
    return f"ACLs allow it to {', '.join(sorted(open_to))}" if open_to else None
