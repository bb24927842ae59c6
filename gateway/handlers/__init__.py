"""One file per API family, all of the same shape: a class with `on_request` (collect) or `on_head` (relay).

Everything that is not in this table is relayed unseen.
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
from gateway.handlers.metadata import MetadataHandler
from gateway.handlers.produce import ProduceHandler
from gateway.handlers.sasl import sasl_handlers
from gateway.handlers.topic_mutations import TopicMutationHandler
from gateway.session.routes import HeadHandler, RequestHandler
from protocol.addresses import rewrite_describe_cluster, rewrite_find_coordinator
from protocol.api_keys import ApiKey


def collecting_handlers(context: HandlerContext, *, sasl: bool = False) -> Mapping[ApiKey, RequestHandler]:
    """Handlers for requests that are seen whole.

    Args:
        context: of the listener.
        sasl: whether its clients authenticate; on others SASL is the brokers' business, and relayed.
    """
    topic_mutations = TopicMutationHandler(context)
    administered: dict[ApiKey, RequestHandler] = {}
    if context.quota_admin is not None:
        administered = {
            ApiKey.DESCRIBE_CLIENT_QUOTAS: DescribeClientQuotasHandler(context.quota_admin),
            ApiKey.ALTER_CLIENT_QUOTAS: AlterClientQuotasHandler(context.quota_admin),
        }
        if context.broker_limits is not None:
            altering = BrokerLimitsHandler(context.quota_admin, context.broker_limits)
            administered[ApiKey.INCREMENTAL_ALTER_CONFIGS] = altering
    return {
        **administered,
        ApiKey.METADATA: MetadataHandler(context),
        ApiKey.FIND_COORDINATOR: AddressHandler(context, rewrite_find_coordinator),
        ApiKey.DESCRIBE_CLUSTER: AddressHandler(context, rewrite_describe_cluster),
        ApiKey.DESCRIBE_CONFIGS: DescribeConfigsHandler(context),
        ApiKey.API_VERSIONS: ApiVersionsHandler(context),
        ApiKey.CREATE_TOPICS: topic_mutations,
        ApiKey.CREATE_PARTITIONS: topic_mutations,
        ApiKey.DELETE_TOPICS: topic_mutations,
        **(sasl_handlers(context.observer) if sasl else {}),
    }


def head_handlers(context: HandlerContext) -> Mapping[ApiKey, HeadHandler]:
    """Handlers for requests of which only the head is looked at."""
    topic_mutations = TopicMutationHandler(context)
    return {
        ApiKey.PRODUCE: ProduceHandler(context),
        ApiKey.FETCH: FetchHandler(context),
        ApiKey.CREATE_TOPICS: topic_mutations,
        ApiKey.CREATE_PARTITIONS: topic_mutations,
        ApiKey.DELETE_TOPICS: topic_mutations,
    }
