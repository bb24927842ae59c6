"""The brokers and the addresses under which clients find them here. Pure: binding is a callback.

A broker's port follows from a formula, `first_broker_port + (broker id - lowest_broker_id)`. So it is the same after
every restart and on every gateway with the same configuration, and no other broker gets the port of a broker that has
left. A port is bound before it is advertised; a broker without a port is hidden from clients (hazard E12). If clients
name brokers in the TLS handshake, the name follows from a formula, and all brokers have the same port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from config.server_names import ServerNames
from protocol.codec import Broker

Address: TypeAlias = tuple[str, int]
"""(host, port)."""


_LENGTH_BYTES: Final = 1
_LIST_BYTES: Final = 8
"""By how much the length of a host name, and that of the list, may grow in size."""


class BrokerAddresses(Protocol):
    """How one listener turns broker ids into addresses."""

    @property
    def lowest_broker_id(self) -> int: ...
    @property
    def last_broker_id(self) -> int:
        """The highest id that has an address."""

    def address_of(self, broker_id: int) -> Address | None:
        """The address that clients connect to; None when the id is out of range."""

    def growths(self, brokers: Mapping[int, Address]) -> list[int]:
        """For each broker whose address is longer here than in `brokers`: by how many bytes."""


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    """How one listener turns broker ids into ports.

    Attributes:
        advertised_host: the host that clients connect to.
        first_port: the port of `lowest_broker_id`.
        lowest_broker_id: see above.
        count: ports in the range; ids beyond it have none.
    """

    advertised_host: str
    first_port: int
    lowest_broker_id: int
    count: int

    @property
    def last_broker_id(self) -> int:
        """The highest id that has a port."""
        return self.lowest_broker_id + self.count - 1

    def port_of(self, broker_id: int) -> int | None:
        """The port of a broker; None when its id is out of the range."""
        index = broker_id - self.lowest_broker_id
        if not 0 <= index < self.count:
            return None
        return self.first_port + index

    def address_of(self, broker_id: int) -> Address | None:
        """See `BrokerAddresses`."""
        port = self.port_of(broker_id)
        return None if port is None else (self.advertised_host, port)

    def growths(self, brokers: Mapping[int, Address]) -> list[int]:
        """See `BrokerAddresses`."""
        ours = len(self.advertised_host.encode())
        return [growth + _LENGTH_BYTES for host, _ in brokers.values() if (growth := ours - len(host)) > 0]


@dataclass(frozen=True, slots=True)
class BrokerNames:
    """How one listener turns broker ids into names.

    Attributes:
        names: of the brokers.
        port: of all of them.
        lowest_broker_id, last_broker_id: see `BrokerAddresses`.
    """

    names: ServerNames
    port: int
    lowest_broker_id: int = 0
    last_broker_id: int = 2**31 - 1

    def address_of(self, broker_id: int) -> Address | None:
        """See `BrokerAddresses`."""
        return None if broker_id < 0 else (self.names.name_of(broker_id), self.port)

    def growths(self, brokers: Mapping[int, Address]) -> list[int]:
        """See `BrokerAddresses`."""
        sizes = [(len(self.names.name_of(broker_id)), len(host)) for broker_id, (host, _) in brokers.items()]
        return [ours - theirs + _LENGTH_BYTES for ours, theirs in sizes if ours > theirs]


BindPort: TypeAlias = Callable[[int, int], bool]
"""(broker id, port) -> whether this port accepts connections now; called once per broker until it succeeds."""


class Found(NamedTuple):
    """What another process knows of a cluster.

    Attributes:
        cluster_id: None: not known.
        brokers: their addresses, by id.
    """

    cluster_id: str | None
    brokers: dict[int, Address]


class ClusterMap:
    """The brokers of the cluster as last reported, shared by all listeners.

    Attributes:
        cluster_id: of the first cluster that answered; None until then.
        answered_cluster_id: of the cluster that answered last, even if it is another one; None until then.
        default_num_partitions: the cluster's num.partitions as far as known.
        auto_create_topics: the cluster's auto.create.topics.enable as far as known.
    """

    def __init__(
        self,
        bootstrap: Iterable[Address],
        *,
        default_num_partitions: int = 1,
        same_as: ClusterMap | None = None,
    ) -> None:
        """Nothing is known yet.

        Args:
            bootstrap: the addresses to ask first.
            default_num_partitions: until the cluster has reported its own.
            same_as: the map of the same cluster as seen through other listeners; None: this is the first map.
        """
        self._same_as = same_as
        self.bootstrap: Final = tuple(bootstrap)
        self.cluster_id: str | None = None
        self.answered_cluster_id: str | None = None
        self.default_num_partitions = default_num_partitions
        self.auto_create_topics = True
        self._brokers: dict[int, Address] = {}
        self._missing_since_ms: dict[int, int] = {}

    def learn(self, broker_id: int, host: str, port: int) -> None:
        """Note a broker's address, which new connections use from now on (hazard E11)."""
        self._brokers[broker_id] = (host, port)
        self._missing_since_ms.pop(broker_id, None)

    def learn_from(self, found: Found) -> None:
        """Note the brokers that another process has found, and that this one does not know or misses."""
        if self.accepts_cluster(found.cluster_id):
            present = self.present
            for broker_id, (host, port) in found.brokers.items():
                if broker_id not in present:
                    self.learn(broker_id, host, port)

    def learn_all(self, brokers: Iterable[Broker], *, now_ms: int) -> None:
        """Note the whole list of brokers; brokers that are not in it are missing from now on."""
        present = set()
        for broker in brokers:
            self.learn(broker.broker_id, broker.host, broker.port)
            present.add(broker.broker_id)
        for broker_id in self._brokers:
            if broker_id not in present:
                self._missing_since_ms.setdefault(broker_id, now_ms)

    def forget_missing(self, *, grace_ms: int, now_ms: int) -> list[int]:
        """Forget brokers that have been missing for longer than `grace_ms`; returns their ids (hazard E10)."""
        gone = [
            broker_id
            for broker_id, since_ms in self._missing_since_ms.items()
            if now_ms - since_ms >= grace_ms
        ]
        for broker_id in gone:
            del self._missing_since_ms[broker_id]
            del self._brokers[broker_id]
        return gone

    def accepts_cluster(self, cluster_id: str | None) -> bool:
        """Whether this is the id of our cluster, which is the first cluster that answers (hazard E14)."""
        if cluster_id is None:
            return True
        if self._same_as is not None and not self._same_as.accepts_cluster(cluster_id):
            return False
        if self.cluster_id is None:
            self.cluster_id = cluster_id
        return self.cluster_id == cluster_id

    def address_of(self, broker_id: int) -> Address | None:
        """The address of a broker; None when the cluster does not know it (any more)."""
        return self._brokers.get(broker_id)

    @property
    def broker_ids(self) -> list[int]:
        """The ids of known brokers."""
        return sorted(self._brokers)

    @property
    def found(self) -> Found:
        """The brokers in the cluster's last answer."""
        return Found(self.cluster_id, self.present)

    @property
    def present(self) -> dict[int, Address]:
        """The addresses of the brokers in the cluster's last answer."""
        missing = self._missing_since_ms
        return {broker_id: known for broker_id, known in self._brokers.items() if broker_id not in missing}

    @property
    def brokers(self) -> Mapping[int, Address]:
        """The address of each known broker."""
        return self._brokers

    @property
    def hosts(self) -> set[str]:
        """Host names that must not reach a client: `host:port` of every broker and bootstrap address."""
        addresses = {*self._brokers.values(), *self.bootstrap}
        return {f"{host}:{port}" for host, port in addresses}


@dataclass(frozen=True, slots=True)
class NamedBrokers:
    """The brokers of a listener whose clients name the broker in the TLS handshake.

    Attributes:
        names: of the brokers.
        cluster: the brokers that exist.
        look_soon: called when a client names a broker that the cluster does not have.
    """

    names: ServerNames
    cluster: ClusterMap
    look_soon: Callable[[], None]


class Topology:
    """The cluster as clients of one listener see it."""

    def __init__(self, cluster: ClusterMap, addresses: BrokerAddresses, bind: BindPort) -> None:
        self.cluster: Final = cluster
        self.addresses: Final = addresses
        self._bind = bind
        self._bound: set[int] = set()

    def advertise(self, broker_id: int, host: str, port: int) -> Address | None:
        """Our address of a broker that the cluster reported, bound before it is returned; None: omit the broker."""
        if broker_id < 0 or not host:
            return None
        ours = self.addresses.address_of(broker_id)
        if ours is None:
            return None
        self.cluster.learn(broker_id, host, port)
        return ours if self._open(broker_id, ours[1]) else None

    @property
    def hidden(self) -> list[int]:
        """Known brokers that are hidden from clients, because their ids have no address."""
        return [each for each in self.cluster.broker_ids if self.addresses.address_of(each) is None]

    def address_growth_bytes(self) -> int:
        """By how many bytes a list of all brokers may be longer with our addresses than with the cluster's."""
        growths = self.addresses.growths(self.cluster.brokers)
        return sum(growths) + _LIST_BYTES if growths else 0

    def advertise_known(self) -> None:
        """Bind the ports of present brokers. Does not count as learning about them: they can still go missing."""
        for broker_id in sorted(self.cluster.present):
            self.open(broker_id)

    def open(self, broker_id: int) -> bool:
        """Bind the port of a broker, unless it is bound; returns whether it is bound."""
        ours = self.addresses.address_of(broker_id)
        return ours is not None and self._open(broker_id, ours[1])

    def _open(self, broker_id: int, our_port: int) -> bool:
        if broker_id not in self._bound:
            if not self._bind(broker_id, our_port):
                return False
            self._bound.add(broker_id)
        return True

    def withdraw(self, broker_id: int) -> None:
        """The broker's port was closed; it is bound again if the broker comes back."""
        self._bound.discard(broker_id)
