"""The gateway's own clients go to the cluster that its configuration names, as who it says, and show no password."""

from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest

from config import ConfigError
from config.sections.upstream import UpstreamTls
from gateway.runtime.client_settings import ClientSettings
from gateway.tls.contexts import TlsIdentity
from gateway.upstream.librdkafka import librdkafka_settings
from gateway.upstream.login import BrokerLogin
from testkit.certificates import Authority
from testkit.gateway import gateway_config

SECRET = "canary-of-own-clients"


def settings(**upstream: Any) -> ClientSettings:
    config = gateway_config(
        ["127.0.0.1:9092", "[::1]:9093"],
        first_broker_port=20_000,
        upstream={"topology_refresh_ms": 60_000, **upstream},
    )
    section = config.upstream.sasl
    login = BrokerLogin.of(section, upstream="upstream", path="upstream", client_id="tests")
    tls = config.upstream.security_protocol.tls
    certificates = TlsIdentity("upstream.tls", config.upstream.tls or UpstreamTls()) if tls else None
    return librdkafka_settings(config, login, certificates)


def sasl(folder: Path) -> dict[str, Any]:
    (folder / "password").write_text(SECRET + "\n", encoding="utf-8")
    user = {"mechanism": "SCRAM-SHA-512", "username": "gw", "password_file": str(folder / "password")}
    return {"security_protocol": "SASL_SSL", "sasl": user}


def test_own_clients_ask_the_configured_brokers_and_verify_them_unless_told_not_to(tmp_path: Path) -> None:
    found = settings()
    assert found["bootstrap.servers"] == "127.0.0.1:9092,[::1]:9093"
    assert found["security.protocol"] == "PLAINTEXT"
    verified = settings(security_protocol="SSL")
    assert verified["enable.ssl.certificate.verification"] is True
    assert verified["ssl.endpoint.identification.algorithm"] == "https"
    trusting = settings(security_protocol="SSL", tls={"verify": False})
    assert trusting["enable.ssl.certificate.verification"] is False


def test_own_clients_log_in_as_the_gateway_and_librdkafka_takes_all_of_it(tmp_path: Path) -> None:
    found = settings(**sasl(tmp_path))
    assert found["security.protocol"] == "SASL_SSL"
    assert found["sasl.mechanism"] == "SCRAM-SHA-512"
    assert (found["sasl.username"], found["sasl.password"]) == ("gw", SECRET)
    assert SECRET not in repr(found)
    assert SECRET not in f"{found}"
    authority = Authority(tmp_path)
    pair = authority.issue("own", "own")
    tls = {"ca": str(authority.certificate), "certificate": str(pair.certificate), "key": str(pair.key)}
    confluent_kafka.admin.AdminClient({**settings(**sasl(tmp_path), tls=tls), "log_level": 0})


def test_password_file_that_is_missing_is_a_fault_of_the_configuration() -> None:
    user = {"mechanism": "PLAIN", "username": "gw", "password_file": "/nowhere"}
    with pytest.raises(ConfigError, match=r"upstream\.sasl\.password_file: .*/nowhere"):
        settings(security_protocol="SASL_PLAINTEXT", sasl=user)
