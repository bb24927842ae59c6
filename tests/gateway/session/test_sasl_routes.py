"""The three tables of a SASL listener."""

from __future__ import annotations

from gateway.auth.authentication import SaslRules
from gateway.handlers.sasl import ConfirmHandler, sasl_handlers
from gateway.session.routes import build_routes
from gateway.session.sasl_routes import ALWAYS, sasl_listener
from protocol.api_keys import all_offered
from testkit.observer import SilentObserver

CONFIRM = ConfirmHandler(SilentObserver())
ROUTES = build_routes(sasl_handlers(SilentObserver()), {}, max_frame_bytes=1_000_000)
LISTENER = sasl_listener(SaslRules(), ROUTES, CONFIRM)


def test_three_apis_have_a_route_before_authentication() -> None:
    assert {route.api.key for route in LISTENER.before.values()} == ALWAYS


def test_everything_has_one_afterwards() -> None:
    assert LISTENER.after is ROUTES
    assert {route.api for route in LISTENER.after.values()} == set(all_offered())


def test_everything_else_has_to_be_confirmed_after_an_exchange_that_is_not_understood() -> None:
    assert LISTENER.confirming.keys() == ROUTES.keys()
    for number, route in LISTENER.confirming.items():
        confirmed = number in LISTENER.before
        assert (route.head is CONFIRM) is not confirmed
        assert route.max_request_bytes == ROUTES[number].max_request_bytes


def test_requests_are_counted_in_one_place() -> None:
    for number, route in LISTENER.before.items():
        assert route is ROUTES[number] is LISTENER.confirming[number]
