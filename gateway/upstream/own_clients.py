"""How the gateway's own Kafka clients, which are librdkafka's, reach the cluster behind it.

They are for topics of the gateway itself. What clients send never goes through them. They log in and verify brokers
as discovery does, except that a new password, or new certificate files, are for them a matter of the next start,
that they know no `server_name`: brokers' certificates must hold the hosts that are connected to, and that
`minimum_version` is not passed on: librdkafka has no setting for it, and its OpenSSL takes TLS 1.2 from brokers
that speak nothing newer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from config import Config, ConfigError
from config.sections.upstream import UpstreamTls
from gateway.upstream.own_login import LoginFailed, read_password

Value: TypeAlias = str | int | float | bool


class ClientSettings(dict[str, Value]):
    """Settings that may hold passwords, and so are not shown."""

    def __repr__(self) -> str:
        return f"ClientSettings({', '.join(self)})"


def librdkafka_settings(config: Config) -> ClientSettings:
    """What every client of the gateway's own is made with; each caller adds what is its own.

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
