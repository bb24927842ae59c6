"""The table that leads every request on offer to its handler, and the three tables of a SASL listener."""

import pytest

from gateway.auth.authentication import SaslRules
from gateway.handlers.sasl import ConfirmHandler, sasl_handlers
from gateway.session.routes import ALWAYS, UNKNOWN_API_VERSIONS, Routes, build_routes, find_route, sasl_listener
from protocol.api_keys import ApiKey, all_offered
from protocol.headers import api_number
from testkit.core import GatewayCore
from testkit.observer import SilentObserver


def table(max_frame_bytes: int = 100_000_000) -> Routes:
    """A listener's table."""
    return build_routes(*GatewayCore().handlers(), max_frame_bytes=max_frame_bytes)


def test_every_version_on_offer_has_a_route_and_nothing_else_has() -> None:
    offered = {api_number(api.key, api.version) for api in all_offered()}
    assert set(table()) == offered | {UNKNOWN_API_VERSIONS}


@pytest.mark.parametrize("version", [-1, 6, 99, 32_767])
def test_any_unknown_version_of_api_versions_has_the_same_route(version: int) -> None:
    routes = table()
    number = api_number(ApiKey.API_VERSIONS, version)
    route = routes.get(number) or find_route(routes, number)
    assert route is not None
    assert route.unknown_version


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.PRODUCE, 999, -1])
def test_no_other_api_has_a_route_for_unknown_versions(key: int) -> None:
    assert find_route(table(), api_number(key, 99)) is None


def test_a_request_that_is_held_whole_has_the_smaller_of_both_limits() -> None:
    metadata, heartbeat = api_number(ApiKey.METADATA, 1), api_number(ApiKey.HEARTBEAT, 1)
    assert table()[metadata].max_request_bytes < table()[heartbeat].max_request_bytes == 100_000_000
    assert table(1_000)[metadata].max_request_bytes == table(1_000)[heartbeat].max_request_bytes == 1_000


def test_only_what_is_answered_rewritten_counted_or_refused_is_looked_at() -> None:
    looked_at = {route.api.key for route in table().values() if route.collect or route.head}
    assert looked_at == {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.API_VERSIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
    }


def test_sasl_is_looked_at_where_clients_authenticate() -> None:
    (with_sasl, _), (without, _) = (GatewayCore().handlers(sasl=sasl) for sasl in (True, False))
    added = with_sasl.keys() - without.keys()
    assert added == {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}


def test_a_table_without_an_api_versions_handler_answers_no_unknown_version() -> None:
    routes = build_routes({}, {}, max_frame_bytes=1_000)
    assert find_route(routes, api_number(ApiKey.API_VERSIONS, 99)) is None


# -- a SASL listener ------------------------------------------------------------------------------------------
CONFIRM = ConfirmHandler(SilentObserver())
ROUTES = build_routes(sasl_handlers(SilentObserver()), {}, max_frame_bytes=1_000_000)
LISTENER = sasl_listener(SaslRules(), ROUTES, CONFIRM)


def test_before_authentication_three_apis_have_a_route_and_afterwards_everything() -> None:
    assert {route.api.key for route in LISTENER.before.values()} == ALWAYS
    assert LISTENER.after is ROUTES
    assert {route.api for route in ROUTES.values()} == set(all_offered())
    assert LISTENER.confirming.keys() == ROUTES.keys()
    for number, route in LISTENER.confirming.items():
        confirmed = number in LISTENER.before
        assert (route.head is CONFIRM) is not confirmed
        assert route.max_request_bytes == ROUTES[number].max_request_bytes
    for number, route in LISTENER.before.items():
        assert route is ROUTES[number] is LISTENER.confirming[number]
