"""Which broker is where, what clients see of it, and when a silent peer is given up."""

import socket
from collections.abc import Iterator

import pytest

from config.server_names import ServerNames
from gateway.upstream import keepalive
from gateway.upstream.topology import BrokerNames, BrokerPorts, ClusterMap, Found, Topology
from protocol.codec import Broker

NAMES = BrokerNames(ServerNames.of("gw.test", "b{node}.gw.test"), 9_093)
PORTS = BrokerPorts("gateway.test", first_port=19_000, lowest_broker_id=100, count=3)


def cluster(*brokers: Broker) -> ClusterMap:
    """A map that knows these brokers since time 0."""
    known = ClusterMap([("seed", 9_092)])
    known.learn_all(brokers, now_ms=0)
    return known


def test_another_process_tells_of_brokers_that_are_unknown_or_missing_here() -> None:
    known = cluster(Broker(1, "one", 1), Broker(2, "two", 2))
    known.accepts_cluster("a")
    known.learn_all([Broker(1, "one", 1)], now_ms=5)
    assert known.found == Found("a", {1: ("one", 1)})
    known.learn_from(Found("b", {9: ("of-another-cluster", 9)}))
    assert known.broker_ids == [1, 2]
    known.learn_from(Found("a", {1: ("older", 1), 2: ("moved", 2), 3: ("three", 3)}))
    assert known.present == {1: ("one", 1), 2: ("moved", 2), 3: ("three", 3)}
    assert known.forget_missing(grace_ms=0, now_ms=9) == []
    # One that knows nothing yet belongs to this cluster from now on.
    new = cluster()
    new.learn_from(known.found)
    assert (new.accepts_cluster("b"), new.found) == (False, known.found)


# -- ports ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("broker_id", "port"), [(100, 19_000), (102, 19_002), (99, None), (103, None), (-1, None), (0, None)]
)
def test_a_brokers_port_is_a_formula_of_its_id(broker_id: int, port: int | None) -> None:
    assert PORTS.port_of(broker_id) == port


# -- names ---------------------------------------------------------------------------------------------------
def test_a_brokers_name_is_a_formula_of_its_id_and_needs_no_port() -> None:
    def bind(_broker_id: int, _port: int) -> bool:
        return True

    topology = Topology(cluster(Broker(7, "in", 1), Broker(8, "a-longer-name.inside", 1)), NAMES, bind)
    assert topology.advertise(2_000_000_000, "inside", 9_092) == ("b2000000000.gw.test", 9_093)
    assert NAMES.address_of(-1) is None
    assert topology.hidden == []
    # 8 bytes for the list, and for broker 7 and the new one what their names have more, with a byte for the length.
    assert topology.address_growth_bytes() == 8 + (len("b7.gw.test") - 2 + 1) + (len("b2000000000.gw.test") - 6 + 1)
    assert Topology(cluster(Broker(8, "a-longer-name.inside", 1)), NAMES, bind).address_growth_bytes() == 0


# -- the cluster ---------------------------------------------------------------------------------------------
def test_e11_e14_a_broker_is_found_at_its_new_address_and_not_in_another_cluster() -> None:
    known = cluster(Broker(1, "old", 1))
    known.learn(1, "new", 2)
    assert known.address_of(1) == ("new", 2)
    assert cluster(Broker(1, "a", 1)).hosts == {"a:1", "seed:9092"}
    known = ClusterMap([("seed", 9_092)])
    assert known.accepts_cluster(None)
    assert known.accepts_cluster("one")
    assert known.accepts_cluster("one")
    assert known.accepts_cluster(None)
    assert not known.accepts_cluster("two")
    assert known.cluster_id == "one"


def test_e10_a_missing_broker_is_forgotten_after_its_grace_unless_it_comes_back() -> None:
    known = cluster(Broker(1, "a", 1), Broker(2, "b", 2))
    known.learn_all([Broker(1, "a", 1)], now_ms=1_000)
    known.learn_all([Broker(1, "a", 1)], now_ms=5_000)
    assert known.forget_missing(grace_ms=10_000, now_ms=10_999) == []
    assert known.broker_ids == [1, 2]
    assert known.forget_missing(grace_ms=10_000, now_ms=11_000) == [2]
    assert (known.broker_ids, known.address_of(2)) == ([1], None)
    assert known.forget_missing(grace_ms=10_000, now_ms=12_000) == []
    known = cluster(Broker(1, "a", 1))
    known.learn_all([], now_ms=1_000)
    known.learn_all([Broker(1, "a", 1)], now_ms=5_000)
    assert known.forget_missing(grace_ms=1_000, now_ms=100_000) == []
    known.learn_all([], now_ms=100_000)
    assert known.forget_missing(grace_ms=1_000, now_ms=100_500) == []


# -- what one listener shows ---------------------------------------------------------------------------------
def test_e09_e12_a_port_is_bound_before_its_address_is_told_or_tried_again() -> None:
    bound: list[tuple[int, int]] = []

    def bind(broker_id: int, port: int) -> bool:
        bound.append((broker_id, port))
        return True

    topology = Topology(ClusterMap([]), PORTS, bind)
    assert topology.advertise(101, "inside", 9_092) == ("gateway.test", 19_001)
    assert bound == [(101, 19_001)]
    topology.advertise(101, "inside", 9_092)
    assert bound == [(101, 19_001)]
    assert topology.cluster.address_of(101) == ("inside", 9_092)
    answers = iter([False, True])
    topology = Topology(ClusterMap([]), PORTS, lambda _broker_id, _port: next(answers))
    assert topology.advertise(100, "inside", 9_092) is None
    assert topology.advertise(100, "inside", 9_092) == ("gateway.test", 19_000)


@pytest.mark.parametrize(("broker_id", "host"), [(103, "inside"), (99, "inside"), (-1, "inside"), (100, "")])
def test_e12_what_has_no_address_here_is_not_told(broker_id: int, host: str) -> None:
    def bind(_broker_id: int, _port: int) -> bool:
        raise AssertionError

    assert Topology(ClusterMap([]), PORTS, bind).advertise(broker_id, host, 9_092) is None


def test_a_withdrawn_port_is_bound_again_and_all_known_brokers_at_once() -> None:
    bound: list[int] = []

    def bind(broker_id: int, _port: int) -> bool:
        bound.append(broker_id)
        return True

    topology = Topology(ClusterMap([]), PORTS, bind)
    topology.advertise(100, "inside", 9_092)
    topology.withdraw(100)
    topology.advertise(100, "inside", 9_092)
    assert bound == [100, 100]
    topology = Topology(cluster(Broker(100, "a", 1), Broker(102, "b", 2), Broker(7, "c", 3)), PORTS, bind)
    topology.advertise_known()
    assert bound == [100, 100, 100, 102]


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


def option(sock: socket.socket, name: int) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, name)


def test_b05_dead_peer_is_found_out_and_a_silent_broker_is_not_taken_for_one(sock: socket.socket) -> None:
    keepalive.watch_peer(sock)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    probes_s = option(sock, socket.TCP_KEEPINTVL) * option(sock, socket.TCP_KEEPCNT)
    assert option(sock, socket.TCP_KEEPIDLE) + probes_s <= 120
    keepalive.watch_peer(sock)
    assert option(sock, socket.TCP_USER_TIMEOUT) == 0


@pytest.mark.parametrize(
    ("write_timeout_ms", "limit_ms"), [(30_000, 120_000), (200_000, 400_000), (2**31 - 1, 2**31 - 1)]
)
def test_deadline_of_writes_is_before_the_kernels(sock: socket.socket, write_timeout_ms: int, limit_ms: int) -> None:
    keepalive.limit_unacknowledged(sock, write_timeout_ms=write_timeout_ms)
    assert option(sock, socket.TCP_USER_TIMEOUT) == limit_ms
