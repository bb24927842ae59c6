"""From a listener's section to its rules."""

from typing import Any

import pytest
from pydantic import ValidationError

from config import Config
from gateway.auth.authentication import SaslRules
from gateway.handlers.sasl import sasl_handlers
from gateway.server.sasl_setup import sasl_of
from gateway.session.routes import build_routes
from testkit.observer import SilentObserver

ROUTES = build_routes(sasl_handlers(SilentObserver()), {}, max_frame_bytes=1_000_000)


def config(listener: dict[str, Any], upstream: dict[str, Any]) -> Config:
    return Config.model_validate(
        {
            "upstream": {"bootstrap": ["127.0.0.1:9092"], **upstream},
            "listeners": [{"name": "a", "bind": "127.0.0.1:19092", **listener}],
        }
    )


SASL = {"security_protocol": "SASL_PLAINTEXT"}
OWN = {"sasl": {"mechanism": "PLAIN", "username": "gw", "password_file": "/p"}}


def test_listeners_with_sasl_have_rules_and_others_none() -> None:
    assert sasl_of(config({}, {}).listeners[0], ROUTES, SilentObserver()) is None
    found = sasl_of(config(SASL, SASL).listeners[0], ROUTES, SilentObserver())
    assert found is not None
    assert found.rules == SaslRules()
    names = {"unknown_principal": "u", "delegation_token_principal": "d", "oauthbearer_principal_claim": "c"}
    found = sasl_of(config({**SASL, "sasl": names}, SASL).listeners[0], ROUTES, SilentObserver())
    assert found is not None
    assert found.rules == SaslRules("u", "d", "c")
    with pytest.raises(ValidationError):
        config({"sasl": {}}, {})
    with pytest.raises(ValidationError):
        config({}, OWN)


def test_listener_with_sasl_must_lead_to_brokers_with_sasl() -> None:
    with pytest.raises(ValidationError, match="contradictory"):
        config(SASL, {})
