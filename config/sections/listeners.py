"""[[listeners]]: the ports that clients connect to, with their TLS, SASL and load balancers."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from config.faults import part_text
from config.host_port import MAX_PORT, BindAddress, HostPort, valid_host
from config.ip_address import PeerOrBlock
from config.mapping_rules import MappingRules
from config.section_base import (
    Count,
    CountOrZero,
    Key,
    Milliseconds,
    NonEmpty,
    Port,
    Section,
    ShortName,
    SmallCount,
    faults_error,
)
from config.security_protocol import SecurityProtocol, SecurityProtocolKey, TlsVersion, useless_faults
from config.server_names import ServerNames, check_name, check_pattern


class ProxyProtocolSettings(Section, frozen=True):
    """Load balancers that send the client's address in a PROXY header.

    With this table the listener accepts no other connections.

    Attributes:
        trusted: addresses and blocks of the load balancers. Connections from other addresses are closed
            unread, since a header can name any address.
        timeout_ms: time from the connection to the end of the header. Load balancers send the header at once.
        max_waiting: how many sockets may wait for their header at the same time. Each one counts as a
            connection.
    """

    trusted: Annotated[tuple[PeerOrBlock, ...], Field(strict=False, min_length=1, max_length=256)]
    timeout_ms: Annotated[int, Field(ge=1, le=60_000)] = 3_000
    max_waiting: SmallCount = 1_000

    @property
    def trusts_all(self) -> bool:
        """Whether every address is trusted."""
        return any(ipaddress.ip_network(each).prefixlen == 0 for each in self.trusted)


class ListenerSasl(Section, frozen=True):
    """User names for clients on a listener with SASL whose exchange does not contain a name.

    Attributes:
        unknown_principal: user name for clients that log in with GSSAPI, with an unknown mechanism, or with
            an OAuth token that cannot be read.
        delegation_token_principal: user name for clients that log in with a delegation token. Only the
            brokers know the token's owner.
        oauthbearer_principal_claim: the brokers' sasl.oauthbearer.sub.claim.name.
    """

    unknown_principal: NonEmpty = "unknown"
    delegation_token_principal: NonEmpty = "unknown"
    oauthbearer_principal_claim: NonEmpty = "sub"


def _rules(text: str) -> str:
    MappingRules.parse(text)
    return text


class NamedCertificate(Section, frozen=True):
    """One more certificate of a listener, for clients that ask for a host that it is made for.

    Host names are those of the certificate (subjectAltName): exact ones come before wildcards.

    Attributes:
        certificate: as in `[listeners.tls]`.
        key: its private key.
        key_password_file: file with the key's password, if the key has one.
    """

    certificate: NonEmpty
    key: NonEmpty
    key_password_file: NonEmpty | None = None


class ListenerTls(Section, frozen=True):
    """TLS of a listener: Kafka's ssl.* settings.

    Files are PEM, as OpenSSL reads them. The gateway reads them again when they change. Passwords are in files of
    their own, so that the configuration holds no secret.

    Attributes:
        certificate: the server's certificate, followed by those of intermediate authorities.
        key: its private key. It may be in the same file.
        key_password_file: file with the key's password, if the key has one.
        client_auth: whether clients must present a certificate. Kafka's ssl.client.auth.
        client_ca: authorities that may have signed the clients' certificates.
        client_crl: revocation lists of these authorities. Each authority then needs one.
        minimum_version: clients with older versions are refused.
        ciphers: OpenSSL's cipher list for TLS 1.2. Not set: OpenSSL's default. The ciphers of TLS 1.3 are all
            secure and cannot be chosen.
        handshake_timeout_ms: time from the connection to the end of the handshake, including the wait for its
            start.
        principal_mapping_rules: Kafka's ssl.principal.mapping.rules.
        certificate_texts: how texts in clients' names are decoded. by_kind: like brokers whose Java has the
            security updates of 2026. utf8: like older ones. The two differ only for letters beyond ASCII and
            for wide strings.
        certificates: more certificates, for clients that ask for their hosts. Other clients get the
            certificate above.
    """

    certificate: NonEmpty
    key: NonEmpty
    key_password_file: NonEmpty | None = None
    client_auth: Literal["none", "requested", "required"] = "none"
    client_ca: NonEmpty | None = None
    client_crl: NonEmpty | None = None
    minimum_version: TlsVersion = "TLSv1.2"
    ciphers: NonEmpty | None = None
    handshake_timeout_ms: Milliseconds = 10_000
    principal_mapping_rules: Annotated[str, AfterValidator(_rules)] = "DEFAULT"
    certificate_texts: Literal["by_kind", "utf8"] = "by_kind"
    certificates: Annotated[tuple[NamedCertificate, ...], Field(strict=False, max_length=64)] = ()

    def with_certificate(self, other: NamedCertificate) -> ListenerTls:
        """The same settings with one of `certificates` instead of the first one."""
        return self.model_copy(update={**dict(other), "certificates": ()})

    @model_validator(mode="after")
    def _check(self) -> ListenerTls:
        faults: list[tuple[Key, str]] = []
        if self.client_auth != "none" and self.client_ca is None:
            faults.append((("client_ca",), f'required, since client_auth is "{self.client_auth}"'))
        if self.client_auth == "none":
            given = [name for name in ("client_ca", "client_crl") if getattr(self, name) is not None]
            text = 'without effect, since client_auth is "none"; remove it, or set client_auth = "required"'
            faults.extend(((name,), text) for name in given)
        if faults:
            raise faults_error(faults)
        return self


class ListenerSni(Section, frozen=True):
    """One port for all brokers: clients name the broker that they want in the TLS handshake (SNI).

    With this table the listener has no port per broker. All names must lead clients to this gateway.

    Attributes:
        bootstrap_name: host name for `bootstrap.servers`. It leads to any broker.
        broker_name: host name of one broker, with `{node}` in the place of its id, such as
            `b{node}.kafka.example.com`.
        advertised_port: the port that clients are sent to, if a load balancer has another one. Not set: the
            port of `bind`.
    """

    bootstrap_name: Annotated[str, AfterValidator(check_name)]
    broker_name: Annotated[str, AfterValidator(check_pattern)]
    advertised_port: Port | None = None

    @property
    def names(self) -> ServerNames:
        """The names of the brokers."""
        return ServerNames.of(self.bootstrap_name, self.broker_name)

    @model_validator(mode="after")
    def _check(self) -> ListenerSni:
        if ServerNames.of("", self.broker_name).node_of(self.bootstrap_name.lower()) is not None:
            text = f'"{self.bootstrap_name}" is the name of a broker, by broker_name'
            raise faults_error([(("bootstrap_name",), text)])
        return self


def _host_of_bind(data: dict[str, Any]) -> str:
    bind: HostPort = data["bind"]
    return bind.host


def _port_after_bind(data: dict[str, Any]) -> int:
    bind: HostPort = data["bind"]
    return min(bind.port + 1, MAX_PORT)


class ListenerSettings(Section, frozen=True):
    """The ports of one listener: a bootstrap port and one port for each broker.

    The gateway advertises broker N as ``advertised_host``, ``first_broker_port + (N - lowest_broker_id)``. So the
    port of a broker never changes, in whatever order brokers come and go. With `[listeners.sni]` there is one port
    for all brokers.

    Attributes:
        name: name in metrics and logs. Unique.
        bind: address and bootstrap port. Port 0 takes any free port, for tests.
        advertised_host: the host that clients are sent to. Not set: the host of `bind`. Required if that is a
            wildcard.
        first_broker_port: port of the broker with the lowest id. Not set: the port after `bind`.
        lowest_broker_id: the lowest broker id that gets a port.
        broker_ports: how many broker ids get a port. Clients never see brokers beyond this number. Few
            clusters have more than 100 brokers.
        max_connections: Kafka's max.connections of this listener, including its broker ports. Not set:
            unlimited.
        max_connection_creation_rate: Kafka's max.connection.creation.rate of this listener. Not set:
            unlimited.
        protected: the listener is exempt from the limits of all listeners together, like Kafka's inter-broker
            listener. Only one listener may be protected.
        security_protocol: what clients must use. With SASL, only the SASL exchange is relayed until the
            client has authenticated.
        tls: required if security_protocol includes TLS.
        sasl: names of clients, if security_protocol includes SASL. Not set: the defaults.
        upstream: name of one of `[[upstreams]]`. Not set: `[upstream]`.
        proxy_protocol: the load balancers through which all clients connect. Not set: there are none.
        sni: names of the brokers, if clients reach all of them through the port of `bind`. Needs TLS. Not set:
            a port per broker.
    """

    name: ShortName
    bind: BindAddress
    advertised_host: NonEmpty = Field(default_factory=_host_of_bind)
    first_broker_port: Port = Field(default_factory=_port_after_bind, validate_default=True)
    lowest_broker_id: CountOrZero = 0
    broker_ports: Annotated[int, Field(ge=1, le=MAX_PORT)] = 100
    max_connections: Count | None = None
    max_connection_creation_rate: Count | None = None
    protected: bool = False
    security_protocol: SecurityProtocolKey = SecurityProtocol.PLAINTEXT
    tls: ListenerTls | None = None
    sasl: ListenerSasl | None = None
    upstream: NonEmpty | None = None
    proxy_protocol: ProxyProtocolSettings | None = None
    sni: ListenerSni | None = None

    @property
    def path(self) -> str:
        """The listener's path in the file."""
        return f"listeners.{part_text(self.name)}"

    @property
    def last_broker_port(self) -> int:
        """The highest port of the broker range."""
        return self.first_broker_port + self.broker_ports - 1

    @property
    def ports_of_brokers(self) -> range:
        """The broker range; empty if clients name brokers."""
        return range(self.first_broker_port, self.last_broker_port + 1) if self.sni is None else range(0)

    @model_validator(mode="after")
    def _check(self) -> ListenerSettings:
        faults = list(self._port_faults() if self.sni is None else self._name_faults(self.sni))
        if self.security_protocol.tls and self.tls is None:
            faults.append((("tls",), f"required, since security_protocol is {self.security_protocol}"))
        tables = {key for key in ("tls", "sasl") if getattr(self, key) is not None}
        faults += useless_faults(self.security_protocol, tables)
        if faults:
            raise faults_error(faults)
        return self

    def _port_faults(self) -> Iterator[tuple[Key, str]]:
        if HostPort(self.advertised_host, 0).wildcard:
            given = "advertised_host" in self.model_fields_set
            given_as = f'"{self.advertised_host}"' if given else f"required, since bind {self.bind}"
            yield ("advertised_host",), f"{given_as} is no address that clients can connect to"
        elif not valid_host(self.advertised_host):
            yield ("advertised_host",), f'"{self.advertised_host}" is not a host name or address'
        if self.last_broker_port > MAX_PORT:
            text = f"{self.broker_ports} ports from {self.first_broker_port} on go beyond {MAX_PORT}"
            yield ("broker_ports",), text
        if self.bind.port == 0 and "first_broker_port" not in self.model_fields_set:
            yield ("first_broker_port",), "required, since bind leaves its port open"

    def _name_faults(self, sni: ListenerSni) -> Iterator[tuple[Key, str]]:
        for key in ("advertised_host", "first_broker_port", "lowest_broker_id", "broker_ports"):
            if key in self.model_fields_set:
                yield (key,), "without effect, since there is a table sni; remove one of them"
        if not self.security_protocol.tls:
            wanted = SecurityProtocol.SASL_SSL if self.security_protocol.sasl else SecurityProtocol.SSL
            text = f"names are part of TLS, and security_protocol is {self.security_protocol}; set it to {wanted}"
            yield ("sni",), text
        if self.bind.port == 0 and sni.advertised_port is None:
            yield ("sni", "advertised_port"), "required, since bind leaves its port open"
