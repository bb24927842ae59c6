"""The table from API to handler: one file per API family, with `on_request` (collect) or `on_head` (relay).

All other requests are relayed unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.handlers.addresses import AddressHandler
from gateway.handlers.api_versions import ApiVersionsHandler
from gateway.handlers.broker_limits import BrokerLimitsHandler
from gateway.handlers.client_quota_requests import AlterClientQuotasHandler, DescribeClientQuotasHandler
from gateway.handlers.context import HandlerContext
from gateway.handlers.describe_configs import DescribeConfigsHandler
from gateway.handlers.fetch import FetchHandler
from gateway.handlers.group_waits import GroupWaitsHandler
from gateway.handlers.metadata import MetadataHandler
from gateway.handlers.node_endpoints import NodeEndpointsHandler
from gateway.handlers.own_topics import GUARDED, OwnTopicsHandler, OwnTopicsProduceHandler
from gateway.handlers.produce import ProduceHandler
from gateway.handlers.sasl import sasl_handlers
from gateway.handlers.streams_groups import StreamsGroupHandler
from gateway.handlers.topic_mutations import TopicMutationHandler
from gateway.quota_admin.broker_limits import BrokerLimits
from gateway.quota_admin.rights import QuotaAdmin
from gateway.session.client_quotas import ClientQuotas
from gateway.session.routes import HeadHandler, RequestHandler
from protocol.addresses import rewrite_describe_cluster, rewrite_describe_quorum, rewrite_find_coordinator
from protocol.api_keys import ApiKey


def handlers_of(
    context: HandlerContext,
    client_quotas: ClientQuotas | None = None,
    quota_admin: QuotaAdmin | None = None,
    broker_limits: BrokerLimits | None = None,
    *,
    sasl: bool = False,
) -> tuple[Mapping[ApiKey, RequestHandler], Mapping[ApiKey, HeadHandler]]:
    """The handlers for whole requests, and the handlers for heads.

    Args:
        context: the listener's context.
        client_quotas: byte rates and request time, shared by all listeners; None: not enforced.
        quota_admin: answers Kafka's API for client quotas; None: the broker does.
        broker_limits: answers for connection limits of brokers; None: the broker does.
        sasl: whether the listener's clients authenticate; otherwise SASL requests are relayed like any other.
    """
    own = context.own_topics
    topic_mutations = dict.fromkeys(
        (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_TOPICS), TopicMutationHandler(context)
    )
    produce: HeadHandler = ProduceHandler(context, client_quotas)
    fetches = {
        key: FetchHandler(context.topology, client_quotas, key) for key in (ApiKey.FETCH, ApiKey.SHARE_FETCH)
    }
    collecting: dict[ApiKey, RequestHandler] = {}
    if own:
        collecting |= dict.fromkeys(GUARDED, OwnTopicsHandler(own))
        collecting[ApiKey.PRODUCE] = produce = OwnTopicsProduceHandler(own, produce)
    if quota_admin is not None:
        collecting[ApiKey.DESCRIBE_CLIENT_QUOTAS] = DescribeClientQuotasHandler(quota_admin)
        collecting[ApiKey.ALTER_CLIENT_QUOTAS] = AlterClientQuotasHandler(quota_admin)
        if broker_limits is not None:
            altering = BrokerLimitsHandler(quota_admin, broker_limits, own)
            collecting[ApiKey.INCREMENTAL_ALTER_CONFIGS] = altering
    collecting |= {
        ApiKey.METADATA: MetadataHandler(context),
        ApiKey.FIND_COORDINATOR: AddressHandler(context, rewrite_find_coordinator),
        ApiKey.DESCRIBE_CLUSTER: AddressHandler(context, rewrite_describe_cluster),
        ApiKey.DESCRIBE_QUORUM: AddressHandler(context, rewrite_describe_quorum),
        ApiKey.DESCRIBE_CONFIGS: DescribeConfigsHandler(context, broker_limits),
        ApiKey.API_VERSIONS: ApiVersionsHandler(context.topology.cluster, quota_admin),
        ApiKey.STREAMS_GROUP_HEARTBEAT: StreamsGroupHandler(context),
        **fetches,
        **topic_mutations,
        **(sasl_handlers(context.observer) if sasl else {}),
    }
    share_acknowledge = NodeEndpointsHandler(context.topology, ApiKey.SHARE_ACKNOWLEDGE)
    return collecting, {
        ApiKey.PRODUCE: produce,
        **fetches,
        ApiKey.SHARE_ACKNOWLEDGE: share_acknowledge,
        **dict.fromkeys((ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP), GroupWaitsHandler()),
        **topic_mutations,
    }
