"""One file per API family, all of the same shape: a class with `on_request` (collect) or `on_head` (relay).

Everything that is not in this table is relayed unseen.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.handlers.addresses import AddressHandler
from gateway.handlers.api_versions import ApiVersionsHandler
from gateway.handlers.context import HandlerContext
from gateway.handlers.describe_configs import DescribeConfigsHandler
from gateway.handlers.fetch import FetchHandler
from gateway.handlers.metadata import MetadataHandler
from gateway.handlers.produce import ProduceHandler
from gateway.handlers.topic_mutations import TopicMutationHandler
from gateway.routes import HeadHandler, RequestHandler
from protocol.addresses import rewrite_describe_cluster, rewrite_find_coordinator
from protocol.api_keys import ApiKey


def collecting_handlers(context: HandlerContext) -> Mapping[ApiKey, RequestHandler]:
    """Handlers for requests that are seen whole."""
    topic_mutations = TopicMutationHandler(context)
    return {
        ApiKey.METADATA: MetadataHandler(context),
        ApiKey.FIND_COORDINATOR: AddressHandler(context, rewrite_find_coordinator),
        ApiKey.DESCRIBE_CLUSTER: AddressHandler(context, rewrite_describe_cluster),
        ApiKey.DESCRIBE_CONFIGS: DescribeConfigsHandler(context),
        ApiKey.API_VERSIONS: ApiVersionsHandler(),
        ApiKey.CREATE_TOPICS: topic_mutations,
        ApiKey.CREATE_PARTITIONS: topic_mutations,
        ApiKey.DELETE_TOPICS: topic_mutations,
        ApiKey.FETCH: FetchHandler(context),
    }


def head_handlers(context: HandlerContext) -> Mapping[ApiKey, HeadHandler]:
    """Handlers for requests of which only the head is looked at."""
    return {ApiKey.PRODUCE: ProduceHandler(context), ApiKey.FETCH: FetchHandler(context)}
