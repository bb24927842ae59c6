"""Settings of the gateway's own Kafka clients (librdkafka), for the gateway's topics only.

They log in and verify brokers as discovery does, with the same credentials, but with two differences. There is no
`server_name`: a broker's certificate must have the host that the client connects to. `minimum_version` is not passed
on: librdkafka has no setting for it, and its OpenSSL accepts TLS 1.2 from brokers that offer nothing newer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from config import Config, ConfigError
from config.sections.upstream import UpstreamTls
from gateway.runtime.client_settings import ClientSettings, Revision
from gateway.tls.contexts import TlsIdentity
from gateway.upstream.login import BrokerLogin, NoCredentials
from protocol.sasl import Mechanism

_UNKNOWN_LIFETIME_S: Final = 300.0
"""The assumed lifetime of a token without expiry; then librdkafka asks again, as the file may have a new one."""


def settings_if_needed(
    config: Config, login: BrokerLogin | None = None, certificates: TlsIdentity | None = None
) -> ClientSettings:
    """`librdkafka_settings` if the gateway has topics of its own, otherwise nothing.

    Raises:
        ConfigError: see `librdkafka_settings`.
    """
    return librdkafka_settings(config, login, certificates) if config.own_topics() else ClientSettings()


def librdkafka_settings(
    config: Config, login: BrokerLogin | None = None, certificates: TlsIdentity | None = None
) -> ClientSettings:
    """The settings that all these clients share; each caller adds its own.

    Args:
        config: valid.
        login: of [upstream]; None: without.
        certificates: of [upstream]; None: without.

    Raises:
        ConfigError: a file with a secret is unusable.
    """
    if login is not None and (faults := login.faults()):
        raise ConfigError(faults)
    upstream = config.upstream

    def settings() -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap.servers": ",".join(str(broker) for broker in upstream.bootstrap),
            "client.id": "sluice",
            "log.connection.close": False,
            "reconnect.backoff.max.ms": 2_000,
            "socket.connection.setup.timeout.ms": upstream.connect_timeout_ms,
            "security.protocol": upstream.security_protocol.value,
        }
        if certificates is not None:
            found.update(_tls(upstream.tls or UpstreamTls(), certificates.texts))
        try:
            if login is not None:
                found.update(_sasl(login))
        except NoCredentials as exc:
            raise KafkaException(KafkaError(KafkaError._AUTHENTICATION, str(exc))) from None
        return found

    def revision() -> Revision:
        return Revision(
            0 if login is None or login.mechanism is Mechanism.OAUTHBEARER else login.files[0].reloads,
            0 if certificates is None else certificates.reloads,
        )

    return ClientSettings(settings, revision)


def _sasl(login: BrokerLogin) -> dict[str, Any]:
    if login.mechanism is not Mechanism.OAUTHBEARER:
        return {
            "sasl.mechanism": login.mechanism.value,
            "sasl.username": login.user,
            "sasl.password": login.password(),
        }
    # Fails here if there is no token: otherwise the creation of a client would wait for ten seconds.
    login.token()

    def give_token(_config: str) -> tuple[str, float]:
        token = login.token()
        expires_s = math.inf if token.expires_s is None else token.expires_s
        return token.text, min(expires_s, time.time() + _UNKNOWN_LIFETIME_S)

    return {"sasl.mechanism": login.mechanism.value, "oauth_cb": give_token}


def _tls(section: UpstreamTls, texts: Mapping[str, str]) -> dict[str, Any]:
    # The texts in force and not the files, which may not match each other at this moment.
    given = {
        "ssl.ca.pem": texts.get("ca"),
        "ssl.certificate.pem": texts.get("certificate"),
        "ssl.key.pem": texts.get("key"),
        "ssl.cipher.suites": section.ciphers,
    }
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    settings["enable.ssl.certificate.verification"] = section.verify
    settings["ssl.endpoint.identification.algorithm"] = "https" if section.verify else "none"
    if (password := texts.get("key_password_file")) is not None:
        settings["ssl.key.password"] = password.rstrip("\r\n")
    return settings
