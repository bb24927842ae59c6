"""The sections of the configuration file, one model each: keys, ranges, defaults.

Values keep their TOML type: ``"9092"`` is not a number and ``1`` is not true. Times are whole milliseconds,
except where the key carries Kafka's own name and unit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from config.address import MAX_PORT, BindAddress, ConnectAddress, HostPort, valid_host
from config.ip_address import AddressOrBlock
from config.proxy_sections import ProxyProtocolSettings, SendProxyProtocol, SendProxyProtocolKey
from config.sasl_sections import ListenerSasl, UpstreamSasl
from config.section import (
    MAX_INT32,
    ByteRate,
    Bytes,
    ConnectionRate,
    Count,
    Key,
    MaxTrackers,
    Milliseconds,
    NonEmpty,
    Port,
    Rate,
    Section,
    WindowNum,
    WindowSeconds,
    faults_error,
)
from config.security_protocol import SecurityProtocol, SecurityProtocolKey
from config.security_sections import ListenerTls, UpstreamTls, listener_faults
from quotas.entities import DEFAULT, Name, QuotaEntity, QuotaKey
from quotas.limits import IP_KEYS, EmptyClientId, Enforcement
from quotas.mutation_meters import MutationAlgorithm
from quotas.mutations import ValidateOnly


class UpstreamSettings(Section, frozen=True):
    """The Kafka cluster behind the gateway.

    Attributes:
        bootstrap: brokers to ask for the others; the first that answers.
        connect_timeout_ms: for one connection to one broker.
        topology_refresh_ms: how often the cluster is asked for its brokers.
        security_protocol: of the brokers' listener; what connections to it begin with.
        tls: how its TLS is done; None: with the authorities that the system trusts.
        sasl: who the gateway itself is there; clients log in as themselves.
        send_proxy_protocol: whether connections begin with a PROXY header that tells who the client is.
    """

    bootstrap: Annotated[tuple[ConnectAddress, ...], Field(strict=False, min_length=1)]
    connect_timeout_ms: Milliseconds = 5_000
    topology_refresh_ms: Milliseconds = 30_000
    security_protocol: SecurityProtocolKey = SecurityProtocol.PLAINTEXT
    tls: UpstreamTls | None = None
    sasl: UpstreamSasl | None = None
    send_proxy_protocol: SendProxyProtocolKey = SendProxyProtocol.NONE

    @model_validator(mode="after")
    def _check_security(self) -> UpstreamSettings:
        protocol = self.security_protocol
        given = {
            "tls": self.tls is not None and not protocol.tls,
            "sasl": self.sasl is not None and not protocol.sasl,
        }
        text = f"without effect, since security_protocol is {protocol}"
        faults: list[tuple[Key, str]] = [((key,), text) for key, useless in given.items() if useless]
        if faults:
            raise faults_error(faults)
        return self


class NamedUpstreamSettings(UpstreamSettings, frozen=True):
    """Another way to the same cluster: other listeners of its brokers.

    Attributes:
        name: unique; listeners and metrics call it by this.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


def _host_of_bind(data: dict[str, Any]) -> str:
    bind: HostPort = data["bind"]
    return bind.host


def _port_after_bind(data: dict[str, Any]) -> int:
    bind: HostPort = data["bind"]
    return bind.port + 1


class ListenerSettings(Section, frozen=True):
    """One way in for clients: a bootstrap port and one port per broker.

    Broker N is advertised as ``advertised_host``, ``first_broker_port + (N - lowest_broker_id)``. The port
    of a broker thus never changes, whatever the order in which brokers come and go.

    Attributes:
        name: in metrics and logs; unique.
        bind: address and bootstrap port; port 0 is any free one, for tests.
        advertised_host: what clients are told to connect to. The bind host unless that is a wildcard.
        first_broker_port: of the broker with the lowest id. The port after `bind` if not given.
        lowest_broker_id: the smallest broker id that gets a port.
        broker_ports: how many ids get one; a broker beyond is never shown to clients.
        max_connections: Kafka's max.connections of this listener, broker ports included; None: unlimited.
        max_connection_creation_rate: Kafka's max.connection.creation.rate of this listener; None: unlimited.
        protected: exempt from the limits of all listeners together, as Kafka's inter-broker listener is; one may be.
        security_protocol: what clients speak; with SASL nothing else is relayed before they have authenticated.
        tls: required where security_protocol has TLS.
        sasl: names of clients, where security_protocol has SASL; None: the defaults.
        upstream: one of [[upstreams]]; None: [upstream].
        proxy_protocol: the load balancers that all clients come through; None: there are none.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    bind: BindAddress
    advertised_host: NonEmpty = Field(default_factory=_host_of_bind)
    first_broker_port: Port = Field(default_factory=_port_after_bind, validate_default=True)
    lowest_broker_id: Annotated[int, Field(ge=0, le=MAX_INT32)] = 0
    broker_ports: Annotated[int, Field(ge=1, le=MAX_PORT)] = 100
    max_connections: Count | None = None
    max_connection_creation_rate: ConnectionRate | None = None
    protected: bool = False
    security_protocol: SecurityProtocolKey = SecurityProtocol.PLAINTEXT
    tls: ListenerTls | None = None
    sasl: ListenerSasl | None = None
    upstream: NonEmpty | None = None
    proxy_protocol: ProxyProtocolSettings | None = None

    @property
    def last_broker_port(self) -> int:
        """The highest port of the broker range."""
        return self.first_broker_port + self.broker_ports - 1

    @model_validator(mode="after")
    def _check(self) -> ListenerSettings:
        faults: list[tuple[Key, str]] = []
        if HostPort(self.advertised_host, 0).wildcard:
            given = "advertised_host" in self.model_fields_set
            who = f'"{self.advertised_host}"' if given else f"required, since bind {self.bind}"
            faults.append((("advertised_host",), f"{who} is no address that clients can connect to"))
        elif not valid_host(self.advertised_host):
            faults.append((("advertised_host",), f'"{self.advertised_host}" is not a host name or address'))
        if self.last_broker_port > MAX_PORT:
            text = f"{self.broker_ports} ports from {self.first_broker_port} on go beyond {MAX_PORT}"
            faults.append((("broker_ports",), text))
        if self.bind.port == 0 and "first_broker_port" not in self.model_fields_set:
            faults.append((("first_broker_port",), "required, since bind leaves its port open"))
        faults.extend(listener_faults(self.security_protocol.tls, self.tls, self.security_protocol))
        if self.sasl is not None and not self.security_protocol.sasl:
            faults.append((("sasl",), f"without effect, since security_protocol is {self.security_protocol}"))
        if faults:
            raise faults_error(faults)
        return self


class AdminSettings(Section, frozen=True):
    """The port of /metrics, /healthz, /readyz and the kill switch. It has no password, so it is on loopback.

    Attributes:
        bind: address and port; port 0 is any free one.
        remote_changes: whether others than this machine may change something where `bind` lets them in.
        max_entity_series: how many users and clients have series of their own, per quota; the others share one.
    """

    bind: BindAddress = HostPort("127.0.0.1", 9644)
    remote_changes: bool = False
    max_entity_series: Annotated[int, Field(ge=0, le=100_000)] = 250


class LimitSettings(Section, frozen=True):
    """Bounds of one client connection, quotas aside; gateway.session.settings says what each one means."""

    max_frame_bytes: Bytes = 104_857_600
    max_in_flight_requests: Count = 1000
    max_response_bytes: Bytes = MAX_INT32
    max_mute_ms: Milliseconds = 110_000
    first_frame_timeout_ms: Milliseconds = 10_000
    frame_timeout_ms: Milliseconds = 30_000
    min_frame_bytes_per_s: Count = 16_384
    idle_timeout_ms: Milliseconds = 600_000
    write_timeout_ms: Milliseconds = 30_000
    min_write_bytes_per_s: Count = 1_024
    upstream_write_timeout_ms: Milliseconds = 180_000


class DrainSettings(Section, frozen=True):
    """How the gateway stops.

    Attributes:
        timeout_ms: how long requests already read may take to be answered before connections are closed.
    """

    timeout_ms: Annotated[int, Field(ge=0, le=MAX_INT32)] = 30_000


class LogSettings(Section, frozen=True):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["logfmt", "json"] = "logfmt"


class EnforcementSettings(Section, frozen=True):
    """What is done with all quotas: enforced, only watched, or nothing.

    Attributes:
        mode: see quotas.limits.Enforcement.
    """

    mode: Annotated[Enforcement, Field(strict=False)] = Enforcement.ENFORCE


class ClientQuotaSettings(Section, frozen=True):
    """How byte rates and request time are measured (KIP-13, KIP-124). Whom they are limited for is in [[quotas]].

    Attributes:
        window_num: Kafka's quota.window.num.
        window_size_seconds: Kafka's quota.window.size.seconds.
        scope: what one counter covers. gateway: all brokers together; broker: each by itself, as a cluster does.
        request_time: what request_percentage counts. gateway: CPU time of this process; upstream: the time brokers
            take to answer requests that wait for nobody.
        max_trackers: how many counters of each quota there may be; clients beyond share one.
        idle_expiry_ms: how long the counter of a silent client is kept.
    """

    window_num: WindowNum = 11
    window_size_seconds: WindowSeconds = 1
    scope: Literal["gateway", "broker"] = "gateway"
    request_time: Literal["gateway", "upstream"] = "gateway"
    max_trackers: MaxTrackers = 20_000
    idle_expiry_ms: Milliseconds = 3_600_000


class MutationQuotaSettings(Section, frozen=True):
    """How controller mutations are measured (KIP-599). Whom they are limited for is in [[quotas]].

    Attributes:
        algorithm: token_bucket is what Kafka released; rate and spread_rate are what it replaced.
        window_num: Kafka's controller.quota.window.num.
        window_size_seconds: Kafka's controller.quota.window.size.seconds.
        validate_only: what requests that only validate cost. kip: nothing; kraft: as much as real ones.
        default_num_partitions: what -1 partitions counts until the cluster has told its num.partitions.
        max_trackers: how many counters there may be; clients beyond share one.
        idle_expiry_ms: how long the counter of a silent client is kept.
    """

    algorithm: Annotated[MutationAlgorithm, Field(strict=False)] = MutationAlgorithm.TOKEN_BUCKET
    window_num: WindowNum = 11
    window_size_seconds: WindowSeconds = 1
    validate_only: Annotated[ValidateOnly, Field(strict=False)] = ValidateOnly.KIP
    default_num_partitions: Count = 1
    max_trackers: MaxTrackers = 10_000
    idle_expiry_ms: Milliseconds = 3_600_000


class ClientIdSettings(Section, frozen=True):
    """How client ids are read.

    Attributes:
        empty: what a client without a client id is; see quotas.limits.Limits.
        prefixes: whether users and client ids of quotas that end in ``*`` stand for all names that begin so.
    """

    empty: EmptyClientId = "kafka"
    prefixes: bool = False


class QuotaRule(Section, frozen=True):
    """The quotas of one entity: a user, a client id, a pair of them, or an address; each by name or as the default.

    The default has a key of its own, so that every name stays a name: ``user = "<default>"`` is a user who is
    really called that.

    Attributes:
        user, default_user, client_id, default_client_id: whom the quotas are for.
        ip, default_ip: an address, a block of addresses that share one counter, or every other address by itself.
        observe: compute and report, but make nobody wait and refuse nothing; all quotas of this entity alike.
        producer_byte_rate, consumer_byte_rate: bytes per second; whole numbers, as Kafka stores them.
        request_percentage: of one core; 200 is two of them.
        controller_mutation_rate: partitions per second.
        connection_creation_rate: connections per second; for addresses, which have no other quota.
    """

    user: NonEmpty | None = None
    default_user: bool = False
    client_id: NonEmpty | None = None
    default_client_id: bool = False
    ip: AddressOrBlock | None = None
    default_ip: bool = False
    observe: bool = False
    producer_byte_rate: ByteRate | None = None
    consumer_byte_rate: ByteRate | None = None
    request_percentage: Rate | None = None
    controller_mutation_rate: Rate | None = None
    connection_creation_rate: ConnectionRate | None = None

    @property
    def entity(self) -> QuotaEntity:
        """Whom these quotas are for."""
        user: Name | None = DEFAULT if self.default_user else self.user
        client_id: Name | None = DEFAULT if self.default_client_id else self.client_id
        return QuotaEntity(user=user, client_id=client_id, ip=DEFAULT if self.default_ip else self.ip)

    def values(self) -> dict[QuotaKey, float]:
        """The limits that are given, by quota."""
        given = {key: getattr(self, key) for key in ENFORCED_KEYS}
        return {key: float(value) for key, value in given.items() if value is not None}

    @model_validator(mode="after")
    def _check(self) -> QuotaRule:
        faults: list[tuple[Key, str]] = []
        for name in ("user", "client_id", "ip"):
            if getattr(self, name) is not None and getattr(self, f"default_{name}"):
                faults.append(((name,), f"give {name} or default_{name}, not both"))
        entity = self.entity
        if not any(entity.components()):
            names = "user, default_user, client_id, default_client_id, ip or default_ip"
            faults.append(((), f"names nobody; give {names}"))
        elif entity.family is None:
            faults.append(((), "an address can not be combined with a user or a client id"))
        else:
            faults.extend(self._key_faults(IP_KEYS if entity.ip is not None else CLIENT_KEYS))
        if faults:
            raise faults_error(faults)
        return self

    def _key_faults(self, allowed: Collection[QuotaKey]) -> Iterator[tuple[Key, str]]:
        known = [key for key in ENFORCED_KEYS if key in allowed]
        if not self.values():
            yield (), f"limits nothing; give {' or '.join(known)}"
        whom = "users and client ids have" if allowed is CLIENT_KEYS else "addresses have"
        for key in self.values():
            if key not in allowed:
                yield (str(key),), f"{whom} no such quota; give {' or '.join(known)}"


# The quotas that this gateway enforces. Accepting another one would promise what nobody keeps.
ENFORCED_KEYS: Final = tuple(key for key in QuotaKey if key in QuotaRule.model_fields)

CLIENT_KEYS: Final = tuple(key for key in ENFORCED_KEYS if key not in IP_KEYS)
"""Those of users and client ids."""
