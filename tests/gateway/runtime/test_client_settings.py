"""A client of librdkafka gets new passwords while it lives, and is replaced for new certificates."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

from gateway.runtime.client_settings import ClientAge, ClientSettings, Revision
from gateway.upstream.librdkafka import librdkafka_settings
from gateway.upstream.login import BrokerLogin
from testkit.gateway import gateway_config
from testkit.secure_kafka import unsecured_token

SECRET = "canary-of-own-clients"


class Client:
    """Remembers the credentials that it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[str, str]] = []

    def set_sasl_credentials(self, user: str, password: str) -> None:
        self.given.append((user, password))


def of_login(file: Path, certificates: Any = None, **sasl: Any) -> tuple[BrokerLogin, ClientSettings]:
    config = gateway_config(
        ["127.0.0.1:9092"],
        first_broker_port=20_000,
        upstream={"topology_refresh_ms": 60_000, "security_protocol": "SASL_PLAINTEXT", "sasl": sasl},
    )
    section = config.upstream.sasl
    assert section is not None
    login = BrokerLogin(section, upstream="upstream", path="upstream", client_id="tests")
    return login, librdkafka_settings(config, login, certificates)


def test_new_password_is_for_clients_that_live_and_for_clients_to_come(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first")
    login, settings = of_login(file, mechanism="SCRAM-SHA-512", username="gw", password_file=str(file))
    age, client = ClientAge(settings), Client()
    age.begin()
    assert settings["sasl.password"] == "first"
    assert not age.outdated(client)
    file.write_text(SECRET)
    login.reload(only_if_changed=True, by="tests")
    assert not age.outdated(client)
    assert not age.outdated(client)
    assert client.given == [("gw", SECRET)]
    assert settings["sasl.password"] == SECRET
    assert SECRET not in f"{settings!r} {settings}"
    # What librdkafka's own clients make of the call.
    producer = confluent_kafka.Producer({**settings, "log_level": 0})
    again = ClientAge(settings)
    file.write_text("third")
    login.reload(only_if_changed=True, by="tests")
    assert not again.outdated(producer)


def test_client_is_replaced_for_new_certificates_alone(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    certificates = SimpleNamespace(reloads=0, texts={})
    _, settings = of_login(file, certificates, mechanism="PLAIN", username="gw", password_file=str(file))
    age, client = ClientAge(settings), Client()
    certificates.reloads = 1
    assert age.outdated(client)
    age.begin()
    assert not age.outdated(client)
    assert client.given == []
    assert settings.revision() == Revision(0, 1)
    assert not ClientAge({"client.id": "plain settings never change"}).outdated(client)


def test_librdkafka_gets_the_token_in_force_and_no_client_is_made_without_one(tmp_path: Path) -> None:
    file = tmp_path / "token"
    first, second = unsecured_token("gw", n=1), unsecured_token("gw", n=2, lifetime_s=60)
    file.write_text(first)
    login, settings = of_login(file, mechanism="OAUTHBEARER", token_file=str(file))
    made = dict(settings)
    assert "sasl.password" not in made
    assert made["oauth_cb"]("")[0] == first
    file.write_text(second)
    login.reload(only_if_changed=True, by="tests")
    given, until_s = made["oauth_cb"]("")
    assert given == second
    assert until_s == login.token().expires_s
    login.files[0].text = unsecured_token("gw", lifetime_s=-1)
    with pytest.raises(confluent_kafka.KafkaException, match="expired"):
        dict(settings)
