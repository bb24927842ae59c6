"""What may pass on a SASL listener, and when: three tables of routes, of which a session has one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.auth.authentication import SaslRules
from gateway.session.routes import HeadHandler, Route, Routes
from protocol.api_keys import ApiKey

ALWAYS: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""What a client may ask before it has authenticated."""


@dataclass(frozen=True, slots=True)
class SaslListener:
    """What the sessions of a SASL listener begin with.

    Attributes:
        rules: how principals are found.
        before: only `ALWAYS`; everything else has no route.
        confirming: the same, and everything else goes to a handler that first has the broker confirm that it may.
        after: everything.
    """

    rules: SaslRules
    before: Routes
    confirming: Routes
    after: Routes


def sasl_listener(rules: SaslRules, routes: Routes, confirm: HeadHandler) -> SaslListener:
    """The tables of a listener.

    Args:
        rules: see above.
        routes: everything; routes are shared, so that requests are counted once.
        confirm: asked about whatever comes after an exchange that the gateway does not understand.
    """
    before = {number: route for number, route in routes.items() if route.api.key in ALWAYS}
    confirming = {
        number: before.get(number) or Route(route.api, None, confirm, route.max_request_bytes)
        for number, route in routes.items()
    }
    return SaslListener(rules, before, confirming, routes)
