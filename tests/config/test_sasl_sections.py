"""The sections about SASL: defaults, and that no password can stand in the file itself."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from config.sasl_sections import ListenerSasl, UpstreamSasl
from gateway.auth.authentication import SaslRules


def test_names_have_the_defaults_of_the_rules() -> None:
    section, rules = ListenerSasl(), SaslRules()
    assert section.unknown_principal == rules.unknown_principal
    assert section.delegation_token_principal == rules.delegation_token_principal
    assert section.oauthbearer_principal_claim == rules.oauth_claim


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_gateway_logs_in_by_password(mechanism: str) -> None:
    section = UpstreamSasl.model_validate({"mechanism": mechanism, "username": "gw", "password_file": "/p"})
    assert section.username == "gw"


@pytest.mark.parametrize("mechanism", ["GSSAPI", "OAUTHBEARER", "plain", ""])
def test_other_mechanisms_are_not_on_offer(mechanism: str) -> None:
    with pytest.raises(ValidationError):
        UpstreamSasl.model_validate({"mechanism": mechanism, "username": "gw", "password_file": "/p"})


def test_password_itself_is_no_key() -> None:
    with pytest.raises(ValidationError):
        UpstreamSasl.model_validate(
            {"mechanism": "PLAIN", "username": "gw", "password_file": "/p", "password": "x"}
        )
