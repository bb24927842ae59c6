"""Whether every client may write to a topic, as far as the cluster reports it. [io]: it blocks."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigResource,
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


def open_to_anybody(admin: Any, topic: str, *, timeout_s: float) -> str | None:
    """Why anybody may change a topic, in a few words; None: no unknown client may, or the gateway may not ask.

    Args:
        admin: confluent-kafka's client.
        topic: its name.
        timeout_s: for the question.
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
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        (described,) = admin.describe_configs([resource], request_timeout=timeout_s).values()
        # librdkafka has no error for a cluster that answers that it has no ACLs.
        if not described.result(timeout_s)["authorizer.class.name"].value:
            return "the cluster has no authorizer"
        found = admin.describe_acls(asked, request_timeout=timeout_s).result(timeout_s)
    except (KafkaException, TimeoutError, LookupError):
        return None
    open_to = {acl.principal for acl in found if acl.operation in _CHANGES} & _ANYBODY
    return f"ACLs allow it to {', '.join(sorted(open_to))}" if open_to else None
