"""A whole gateway that logs in with tokens: it has one before it asks the brokers, and says why when it has none."""

import asyncio
from pathlib import Path
from typing import Any, Final

from testkit import wire
from testkit.broker import BrokerConnection, Request, ScriptedBroker
from testkit.certificates import Authority
from testkit.gateway import running_gateway
from testkit.raw_client import until
from testkit.token_endpoint import SECRET, TokenEndpoint, answer

TOKEN: Final = "canary-of-a-token-77ab"
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36


def accept(connection: BrokerConnection, request: Request) -> None:
    """A broker that takes this token alone."""
    fields: dict[str, Any] = {"mechanisms": ["OAUTHBEARER"]}
    name = "SaslHandshake"
    if request.api_key == SASL_AUTHENTICATE:
        good = f"n,,\x01auth=Bearer {TOKEN}\x01\x01".encode() in request.frame
        name, fields = "SaslAuthenticate", {"auth_bytes": b"" if good else b"{}"}
    connection.send(
        wire.response(name, request.api_version, correlation_id=request.correlation_id, error_code=0, **fields)
    )


async def test_gateway_has_a_token_before_it_asks_the_brokers_and_leaves_no_task(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "secret").write_text(SECRET)
    sasl = {
        "mechanism": "OAUTHBEARER",
        "token_endpoint_ca": str(authority.certificate),
        "client_id": "gw",
        "client_secret_file": str(tmp_path / "secret"),
    }
    pair = authority.issue("endpoint", "endpoint", hosts=("127.0.0.1",))
    before = asyncio.all_tasks()
    responses = [answer({"access_token": TOKEN, "expires_in": 600})]
    async with ScriptedBroker() as broker:
        broker.scripts_discovery = True
        broker.script(SASL_HANDSHAKE, accept)
        broker.script(SASL_AUTHENTICATE, accept)
        with TokenEndpoint(pair, lambda: responses) as endpoint:
            upstream = {"security_protocol": "SASL_PLAINTEXT", "sasl": sasl | {"token_endpoint": endpoint.url}}
            async with running_gateway(broker.port, upstream=upstream) as running:
                await running.discovered()
                assert len(endpoint.asked) == 1
                name = "gateway_upstream_login_last_refresh_successful"
                registry = running.gateway.registry
                assert registry.get_sample_value(name, {"upstream": "upstream"}) == 1
            responses = [answer({"error": "invalid_client", "error_description": SECRET}, "401 No")]
            async with running_gateway(broker.port, upstream=upstream) as running:
                reason = "token endpoint: HTTP status 401 invalid_client"
                await until(lambda: reason in (running.gateway.why_not_ready() or ""))
                assert "can't be logged in to" in (running.gateway.why_not_ready() or "")
                assert SECRET not in (running.gateway.why_not_ready() or "")
    assert {each for each in asyncio.all_tasks() if not each.done()} <= before
