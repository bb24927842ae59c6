"""A real Kafka with SASL_PLAINTEXT, SASL_SSL and SSL listeners, and users that can log in.

In addition to the plaintext listener that brokers use among themselves, there are

* `SASL` (SASL_PLAINTEXT) and `SASL_SSL`: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER; sessions never end.
* `REAUTH` (SASL_PLAINTEXT): the same, but a session lasts `REAUTH_MS`, so that clients authenticate again (KIP-368).
* `SSL`: client certificates are optional; the principal is Kafka's default one.

OAuth tokens are unsecured (algorithm "none"). Kafka's validator for tests accepts them from any client.
"""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from embedded_kafka.kafka import Address, KafkaCluster
from testkit.certificates import Authority, KeyPair
from testkit.kafka_cluster import SHARED
from testkit.loopback import own_host

SECURE_HOST: Final = own_host(77, 2)
LISTENERS: Final = {
    "SASL": "SASL_PLAINTEXT",
    "REAUTH": "SASL_PLAINTEXT",
    "SSL": "SSL",
    "SASL_SSL": "SASL_SSL",
}
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
REAUTH_MS: Final = 3_000

PASSWORDS: Final = {
    "alice": "canary-of-alice-5f1c",
    "bob": "canary-of-bob-93ab",
    "carol, the 2nd=": "canary-of-carol-77de",
    "gateway": "canary-of-gateway-10c4",
}
"""Users that can authenticate by every mechanism. No output of the gateway may contain any of these passwords."""

WRONG_PASSWORD: Final = "canary-of-nobody-e2e2"

_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


class SecureKafka:
    """One broker, or three; used as a context manager or with `start` and `stop`.

    Attributes:
        cluster: the brokers.
        folder: holds certificates and password files.
        authority: signed the certificates of brokers, and of clients that they trust.
    """

    def __init__(
        self, brokers: int = 1, host: str = SECURE_HOST, properties: Mapping[str, str | int] | None = None
    ) -> None:
        """Makes certificates and chooses ports, but starts nothing.

        Args:
            brokers: 1 or 3.
            host: a loopback address.
            properties: properties of the brokers, besides those of the listeners.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="sluice-secure-"))
        self.authority = Authority(self.folder)
        server = self.authority.issue("broker", "broker", hosts=(host, "localhost"))
        self.cluster = KafkaCluster(
            brokers,
            host,
            {**SHARED, **_properties(server, self.authority.certificate), **(properties or {})},
            listeners=LISTENERS,
        )

    def start(self) -> Self:
        """Starts the brokers and creates the SCRAM users."""
        self.cluster.start()
        try:
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                self.set_passwords(PASSWORDS, mechanism)
        except BaseException:
            self.stop(keep_logs=True)
            raise
        return self

    def stop(self, *, keep_logs: bool = False) -> None:
        """Stops the brokers and removes the files."""
        self.cluster.stop(keep_logs=keep_logs)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def addresses(self, listener: str) -> dict[int, Address]:
        """The address of a listener by broker id; "PLAINTEXT" is the listener without authentication."""
        return self.cluster.brokers if listener == "PLAINTEXT" else self.cluster.listeners[listener]

    def bootstrap(self, listener: str) -> str:
        """`host:port,...` of one of the listeners."""
        return ",".join(str(address) for address in self.addresses(listener).values())

    def set_passwords(
        self, passwords: Mapping[str, str], mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
    ) -> None:
        """Lets these users log in by SCRAM."""
        how = ScramCredentialInfo(mechanism, 4096)
        wanted = [
            UserScramCredentialUpsertion(name, how, password.encode()) for name, password in passwords.items()
        ]
        admin = self._admin()  # kept in a variable: its futures end when it is freed
        for done in admin.alter_user_scram_credentials(wanted).values():
            done.result(30)

    def allow(
        self,
        user: str,
        operation: AclOperation,
        kind: ResourceType,
        name: str,
        pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    ) -> None:
        """Makes an ACL for a user from every host. The brokers need an authorizer."""
        rule = AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        admin = self._admin()
        for done in admin.create_acls([rule]).values():
            done.result(20)

    def _admin(self) -> Any:
        return AdminClient({"bootstrap.servers": self.bootstrap("PLAINTEXT")})

    def create_topic(self, name: str) -> None:
        """Creates a topic with one partition, unless it exists."""
        admin = self._admin()
        try:
            admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def client(self, name: str) -> KeyPair:
        """A certificate for a client of this common name, which the brokers trust."""
        return self.authority.issue(f"client-{name}", name)

    def password_file(self, user: str) -> Path:
        """A file with the user's password, as the gateway's configuration needs it."""
        file = self.folder / f"password-{user}"
        file.write_text(PASSWORDS[user] + "\n", encoding="utf-8")
        file.chmod(0o600)
        return file


def unsecured_token(subject: str, *, lifetime_s: float = 3600.0, claim: str = "sub", **claims: Any) -> str:
    """An unsigned OAuth token.

    Args:
        subject: the user that it is for.
        lifetime_s: from now on; negative for an expired token.
        claim: the name of the claim with the subject.
        claims: further claims.
    """
    now = time.time()
    payload = {claim: subject, "iat": now - 1, "exp": now + lifetime_s, **claims}
    parts = ({"alg": "none"}, payload)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return f"{encoded[0]}.{encoded[1]}."


def _properties(server: KeyPair, trusted: Path) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
        "listener.name.ssl.ssl.client.auth": "requested",
        "delegation.token.secret.key": "canary-of-tokens-08f7",
    }
    # Java parses the file: a backslash would begin an escape, and the login module uses quotes.
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items() if name.isalnum())
    for listener, protocol in LISTENERS.items():
        if not protocol.startswith("SASL"):
            continue
        prefix = f"listener.name.{listener.lower()}"
        found[f"{prefix}.plain.sasl.jaas.config"] = f"{_PLAIN} {users};"
        found[f"{prefix}.scram-sha-256.sasl.jaas.config"] = _SCRAM
        found[f"{prefix}.scram-sha-512.sasl.jaas.config"] = _SCRAM
        found[f"{prefix}.oauthbearer.sasl.jaas.config"] = f'{_OAUTH} unsecuredLoginStringClaim_sub="broker";'
        if listener == "REAUTH":
            for mechanism in MECHANISMS:
                found[f"{prefix}.{mechanism.lower()}.connections.max.reauth.ms"] = REAUTH_MS
    return found
