"""A gateway before the listeners of a Kafka that authenticates, and clients that log in by hand."""

import secrets
from typing import Any, Final

from protocol.sasl import Mechanism
from protocol.scram import ScramClient
from testkit.secure_kafka import PASSWORDS, SecureKafka, unsecured_token
from testkit.wire_client import WireClient
from tests.integration.gateway_process import GATEWAY_HOST, Address, free_ports

HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_VERSION: Final = 2


def own_user(secure: SecureKafka, mechanism: str = "SCRAM-SHA-512") -> str:
    """The keys of an upstream with SASL_PLAINTEXT to which the gateway logs in itself."""
    return f'security_protocol = "SASL_PLAINTEXT"\n{own_login(secure, mechanism)}'


def own_login(secure: SecureKafka, mechanism: str = "SCRAM-SHA-512") -> str:
    """The key `sasl` of an upstream."""
    file = secure.password_file("gateway")
    return f'sasl = {{ mechanism = "{mechanism}", username = "gateway", password_file = "{file}" }}'


def reauth_listener(secure: SecureKafka) -> tuple[Address, str]:
    """One more listener, "reauth", to the brokers' listener whose sessions end: where it is, and its tables."""
    port = free_ports(3)[0]
    bootstrap = ", ".join(f'"{address}"' for address in secure.addresses("REAUTH").values())
    tables = f"""
[[upstreams]]
name = "reauth"
bootstrap = [{bootstrap}]
{own_user(secure, "PLAIN")}

[[listeners]]
name = "reauth"
bind = "{GATEWAY_HOST}:{port}"
lowest_broker_id = 1
broker_ports = 2
security_protocol = "SASL_PLAINTEXT"
upstream = "reauth"
"""
    return Address(GATEWAY_HOST, port), tables


def tls_listener(secure: SecureKafka) -> tuple[Address, str]:
    """One more listener, "tls", with SASL_SSL, to the brokers' own with SASL_SSL: where it is, and its tables."""
    port = free_ports(3)[0]
    bootstrap = ", ".join(f'"{address}"' for address in secure.addresses("SASL_SSL").values())
    pair = secure.authority.issue(f"gateway-{port}", "gateway", hosts=(GATEWAY_HOST,))
    tables = f"""
[[upstreams]]
name = "tls"
bootstrap = [{bootstrap}]
security_protocol = "SASL_SSL"
tls = {{ ca = "{secure.authority.certificate}" }}
{own_login(secure)}

[[listeners]]
name = "tls"
bind = "{GATEWAY_HOST}:{port}"
lowest_broker_id = 1
broker_ports = 2
security_protocol = "SASL_SSL"
tls = {{ certificate = "{pair.certificate}", key = "{pair.key}" }}
upstream = "tls"
"""
    return Address(GATEWAY_HOST, port), tables


def log_in(client: WireClient, mechanism: str, user: str, password: str | None = None, **scram: str) -> Any:
    """Go through an exchange; returns the last SaslAuthenticate response, whose error code says how it ended.

    Args:
        client: connected.
        mechanism: of SASL.
        user: name.
        password: the user's own if not given.
        scram: extensions of SCRAM's first message.
    """
    client.ask("SaslHandshake", HANDSHAKE_VERSION, mechanism=mechanism)
    if mechanism == "OAUTHBEARER":
        return _send(client, f"n,,\x01auth=Bearer {unsecured_token(user)}\x01\x01".encode())
    secret = PASSWORDS[user] if password is None else password
    if mechanism == "PLAIN":
        return _send(client, f"\0{user}\0{secret}".encode())
    exchange = ScramClient(Mechanism(mechanism), user, secret, nonce=secrets.token_urlsafe(20))
    exchange._bare += "".join(f",{key}={value}" for key, value in scram.items())
    challenge = _send(client, exchange.first())
    return challenge if challenge.error_code else _send(client, exchange.final(challenge.auth_bytes))


def _send(client: WireClient, message: bytes) -> Any:
    return client.ask("SaslAuthenticate", AUTHENTICATE_VERSION, auth_bytes=message).body
