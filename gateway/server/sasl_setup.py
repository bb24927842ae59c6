"""Creates the SASL start of sessions from a listener's configuration."""

from __future__ import annotations

from config import ListenerSettings
from config.sections.listeners import ListenerSasl
from gateway.auth.authentication import SaslRules
from gateway.handlers.sasl import ConfirmHandler
from gateway.observability.events import RequestObserver
from gateway.session.routes import Routes, SaslListener, sasl_listener


def sasl_of(section: ListenerSettings, routes: Routes, observer: RequestObserver) -> SaslListener | None:
    """What clients of a listener may send before they have authenticated; None: no authentication is needed.

    Args:
        section: of the listener.
        routes: all routes, including the SASL handlers.
        observer: notified of the outcome of exchanges.
    """
    if not section.security_protocol.sasl:
        return None
    names = section.sasl or ListenerSasl()
    rules = SaslRules(
        unknown_principal=names.unknown_principal,
        delegation_token_principal=names.delegation_token_principal,
        oauth_claim=names.oauthbearer_principal_claim,
    )
    return sasl_listener(rules, routes, ConfirmHandler(observer))
