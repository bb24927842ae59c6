"""Bugs of our own in the middle of an exchange: their tracebacks carry nothing of it (hazard H15)."""

import io
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import structlog

from gateway.auth.authentication import Authentication
from gateway.handlers.sasl import AuthenticateHandler, HandshakeHandler
from gateway.net.channel import ClientChannel
from gateway.observability import logging_setup
from gateway.observability.events import CloseCause
from gateway.session.session import ClientSession
from protocol import sasl
from testkit import wire
from testkit.broker import BrokerConnection, Request, ScriptedBroker
from testkit.gateway import running_gateway
from testkit.raw_client import RawClient
from testkit.secrets import CANARY, secrets_in

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
MESSAGES: Final = {
    "PLAIN": f"\0alice\0{CANARY}alice".encode(),
    "SCRAM-SHA-256": f"n,,n=alice,r={CANARY}nonce".encode(),
    "OAUTHBEARER": f"n,,\x01auth=Bearer e30.eyJzdWIiOiAiYSJ9.{CANARY}\x01\x01".encode(),
}


class Bug(Exception):
    """Carries what it was called with, as careless code would."""


POINTS: Final[dict[str, tuple[Any, str]]] = {
    "reading the handshake": (sasl, "read_mechanism"),
    "reading the token": (sasl, "read_auth_bytes"),
    "reading the reply": (sasl, "read_authenticate_reply"),
    "a handshake's handler": (HandshakeHandler, "on_request"),
    "a token's handler": (AuthenticateHandler, "on_request"),
    "the claim": (Authentication, "send"),
    "the decision": (Authentication, "answered"),
    "the session's side of the client": (ClientSession, "receive_from_client"),
    "the session's side of the broker": (ClientSession, "receive_from_upstream"),
    "the channel": (ClientChannel, "_follow_mute"),
}
KINDS: Final[dict[str, Callable[..., Exception]]] = {
    "KeyError": lambda *told: KeyError(told),
    "a class of its own": lambda *told: Bug(*map(repr, told)),
}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What is written at DEBUG, as a running gateway writes it."""
    stream = io.StringIO()
    logging_setup.setup("debug", stream=stream)
    yield stream
    logging_setup.setup()
    structlog.reset_defaults()


def accept_anything(connection: BrokerConnection, request: Request) -> None:
    """A broker that lets everybody in."""
    name = "SaslHandshake" if request.api_key == SASL_HANDSHAKE else "SaslAuthenticate"
    fields = {"mechanisms": list(MESSAGES)} if request.api_key == SASL_HANDSHAKE else {"auth_bytes": b"v=x"}
    answer = wire.response(name, request.api_version, correlation_id=request.correlation_id, error_code=0, **fields)
    connection.send(answer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", POINTS)
async def test_h15_bug_in_the_middle_of_an_exchange_tells_where_and_nothing_of_the_secret(
    point: str, kind: str, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name = POINTS[point]
    protocol = {"security_protocol": "SASL_PLAINTEXT"}
    async with (
        ScriptedBroker() as broker,
        running_gateway(broker.port, listener=protocol, upstream=protocol) as running,
    ):
        for api in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            broker.script(api, accept_anything)

        def broken(*told: Any, **_: Any) -> None:
            raise KINDS[kind](*(each for each in told if isinstance(each, bytes)), MESSAGES["PLAIN"])

        for mechanism, message in MESSAGES.items():
            monkeypatch.setattr(where, name, broken)
            async with await RawClient.connect(running.port) as client:
                await client.send(wire.request("SaslHandshake", 1, correlation_id=1, mechanism=mechanism))
                await client.send(wire.request("SaslAuthenticate", 1, correlation_id=2, auth_bytes=message))
                await client.receive_rest()
            monkeypatch.undo()
            running.expect_internal_error()
        await running.ended_by(CloseCause.INTERNAL_ERROR, len(MESSAGES))
    text = log.getvalue()
    assert text.count("channel_failed") >= 1
    assert "in broken" in text
    assert secrets_in(text.encode()) == []
