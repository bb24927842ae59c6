"""Quotas of several gateways in a topic of a real cluster (G)."""

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from structlog.testing import capture_logs

from embedded_kafka.kafka import KafkaCluster
from gateway.cli.main import main
from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.topic_log import FORMAT
from gateway.quota_admin.store.topic_store import TopicStore, TopicStoreSettings
from gateway.quota_admin.store.topic_writer import transactional_id
from quotas.entities import QuotaEntity, QuotaKey
from testkit.faults.effects import Stopped
from testkit.quota_stores import ALICE, APP, AT_MS, FETCH, PRODUCE, Seen, alteration, opened
from testkit.quota_topic import until
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration


@pytest.fixture
def topic() -> str:
    """A name that no one has used."""
    return f"__quotas_{uuid.uuid4().hex[:12]}"


def store_on(
    cluster: KafkaCluster,
    topic: str,
    *,
    max_history: int = 1_000,
    write_timeout_ms: int = 20_000,
    gateway: str | None = None,
    **client: object,
) -> TopicStore:
    """One that is not open yet; `client` are settings of librdkafka, with underscores for dots."""
    settings = TopicStoreSettings(
        topic=topic,
        replication_factor=None,
        max_quotas=10_000,
        max_history=max_history,
        write_timeout_ms=write_timeout_ms,
        client={"bootstrap.servers": cluster.bootstrap, **{k.replace("_", "."): v for k, v in client.items()}},
        gateway=gateway,
    )
    return TopicStore(settings, now_ms=lambda: AT_MS)


async def same(*seen: Seen, within_s: float = 60.0) -> float:
    """Wait until all say the same; how long that took."""
    began = time.monotonic()
    while any(each.values != seen[0].values for each in seen):
        assert time.monotonic() - began < within_s, [each.values for each in seen]
        await asyncio.sleep(0.005)
    return time.monotonic() - began


async def test_g07_other_gateway_has_a_change_within_a_second_and_a_later_one_at_its_start(
    kafka3: KafkaCluster, topic: str
) -> None:
    async with opened(one := store_on(kafka3, topic)) as first, opened(two := store_on(kafka3, topic)) as second:
        for value in range(1, 6):
            await one.write(alteration((ALICE, PRODUCE, value), (APP, FETCH, 2.0 if value % 2 else None)))
            await same(first, second)
        assert second.values == {(ALICE, PRODUCE): 5, (APP, FETCH): 2.0}
        assert one.version == two.version
        assert await one.history(100) == await two.history(100)
        # Each alteration was reported as a whole.
        assert [len(changes) for changes, _ in second.calls if changes] == [2] * 5
        async with opened(three := store_on(kafka3, topic)) as third:
            assert third.values == first.values
            assert len(third.calls) == 1
            assert three.version == one.version
            assert await three.history(100) == await one.history(100)


async def test_g16_change_waits_for_brokers_that_stand_still_for_longer_than_librdkafka(
    kafka: KafkaCluster, topic: str
) -> None:
    async with opened(store := store_on(kafka, topic, write_timeout_ms=120_000)) as seen:
        await store.write(alteration((ALICE, PRODUCE, 1)))
        # Sent before all threads of the broker have stopped, the change may be acknowledged, and nothing fails.
        with Stopped([kafka.pid(1)]), capture_logs() as logs:
            task = asyncio.create_task(store.write(alteration((ALICE, PRODUCE, 2))))
            await until(lambda: [line for line in logs if line["event"] == "quota_store_transaction_failed"])
            assert not task.done()
        await task
        assert seen.values == {(ALICE, PRODUCE): 2}
        assert [entry.new for entry in await store.history(10)] == [2, 1]


async def test_g06_two_gateways_that_alter_at_once_lose_nothing_and_agree(kafka3: KafkaCluster, topic: str) -> None:
    # All writes begin at once, and the last of them waits for all others.
    one, two = (store_on(kafka3, topic, write_timeout_ms=120_000) for _ in range(2))
    async with opened(one) as first, opened(two) as second:
        stores = {"one": one, "two": two}
        await asyncio.gather(
            *(
                store.write(
                    alteration(
                        (ALICE, PRODUCE, 1 + at * 2 + (name == "two")), (QuotaEntity(user=f"{name}-{at}"), FETCH, 1.0)
                    )
                )
                for at in range(25)
                for name, store in stores.items()
            )
        )
        await same(first, second)
        names = {entity.user for entity, key in first.values if key == FETCH}
        assert names == {f"{name}-{at}" for at in range(25) for name in stores}
        # Each ordered its own, so the last word of one of them stands.
        assert first.values[ALICE, PRODUCE] in (49, 50)
        async with opened(store_on(kafka3, topic)) as late:
            assert late.values == first.values


@pytest.mark.campaign
async def test_g01_broker_killed_while_quotas_are_written_leaves_whole_alterations_and_no_doubt(
    kafka3: KafkaCluster, topic: str
) -> None:
    made: list[str] = []
    refused: list[str] = []
    doubtful: list[str] = []
    async with opened(one := store_on(kafka3, topic)) as first, opened(two := store_on(kafka3, topic)) as second:
        await one.write(alteration((ALICE, PRODUCE, 1)))
        done = asyncio.Event()

        async def write(store: TopicStore, name: str) -> None:
            at = 0
            while not done.is_set() or at < 3:
                at += 1
                # Both or none.
                pair = [(QuotaEntity(user=f"{name}-{at}"), key, 1.0) for key in (PRODUCE, FETCH)]
                try:
                    await store.write(alteration(*pair))
                    made.append(f"{name}-{at}")
                except StoreError as exc:
                    (doubtful if "later" in str(exc) else refused).append(f"{name}-{at}")

        writers = [asyncio.create_task(write(one, "one")), asyncio.create_task(write(two, "two"))]
        await asyncio.sleep(0.5)
        leader = _leader(kafka3, topic)
        kafka3.kill_broker(leader)
        try:
            before = len(made)
            deadline = time.monotonic() + 60
            while len(made) < before + 20 and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert len(made) >= before + 20, "nothing was written after the leader had gone"
            done.set()
            await asyncio.gather(*writers)
            await same(first, second)
        finally:
            await asyncio.to_thread(kafka3.start_broker, leader)
        async with opened(store_on(kafka3, topic)) as late:
            assert late.values == first.values
        have = {key: {entity.user for entity, of in first.values if of == key} for key in (PRODUCE, FETCH)}
        whole = have[FETCH]
        assert have[PRODUCE] - {"alice"} == whole
        assert set(made) <= whole
        assert not whole & set(refused)
        assert whole <= set(made) | set(doubtful)


def _leader(cluster: KafkaCluster, topic: str) -> int:
    known = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, timeout=10)
    return int(known.topics[topic].partitions[0].leader)


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaCluster]:
    """One broker that a test may take away."""
    with KafkaCluster(data_dir=tmp_path / "kafka") as cluster:
        yield cluster


async def test_g16_without_brokers_alterations_are_refused_and_the_quotas_stay(
    own_kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store := store_on(own_kafka, "quotas")) as seen:
        # A new cluster creates its topic of transactions meanwhile.
        await store.write(alteration((ALICE, PRODUCE, 1.0)))
        own_kafka.kill_broker(1)
        monkeypatch.setattr(store, "_settings", replace(store._settings, write_timeout_ms=2_000))
        with pytest.raises(StoreError, match="may take effect later"):
            await store.write(alteration((ALICE, PRODUCE, 2.0)))
        assert seen.values == {(ALICE, PRODUCE): 1.0}
        assert len(await store.history(10)) == 1
        await asyncio.to_thread(own_kafka.start_broker, 1)
        deadline = time.monotonic() + 60
        while True:
            try:
                await store.write(alteration((ALICE, PRODUCE, 3.0)))
                break
            except StoreError:
                assert time.monotonic() < deadline
        assert seen.values == {(ALICE, PRODUCE): 3.0}
        assert [(entry.old, entry.new) for entry in await store.history(10)] == [(1.0, 3.0), (None, 1.0)]


# -- what else may be in the way -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("partitions", "settings", "text"),
    [
        (1, {"cleanup.policy": "delete"}, 'cleanup.policy "delete", so brokers would delete quotas'),
        (2, {"cleanup.policy": "compact"}, "has 2 partitions"),
    ],
)
async def test_g04_topic_that_would_lose_quotas_is_refused(
    kafka3: KafkaCluster, topic: str, partitions: int, settings: dict[str, str], text: str
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka3.bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values()
    made.result(20)
    store = store_on(kafka3, topic)
    with pytest.raises(StoreError, match=text):
        await store.open(Seen())
    await store.close()


async def test_g04_foreign_records_are_passed_over_and_newer_ones_are_refused(
    kafka3: KafkaCluster, topic: str
) -> None:
    def put(key: bytes, value: bytes) -> None:
        producer = Producer({"bootstrap.servers": kafka3.bootstrap})
        producer.produce(topic, key=key, value=value)
        assert producer.flush(20) == 0

    name = b'{"quota":"user=bob","key":"producer_byte_rate"}'
    async with opened(store := store_on(kafka3, topic)) as seen:
        await store.write(alteration((ALICE, PRODUCE, 1.0)))
        await asyncio.to_thread(put, b"\xff\x00", b"what is this")
        await store.write(alteration((APP, FETCH, 1.0)))
        assert seen.values == {(ALICE, PRODUCE): 1.0, (APP, FETCH): 1.0}
        assert store.log.bad_records == 1
        await asyncio.to_thread(put, name, json.dumps({"format": FORMAT + 1, "rate": "1/h"}).encode())
        deadline = time.monotonic() + 60
        while store.log.newer is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        # What is in force stays; to write beside something that is not understood would be to guess.
        assert len(seen.values) == 2
        with pytest.raises(StoreError, match="newer version"):
            await store.write(alteration((ALICE, PRODUCE, 2.0)))
    late = store_on(kafka3, topic)
    with pytest.raises(StoreError, match="newer version"):
        await late.open(Seen())
    await late.close()


async def test_l01_topic_that_is_deleted_and_made_again_is_noticed_and_takes_no_quota_away(
    own_kafka: KafkaCluster,
) -> None:
    refresh: dict[str, Any] = {"topic_metadata_refresh_interval_ms": 500}
    async with (
        opened(one := store_on(own_kafka, "quotas", **refresh)) as first,
        opened(two := store_on(own_kafka, "quotas", **refresh)) as second,
    ):
        await one.write(alteration(*((QuotaEntity(user=f"u{at}"), PRODUCE, 1.0) for at in range(20))))
        await same(first, second)
        values = dict(first.values)
        admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap})
        (deleted,) = admin.delete_topics(["quotas"]).values()
        await asyncio.to_thread(deleted.result, 20)
        began = time.monotonic()
        async with asyncio.timeout(60):
            while one.stale is None or two.stale is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.sleep(max(0, began + 3 - time.monotonic()))
        # A topic that the broker makes by itself, as a producer asks for it, would be one that deletes quotas.
        assert "quotas" not in (await asyncio.to_thread(admin.list_topics, timeout=20)).topics
        # As a gateway that is started again: it makes the topic, and that is its operator's word.
        async with opened(other := store_on(own_kafka, "quotas")) as anew:
            async with asyncio.timeout(60):
                while any("is empty, and there were 20" not in (each.stale or "") for each in (one, two)):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert first.values == second.values == values
            await other.write(alteration((APP, FETCH, 1.0)))
            async with asyncio.timeout(60):
                while any("20 of the quotas in force" not in (each.stale or "") for each in (one, two)):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            with pytest.raises(StoreError, match="made again"):
                await one.write(alteration((ALICE, PRODUCE, 2.0)))
            assert first.values == second.values == values
            # With all of them imported there the others follow again.
            await other.write(alteration(*((entity, key, 1.0) for entity, key in values)))
            await same(first, second, anew)
            assert len(anew.values) == 21
            await same(first, second, anew)
            assert (one.stale, two.stale) == (None, None)
            await two.write(alteration((APP, FETCH, 3.0)))
            await same(first, second, anew)


async def test_l09_restart_ends_what_a_killed_gateway_had_begun_which_holds_up_all_others(
    kafka3: KafkaCluster, topic: str
) -> None:
    async with opened(other := store_on(kafka3, topic)) as first:
        await other.write(alteration((APP, FETCH, 1.0)))
        killed = Producer({
            "bootstrap.servers": kafka3.bootstrap, "transactional.id": transactional_id(topic, "gw-1"),
            "transaction.timeout.ms": 600_000,
        })  # fmt: skip
        await asyncio.to_thread(killed.init_transactions, 20)
        killed.begin_transaction()
        killed.produce(topic, key=b"half of an alteration", partition=0)
        await asyncio.to_thread(killed.flush, 20)
        held_up = asyncio.create_task(other.write(alteration((APP, FETCH, 2.0))))
        await asyncio.sleep(1)
        assert not held_up.done()
        async with opened(store_on(kafka3, topic, gateway="gw-1")) as again:
            async with asyncio.timeout(60):
                await held_up
            await same(first, again)


async def test_l09_two_gateways_of_one_name_alter_nevertheless(kafka3: KafkaCluster, topic: str) -> None:
    async with (
        opened(one := store_on(kafka3, topic, gateway="gw-1")) as first,
        opened(two := store_on(kafka3, topic, gateway="gw-1")) as second,
    ):
        for value in (1.0, 2.0, 3.0):
            await one.write(alteration((ALICE, PRODUCE, value)))
            await two.write(alteration((APP, FETCH, value)))
        await same(first, second)
        assert set(first.values.values()) == {3.0}
        assert len(await one.history(100)) == 6


# -- gateways ------------------------------------------------------------------------------------------------
def _quotas(gateway: GatewayProcess) -> dict[str, Any]:
    status, text = gateway.http("/quotas")
    assert status == 200
    answer: dict[str, Any] = json.loads(text)
    return answer


def test_g07_two_gateways_share_what_is_imported_at_one(
    start_gateway: StartGateway, kafka3: KafkaCluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = GatewayOptions(tables=f'[quota_store]\nkind = "topic"\ntopic = "{topic}"\n')
    one, two = start_gateway(kafka3, options), start_gateway(kafka3, options)
    file = tmp_path / "quotas.yaml"
    file.write_text("quotas:\n- client_id: imported\n  controller_mutation_rate: 2.5\n")
    assert main(["quotas", "import", str(file), "--admin", str(one.admin)]) == 0
    eventually(lambda: len(_quotas(two)["quotas"]) == 1)
    (quota,) = _quotas(two)["quotas"]
    assert (quota["limit"], quota["source"], quota["quota"]) == (2.5, "store", QuotaKey.CONTROLLER_MUTATION_RATE)
    assert _quotas(one)["version"] == _quotas(two)["version"]
    capsys.readouterr()
    assert main(["quotas", "history", "--admin", str(two.admin)]) == 0
    assert "client-id=imported" in capsys.readouterr().out
