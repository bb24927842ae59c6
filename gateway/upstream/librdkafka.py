"""Settings of the gateway's own Kafka clients (librdkafka), for the gateway's topics only.

They log in and verify brokers as discovery does, with three differences. A new password or new certificate files
are read at the next start. There is no `server_name`: a broker's certificate must hold the host that is connected
to. `minimum_version` is not passed on: librdkafka has no setting for it, and its OpenSSL takes TLS 1.2 from brokers
that speak nothing newer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from config import Config, ConfigError
from config.sections.upstream import UpstreamTls
from gateway.upstream.login import LoginFailed, read_password

Value: TypeAlias = str | int | float | bool


class ClientSettings(dict[str, Value]):
    """Settings that may hold passwords, and so are not shown."""

    def __repr__(self) -> str:
        return f"ClientSettings({', '.join(self)})"


def settings_if_needed(config: Config) -> ClientSettings:
    """`librdkafka_settings` if the gateway has topics of its own, otherwise nothing.

    Raises:
        ConfigError: a password file can't be read.
    """
    return librdkafka_settings(config) if config.own_topics() else ClientSettings()


def librdkafka_settings(config: Config) -> ClientSettings:
    """The settings that all these clients share; each caller adds its own.

    Raises:
        ConfigError: a password file can't be read.
    """
    upstream = config.upstream
    settings = ClientSettings(
        {
            "bootstrap.servers": ",".join(str(broker) for broker in upstream.bootstrap),
            "client.id": "sluice",
            "log.connection.close": False,
            "reconnect.backoff.max.ms": 2_000,
            "socket.connection.setup.timeout.ms": upstream.connect_timeout_ms,
            "security.protocol": upstream.security_protocol.value,
        }
    )
    if upstream.security_protocol.tls:
        settings.update(_tls(upstream.tls or UpstreamTls()))
    if upstream.sasl is not None:
        settings["sasl.mechanism"] = upstream.sasl.mechanism
        settings["sasl.username"] = upstream.sasl.username
        settings["sasl.password"] = _password("upstream.sasl.password_file", upstream.sasl.password_file)
    return settings


def _tls(section: UpstreamTls) -> ClientSettings:
    given = {
        "ssl.ca.location": section.ca,
        "ssl.certificate.location": section.certificate,
        "ssl.key.location": section.key,
        "ssl.cipher.suites": section.ciphers,
    }
    settings = ClientSettings({key: value for key, value in given.items() if value is not None})
    settings["enable.ssl.certificate.verification"] = section.verify
    settings["ssl.endpoint.identification.algorithm"] = "https" if section.verify else "none"
    if section.key_password_file is not None:
        settings["ssl.key.password"] = _password("upstream.tls.key_password_file", section.key_password_file)
    return settings


def _password(key: str, file: str) -> str:
    try:
        return read_password(Path(file))
    except LoginFailed as exc:
        raise ConfigError([f"{key}: {exc}"]) from None
