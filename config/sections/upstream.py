"""[upstream] and [[upstreams]]: the cluster behind the gateway, and how it is reached."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from config.faults import part_text
from config.host_port import ConnectAddress
from config.section_base import Key, Milliseconds, NonEmpty, Section, ShortName, faults_error
from config.security_protocol import SecurityProtocol, SecurityProtocolKey, TlsVersion, useless_faults


class SendProxyProtocol(StrEnum):
    """Which version of the PROXY protocol connections to brokers begin with."""

    NONE = "none"
    V1 = "v1"
    V2 = "v2"


SendProxyProtocolKey: TypeAlias = Annotated[SendProxyProtocol, Field(strict=False)]
"""As a key of the configuration file, where it is a text."""


class UpstreamTls(Section, frozen=True):
    """TLS to the brokers. Files are read as for listeners.

    Attributes:
        ca: authorities that may have signed the brokers' certificates. Not set: those that the system trusts.
        certificate: the gateway's own certificate, for brokers that ask for one.
        key: the private key of the gateway's certificate.
        key_password_file: file with the key's password, if the key has one.
        verify: whether the gateway checks a broker's certificate and name. false: any host can pose as the
            cluster.
        server_name: the name that every broker's certificate must have. Not set: the host that the gateway
            connects to.
        minimum_version: brokers with older versions are refused.
        ciphers: as for listeners.
    """

    ca: NonEmpty | None = None
    certificate: NonEmpty | None = None
    key: NonEmpty | None = None
    key_password_file: NonEmpty | None = None
    verify: bool = True
    server_name: NonEmpty | None = None
    minimum_version: TlsVersion = "TLSv1.2"
    ciphers: NonEmpty | None = None

    @model_validator(mode="after")
    def _check(self) -> UpstreamTls:
        faults: list[tuple[Key, str]] = []
        for name, other in (("certificate", "key"), ("key", "certificate")):
            if getattr(self, name) is None and getattr(self, other) is not None:
                faults.append(((name,), f"required, since {other} is given"))
        if self.key_password_file is not None and self.key is None:
            faults.append(
                (("key_password_file",), "without effect, since there is no key; remove it, or give key")
            )
        if not self.verify:
            given = [name for name in ("ca", "server_name") if getattr(self, name) is not None]
            text = "without effect, since verify is false; remove it, or set verify = true"
            faults.extend(((name,), text) for name in given)
        if faults:
            raise faults_error(faults)
        return self


def _https(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError('is not a URL such as "https://login.example.com/oauth2/token"')
    if "@" in parts.netloc or parts.fragment:
        raise ValueError("has a user or a fragment; give client_id and client_secret_file instead")
    return text


_OF_PASSWORDS: Final = ("username", "password_file")
_OF_ENDPOINTS: Final = ("client_id", "client_secret_file")
_OPTIONAL: Final = ("token_endpoint_ca", "scope")


class UpstreamSasl(Section, frozen=True):
    """The gateway's own user, for its own requests to the brokers. Clients' connections never use it.

    Secrets are in files of their own, so that the configuration holds none. The gateway looks at the files every
    five seconds, so a new secret needs no restart. A file that it cannot use leaves the earlier secret in force.

    Attributes:
        mechanism: a SASL mechanism that the brokers' listener supports.
        username: name of this user, for PLAIN and SCRAM.
        password_file: file with the password, for PLAIN and SCRAM. A line end after it is ignored.
        token_endpoint: https URL that gives tokens for OAUTHBEARER, by OAuth 2 client credentials.
        token_endpoint_ca: PEM file with the authorities of the token endpoint. Not set: those that the system
            trusts.
        client_id: the gateway's name at the token endpoint.
        client_secret_file: file with the gateway's secret at the token endpoint. A line end after it is ignored.
        scope: what the token is for, in words of the token endpoint. Not set: the endpoint decides.
        token_file: file with a token for OAUTHBEARER, instead of a token endpoint. Another program renews it.
    """

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    username: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    password_file: NonEmpty | None = None
    token_endpoint: Annotated[str, AfterValidator(_https)] | None = None
    token_endpoint_ca: NonEmpty | None = None
    client_id: NonEmpty | None = None
    client_secret_file: NonEmpty | None = None
    scope: NonEmpty | None = None
    token_file: NonEmpty | None = None

    @property
    def secret_files(self) -> dict[str, str]:
        """The files with secrets, by key."""
        names = ("password_file", "client_secret_file", "token_file")
        return {name: file for name in names if (file := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _check(self) -> UpstreamSasl:
        required: tuple[str, ...]
        useless: tuple[str, ...]
        oauth = ("token_endpoint", *_OF_ENDPOINTS, *_OPTIONAL, "token_file")
        if self.mechanism != "OAUTHBEARER":
            required, useless = _OF_PASSWORDS, oauth
            why = f'mechanism is "{self.mechanism}"'
        elif self.token_file is not None:
            required, useless = (), (*_OF_PASSWORDS, *oauth[:-1])
            why = 'mechanism is "OAUTHBEARER" and token_file is given'
        else:
            required, useless = ("token_endpoint", *_OF_ENDPOINTS), _OF_PASSWORDS
            why = 'mechanism is "OAUTHBEARER" without token_file'
        faults: list[tuple[Key, str]] = [
            ((name,), f"required, since {why}") for name in required if getattr(self, name) is None
        ]
        faults += [
            ((name,), f"without effect, since {why}; remove it")
            for name in useless
            if getattr(self, name) is not None
        ]
        if faults:
            raise faults_error(faults)
        return self


class UpstreamSettings(Section, frozen=True):
    """The Kafka cluster behind the gateway.

    Attributes:
        bootstrap: brokers that the gateway asks for the other brokers. The first one that answers is used.
        connect_timeout_ms: timeout for one connection to one broker. The default is shorter than clients wait, and
            leaves time for the third SYN, which Linux sends after 3 s.
        topology_refresh_ms: how often the gateway asks the cluster for its brokers. It also sees changes in
            the answers that it relays.
        security_protocol: protocol of the brokers' listener.
        tls: TLS to the brokers. Not set: with the authorities that the system trusts.
        sasl: the gateway's own user there. Clients log in as themselves.
        send_proxy_protocol: whether connections to brokers start with a PROXY header that contains the
            client's address.
    """

    bootstrap: Annotated[tuple[ConnectAddress, ...], Field(strict=False, min_length=1)]
    connect_timeout_ms: Milliseconds = 4_000  # hazard D02
    topology_refresh_ms: Milliseconds = 30_000
    security_protocol: SecurityProtocolKey = SecurityProtocol.PLAINTEXT
    tls: UpstreamTls | None = None
    sasl: UpstreamSasl | None = None
    send_proxy_protocol: SendProxyProtocolKey = SendProxyProtocol.NONE

    @property
    def path(self) -> str:
        """Where it is in the file."""
        return "upstream"

    @property
    def brokers(self) -> str:
        """`bootstrap` for people."""
        return ", ".join(str(broker) for broker in self.bootstrap)

    @model_validator(mode="after")
    def _check_security(self) -> UpstreamSettings:
        given = {key for key in ("tls", "sasl") if getattr(self, key) is not None}
        faults = useless_faults(self.security_protocol, given)
        if faults:
            raise faults_error(faults)
        return self


class NamedUpstreamSettings(UpstreamSettings, frozen=True):
    """Another way to the same cluster: other listeners of its brokers.

    Attributes:
        name: unique name. Listeners and metrics use it.
    """

    name: ShortName

    @property
    def path(self) -> str:
        """Where it is in the file."""
        return f"upstreams.{part_text(self.name)}"
