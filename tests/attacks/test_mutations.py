"""Clients that try to mutate topics without paying: what was created stays within the quota, and honest permits stay.

Each client id has a bucket of `BURST` and nearly no rate, so that what exists at the end is what the burst let pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from struct import unpack_from
from typing import Any, Final

import pytest
from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType

from embedded_kafka.kafka import KafkaCluster
from testkit.frames import streams_heartbeat, subtopology
from testkit.secure_kafka import PASSWORDS, SecureKafka
from testkit.tap import Tap
from testkit.wire_client import Reply, WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.sasl_gateway import log_in, own_user

pytestmark = pytest.mark.integration

RATE: Final = 1.0
BURST: Final = 11
NONE, UNKNOWN, NOT_AUTHORISED, EXISTS, INVALID_PARTITIONS, REPLICATION_FACTOR = 0, 3, 29, 36, 37, 38
INVALID_REQUEST, THROTTLED = 42, 89
TOKENS: Final = "gateway_controller_mutation_tokens"
CLIENTS: Final = (
    "padded-2", "padded-7", "twice", "too-many", "stream", "retry", "refused-old", "refused-new",
    "race-grow", "race-create", "auto-delete", "auto-many", "old-many", "old-race", "grow-huge", "honest",
    "auto-race", "streams",
)  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    return start_gateway(kafka, GatewayOptions(dict.fromkeys(CLIENTS, RATE)))


@pytest.fixture
def broker(kafka: KafkaCluster) -> Iterator[WireClient]:
    """The broker itself, past the gateway; topics of these tests are gone at the end."""
    with WireClient(kafka.brokers[1]) as client:
        yield client
        ours = [name for name in partitions(client) if name.startswith("attack-")]
        client.ask("DeleteTopics", 5, topic_names=ours, timeout_ms=30_000)
        eventually(lambda: not partitions(client).keys() & set(ours))


def partitions(client: WireClient) -> dict[str, int]:
    """All topics of the cluster, with their numbers of partitions."""
    topics = client.ask("Metadata", 12, topics=None, allow_auto_topic_creation=False).body.topics
    return {topic.name: len(topic.partitions) for topic in topics}


def total(client: WireClient, prefix: str) -> int:
    """How many partitions the topics with this prefix have."""
    return sum(count for name, count in partitions(client).items() if name.startswith(prefix))


def settled(broker: WireClient, canary: str) -> None:
    """What was asked of the controller before has been done, and the broker shows it."""
    make(broker, f"attack-canary-{canary}", 1)
    eventually(lambda: f"attack-canary-{canary}" in partitions(broker))


def topic(name: str, count: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": count, "replication_factor": 1, **more}


def make(client: WireClient, *wanted: Any, version: int = 7, timeout_ms: int = 30_000, **more: Any) -> Reply:
    """Ask for topics: name and count of one, or dictionaries."""
    topics = [topic(*wanted)] if isinstance(wanted[0], str) else list(wanted)
    return client.ask("CreateTopics", version, topics=topics, timeout_ms=timeout_ms, **more)


def grow(client: WireClient, name: str, count: int, version: int = 3) -> Reply:
    topics = [{"name": name, "count": count, "assignments": None}]
    return client.ask("CreatePartitions", version, topics=topics, timeout_ms=30_000, validate_only=False)


def codes(reply: Reply) -> dict[str, int]:
    body = reply.body
    results = next(getattr(body, field) for field in ("topics", "results", "responses") if hasattr(body, field))
    return {result.name: result.error_code for result in results}


def into_debt(gateway: GatewayProcess, client_id: str, over: int = 60) -> None:
    """Use up the burst, and so much more."""
    with WireClient(gateway.bootstrap, client_id=client_id) as client:
        assert set(codes(make(client, f"attack-{client_id}-debt", BURST + over)).values()) == {NONE}


# -- names that the broker takes out before it counts --------------------------------------------------


@pytest.mark.parametrize("version", [2, 7])
def test_k01_a_request_padded_beyond_the_brokers_bound_is_charged_as_asked(
    version: int, gateway: GatewayProcess, broker: WireClient
) -> None:
    client_id = f"padded-{version}"
    into_debt(gateway, client_id)
    passed = 0
    for number in range(3):
        with WireClient(gateway.bootstrap, client_id=client_id, timeout_s=1) as client:
            padded = [topic(f"attack-{client_id}-{number}", 30), topic("__cluster_metadata", 10_001)]
            client.send("CreateTopics", version, topics=padded, timeout_ms=30_000)
            try:
                passed += codes(client.receive())[f"attack-{client_id}-{number}"] == NONE
            except TimeoutError:
                assert version < 6, "only a client that does not know error 89 is held"
    settled(broker, client_id)
    assert (passed, total(broker, f"attack-{client_id}-")) == (0, BURST + 60)


def test_a_topic_that_stands_twice_and_one_too_many_do_not_make_the_others_free(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    into_debt(gateway, "twice")
    into_debt(gateway, "too-many")
    with WireClient(gateway.bootstrap, client_id="twice") as client:
        reply = make(client, topic("attack-twice-x", 9_999), topic("attack-twice-x", 1), topic("attack-twice-y", 5))
        assert codes(reply) == {"attack-twice-x": INVALID_REQUEST, "attack-twice-y": THROTTLED}
    with WireClient(gateway.bootstrap, client_id="too-many") as client:
        huge = topic("attack-too-many-x", 10_001)
        assigned = {
            **topic(
                "attack-too-many-z", -1, assignments=[{"partition_index": i, "broker_ids": [1]} for i in range(40)]
            ),
            "replication_factor": -1,
        }
        reply = make(client, huge, topic("attack-too-many-y", 5), assigned)
        assert set(codes(reply).values()) == {THROTTLED}
    settled(broker, "twice")
    assert total(broker, "attack-twice-") == total(broker, "attack-too-many-") == BURST + 60


def test_in_debt_a_topic_neither_grows_nor_goes_whatever_it_is_called_by(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    name = "attack-grow-huge"
    new_id = make(broker, name, 1).body.topics[0].topic_id
    eventually(lambda: name in partitions(broker))
    into_debt(gateway, "grow-huge")
    with WireClient(gateway.bootstrap, client_id="grow-huge") as client:
        assert codes(grow(client, name, 10_500)) == {name: THROTTLED}
    with WireClient(gateway.bootstrap, client_id="grow-huge") as client:
        doomed = [{"name": None, "topic_id": new_id}]
        assert codes(client.ask("DeleteTopics", 6, topics=doomed, timeout_ms=30_000)) == {name: THROTTLED}
    settled(broker, "grow-huge")
    assert partitions(broker)[name] == 1


# -- topics that the broker refuses -----------------------------------------------------------------


def test_an_old_client_does_not_wait_for_permits_that_it_got_back(gateway: GatewayProcess) -> None:
    with WireClient(gateway.bootstrap, client_id="refused-old") as client:
        wrong = topic("attack-refused-old", 40, configs=[{"name": "no.such.config", "value": "1"}])
        reply = make(client, wrong, version=5)
        assert reply.body.throttle_time_ms == 0
        assert client.ask("ApiVersions", 2).elapsed_ms < 20_000  # the debt would be 29 s
    assert (gateway.metric(TOKENS, client_id="refused-old") or 0) > BURST - 1


def test_topics_behind_one_that_the_broker_refuses_may_be_asked_for_again_at_once(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    with WireClient(gateway.bootstrap, client_id="refused-new") as client:
        wrong = {**topic("attack-refused-new-x", 40), "replication_factor": 3}
        reply = make(client, wrong, topic("attack-refused-new-y", 5))
        assert codes(reply) == {"attack-refused-new-x": REPLICATION_FACTOR, "attack-refused-new-y": THROTTLED}
        assert reply.body.throttle_time_ms == 0
        again = make(client, "attack-refused-new-y", 5)
        assert (codes(again), again.elapsed_ms < 20_000) == ({"attack-refused-new-y": NONE}, True)


# -- several connections -------------------------------------------------------------------------------------


def test_topics_that_come_into_being_under_waiting_requests_do_not_grow_for_free(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    """One connection creates small topics while others ask for many partitions of them, not yet there."""
    width, many = 12, 100
    names = [f"attack-race-grow-{i}" for i in range(width)]
    with ExitStack() as stack, ThreadPoolExecutor(width + 1) as pool:
        clients = [
            stack.enter_context(WireClient(gateway.bootstrap, client_id="race-grow")) for _ in range(width + 1)
        ]
        # The first takes the bucket to zero and no further, so that all twelve are created.
        creating = pool.submit(make, clients[0], *(topic(name, 1) for name in names))
        growing = []
        for client, name in zip(clients[1:], names, strict=True):
            growing.append(pool.submit(grow, client, name, many))
            time.sleep(0.001)
        for each in [creating, *growing]:
            each.result()
    settled(broker, "race-grow")
    # One growth may be the request that makes the debt.
    assert total(broker, "attack-race-grow-") <= BURST + RATE + many


def test_topics_that_are_deleted_under_waiting_requests_are_not_created_again_for_free(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    width, many = 8, 100
    names = [f"attack-race-create-{i}" for i in range(width)]
    make(broker, *(topic(name, 1) for name in names))
    eventually(lambda: set(names) <= partitions(broker).keys())
    with ExitStack() as stack, ThreadPoolExecutor(width + 1) as pool:
        clients = [
            stack.enter_context(WireClient(gateway.bootstrap, client_id="race-create")) for _ in range(width + 1)
        ]
        doomed = [{"name": name} for name in names]
        deleting = pool.submit(clients[0].ask, "DeleteTopics", 6, topics=doomed, timeout_ms=30_000)
        time.sleep(0.004)
        creating = [pool.submit(make, client, name, many) for client, name in zip(clients[1:], names, strict=True)]
        for each in [deleting, *creating]:
            each.result()
    settled(broker, "race-create")
    assert total(broker, "attack-race-create-") <= BURST + many


def test_old_clients_on_new_connections_do_not_outrun_the_bucket(gateway: GatewayProcess, broker: WireClient) -> None:
    """A client that does not know error 89 is never refused: beyond one window of debt it waits."""
    started = time.monotonic()
    for number in range(12):
        with WireClient(gateway.bootstrap, client_id="old-many", timeout_s=0.5) as client:
            client.send("CreateTopics", 4, topics=[topic(f"attack-old-many-{number}", 15)], timeout_ms=30_000)
            with suppress(TimeoutError):
                client.receive()
    settled(broker, "old-many")
    created = total(broker, "attack-old-many-")
    elapsed_s = time.monotonic() - started
    assert 15 <= created <= 2 * BURST + RATE * elapsed_s + 15


def test_old_clients_on_many_connections_at_once_do_not_race_one_debt(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    width, many = 8, 120
    started = time.monotonic()
    with ExitStack() as stack:
        clients = [
            stack.enter_context(WireClient(gateway.bootstrap, client_id="old-race", timeout_s=1))
            for _ in range(width)
        ]
        for number, client in enumerate(clients):
            client.send("CreateTopics", 4, topics=[topic(f"attack-old-race-{number}", many)], timeout_ms=30_000)
        for client in clients:
            with suppress(TimeoutError):
                client.receive()
            client.close()
    settled(broker, "old-race")
    created = total(broker, "attack-old-race-")
    elapsed_s = time.monotonic() - started
    assert many <= created <= 2 * BURST + RATE * elapsed_s + many


# -- automatic creation --------------------------------------------------------------------------------------


def auto(client: WireClient, *names: str) -> None:
    """Ask for these topics, and have them created."""
    topics = [{"name": name} for name in names]
    client.ask("Metadata", 12, topics=topics, allow_auto_topic_creation=True)


def test_creating_by_metadata_and_deleting_in_turns_costs_each_time(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    """The deletions are somebody else's, so all of this client's permits go into creations."""
    name = "attack-auto-delete"
    seen = 0
    started = time.monotonic()
    with (
        WireClient(gateway.bootstrap, client_id="auto-delete") as client,
        WireClient(gateway.bootstrap, client_id="unlimited") as other,
    ):
        for number in range(3 * BURST):
            auto(client, name)
            deadline = time.monotonic() + (60 if number < BURST else 0.3)
            while name not in partitions(broker) and time.monotonic() < deadline:
                time.sleep(0.01)
            gone = codes(other.ask("DeleteTopics", 6, topics=[{"name": name}], timeout_ms=30_000))
            seen += gone[name] == NONE
            # A broker that has not heard of it would not create the next one.
            eventually(lambda: name not in partitions(broker))
    elapsed_s = time.monotonic() - started
    assert BURST <= seen <= BURST + RATE * elapsed_s + 1


def test_one_question_for_a_thousand_topics_creates_as_many_as_there_are_tokens(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    started = time.monotonic()
    with WireClient(gateway.bootstrap, client_id="auto-many") as client:
        auto(client, *(f"attack-auto-many-{i}" for i in range(1_000)))
        auto(client, *(f"attack-auto-many-{i}" for i in range(1_000)))
    settled(broker, "auto-many")
    assert BURST <= total(broker, "attack-auto-many-") <= BURST + RATE * (time.monotonic() - started) + 1


def test_topics_deleted_behind_the_question_are_not_created_again_unpaid(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    """One new name is paid for in each request; what another connection deletes meanwhile is not to come back."""
    names = [f"attack-auto-race-{i}" for i in range(40)]
    make(broker, *(topic(name, 1) for name in names))
    eventually(lambda: set(names) <= partitions(broker).keys())
    started = time.monotonic()
    with ExitStack() as stack:
        clients = [
            stack.enter_context(WireClient(gateway.bootstrap, client_id="auto-race")) for _ in range(BURST - 1)
        ]
        for number, client in enumerate(clients):
            wanted = [{"name": name} for name in (*names, f"attack-auto-race-new-{number}")]
            client.send("Metadata", 12, topics=wanted, allow_auto_topic_creation=True)
            if number == 2:
                broker.send("DeleteTopics", 6, topics=[{"name": name} for name in names], timeout_ms=30_000)
        for client in clients:
            client.receive()
        broker.receive()
    settled(broker, "auto-race")
    assert 1 <= total(broker, "attack-auto-race-") <= BURST + RATE * (time.monotonic() - started) + 1


def test_streams_groups_on_many_connections_at_once_create_no_more_than_their_client_pays_for(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    """As clients that are too old for error 89: beyond one window of debt a join waits."""
    width, many = 8, 15
    make(broker, "attack-streams-source", many)
    eventually(lambda: "attack-streams-source" in partitions(broker))

    def join(client: WireClient, group: str, **more: Any) -> int:
        parts = subtopology("attack-streams-source", changelogs=[f"attack-streams-{group}-changelog"])
        client.send_bytes(streams_heartbeat(f"attack-{group}", parts, client_id="streams", **more))
        return int(unpack_from(">h", client.receive_frame(), 13)[0])

    # A coordinator has to be there, and to know of the source, before a join creates anything.
    for number in range(width):
        eventually(lambda group=f"attack-{number}": _coordinator_found(broker, group))
    eventually(lambda: join(broker, "canary") == NONE and "attack-streams-canary-changelog" in partitions(broker))
    before, started = total(broker, "attack-streams-"), time.monotonic()
    with ExitStack() as stack:
        clients = [
            stack.enter_context(WireClient(gateway.bootstrap, client_id="streams", timeout_s=5)) for _ in range(width)
        ]
        for number, client in enumerate(clients):
            parts = subtopology("attack-streams-source", changelogs=[f"attack-streams-{number}-changelog"])
            client.send_bytes(streams_heartbeat(f"attack-{number}", parts, client_id="streams"))
        for client in clients:
            with suppress(TimeoutError):
                client.receive_frame()
            client.close()
    settled(broker, "streams")
    created, left = total(broker, "attack-streams-") - before, gateway.metric(TOKENS, client_id="streams")
    elapsed_s = time.monotonic() - started
    assert many <= created <= 2 * BURST + RATE * elapsed_s + many
    assert left is not None
    assert left <= BURST - created + RATE * elapsed_s


def _coordinator_found(client: WireClient, group: str) -> bool:
    answer = client.ask("FindCoordinator", 4, key_type=0, coordinator_keys=[group])
    return bool(answer.body.coordinators[0].error_code == NONE)


# -- requests whose end is not known -------------------------------------------------------------------------


def test_permits_of_a_request_that_timed_out_come_back_once_it_is_sure_that_nothing_was_done(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    started = time.monotonic()
    with WireClient(gateway.bootstrap, client_id="retry") as client:
        late = make(client, "attack-retry", 8, timeout_ms=0)
        assert codes(late) == {"attack-retry": 7}
        # Not given back yet: the cluster may show a world of before.
        tokens = gateway.metric(TOKENS, client_id="retry") or 0
        assert tokens <= BURST - 8 + RATE * (time.monotonic() - started)
        time.sleep(2.5)
        assert codes(make(client, "attack-retry-other", 1)) == {"attack-retry-other": NONE}
    assert (gateway.metric(TOKENS, client_id="retry") or 0) >= BURST - 1.5


# -- an honest client beside them ----------------------------------------------------------------------------


def test_what_a_broker_provably_refuses_costs_an_honest_client_nothing(
    gateway: GatewayProcess, broker: WireClient
) -> None:
    make(broker, "attack-honest-there", 3)
    eventually(lambda: "attack-honest-there" in partitions(broker))
    with WireClient(gateway.bootstrap, client_id="honest") as client:
        for version in range(2, 8):
            there = topic("attack-honest-there", 500)
            new = topic(f"attack-honest-{version}", 1)
            bad = topic("attack honest", 500)
            twice = topic("attack-honest-twice", 500)
            reply = make(client, there, bad, twice, twice, new, version=version)
            assert codes(reply) == {
                "attack-honest-there": EXISTS,
                "attack honest": 17,
                "attack-honest-twice": INVALID_REQUEST,
                f"attack-honest-{version}": NONE,
            }
            assert reply.body.throttle_time_ms == 0
        for version in (0, 2, 3):
            assert codes(grow(client, "attack-honest-there", 2, version)) == {
                "attack-honest-there": INVALID_PARTITIONS
            }
            assert codes(grow(client, "attack-honest-absent", 900, version)) == {"attack-honest-absent": UNKNOWN}
    assert (gateway.metric(TOKENS, client_id="honest") or 0) >= BURST - 6


# -- names that the client may create and not see ------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[SecureKafka]:
    """A broker with four partitions to a topic, on which alice may create topics and see none of them."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:gateway",
        "num.partitions": 4,
    }
    with SecureKafka(host="127.77.0.4", properties=properties) as secure:
        secure.allow("alice", AclOperation.CREATE, ResourceType.TOPIC, "attack-", ResourcePatternType.PREFIXED)
        yield secure


def test_topics_that_the_client_may_create_and_not_see_are_charged(
    guarded: SecureKafka, tap: Tap, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = GatewayOptions(
        quotas={"unseen": RATE}, upstream=own_user(guarded), listener='security_protocol = "SASL_PLAINTEXT"'
    )
    directory = tmp_path_factory.mktemp("unseen")
    gateway = GatewayProcess(directory, guarded.addresses("SASL").values(), tap, options)
    gateway.start()
    try:
        with (
            WireClient(gateway.bootstrap, client_id="unseen") as client,
            WireClient(guarded.cluster.brokers[1]) as broker,
        ):
            assert log_in(client, "PLAIN", "alice", PASSWORDS["alice"]).error_code == 0
            started = time.monotonic()
            for number in range(8):
                make(client, f"attack-unseen-{number}", -1, version=7 if number else 5)
                if number == 1:
                    tokens = gateway.metric(TOKENS, client_id="unseen")
                    assert tokens is not None
                    assert tokens <= BURST - 2 * 4 + RATE * (time.monotonic() - started)
            elapsed_s = time.monotonic() - started
            make(broker, "attack-canary-unseen", 1)
            eventually(lambda: "attack-canary-unseen" in partitions(broker))
            assert total(broker, "attack-unseen-") <= BURST + RATE * elapsed_s + 4
    finally:
        gateway.stop()
