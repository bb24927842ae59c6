"""A topic that can't be read on is read from its beginning again, and meanwhile that shows."""

import asyncio

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from gateway.quota_admin.store import topic_reader
from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.topic_store import TopicStore
from testkit.quota_stores import ALICE, APP, FETCH, PRODUCE, Seen, alteration, opened
from testkit.quota_topic import QuotaTopic, until

ALICES_QUOTA = b'{"quota":"user=alice","key":"producer_byte_rate"}'
APPS_QUOTA = b'{"quota":"client-id=app","key":"consumer_byte_rate"}'


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> QuotaTopic:
    monkeypatch.setattr(topic_reader, "_AGAIN_S", 0.02)
    monkeypatch.setattr(topic_reader, "_POLL_S", 0.02)
    return QuotaTopic(monkeypatch)


def followed(store: TopicStore) -> bool:
    return store.stale is None


async def test_record_whose_headers_cannot_be_read_is_bad_and_the_next_one_counts(topic: QuotaTopic) -> None:
    async with opened(store := topic.store()) as seen:
        topic.append(ALICES_QUOTA, b'{"format":1,"value":5}').unreadable = True
        topic.append(ALICES_QUOTA, b'{"format":1,"value":7}')
        await until(lambda: seen.values)
        assert seen.values == {(ALICE, PRODUCE): 7}
        assert store.bad_records == 1
        assert followed(store)


async def test_a_group_that_it_may_not_use_is_no_error_since_it_uses_none(topic: QuotaTopic) -> None:
    topic.first_fault = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")
    with capture_logs() as logs:
        async with opened(store := topic.store()) as seen:
            topic.append(ALICES_QUOTA, b'{"format":1,"value":7}')
            await until(lambda: seen.values)
            assert followed(store)
    assert [line["event"] for line in logs if line["log_level"] == "error"] == []


async def test_an_idle_producer_writes_its_log_at_once_and_not_at_the_end(topic: QuotaTopic) -> None:
    async with opened(store := topic.store()):
        await store.write(alteration((ALICE, PRODUCE, 1.0)))
        before = topic.producer_polls
        await until(lambda: topic.producer_polls > before + 2)


@pytest.mark.parametrize("fault", [
    KafkaError(KafkaError._AUTO_OFFSET_RESET, "the position is past the end"),
    KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic"), RuntimeError("a bug"),
])  # fmt: skip
async def test_topic_that_lost_its_last_records_is_read_again(
    topic: QuotaTopic, fault: KafkaError | Exception
) -> None:
    async with opened(store := topic.store()) as seen:
        await store.write(alteration((ALICE, PRODUCE, 1.0), (APP, FETCH, 1.0)))
        kept = len(topic.log)
        await store.write(alteration((ALICE, PRODUCE, 2.0), (APP, PRODUCE, 2.0)))
        assert len(seen.values) == 3
        topic.all_held = True
        lost = topic.log[kept:]
        del topic.log[kept:]
        topic.append(ALICES_QUOTA, b'{"format":1,"value":9}')
        topic.consumers[0].fault = fault
        await until(lambda: not followed(store))
        assert store.stale is not None
        assert store.stale.startswith("quota topic quotas can't be followed: ")
        # What was in force stays so until the topic was read to its end, and nothing is built on it.
        with pytest.raises(StoreError, match="can't be followed"):
            await store.write(alteration((ALICE, PRODUCE, 3.0)))
        topic.all_held = False
        # And then too, for as long as something of it would be lost.
        await until(lambda: "2 of the quotas in force are not the same in it" in (store.stale or ""))
        assert len(seen.values) == 3
        with pytest.raises(StoreError, match="not the same in it"):
            await store.write(alteration((ALICE, PRODUCE, 3.0)))
        for message in lost:
            topic.append(message.key() or b"", message.value(), dict(message.headers() or ()))
        await until(lambda: followed(store))
        assert len(seen.values) == 3
        await store.write(alteration((ALICE, PRODUCE, 4.0)))
        assert seen.values[ALICE, PRODUCE] == 4


async def test_one_broker_that_does_not_know_a_new_topic_yet_is_no_error(topic: QuotaTopic) -> None:
    topic.not_known_yet = 1
    with capture_logs() as logs:
        async with opened(topic.store()):
            pass
    assert topic.not_known_yet == 0
    assert logs == []


async def test_l01_topic_that_was_made_anew_takes_no_quota_away_until_it_has_them_all(topic: QuotaTopic) -> None:
    async with opened(store := topic.store()) as seen:
        await store.write(alteration((ALICE, PRODUCE, 1.0), (APP, FETCH, 1.0)))
        topic.log.clear()
        # librdkafka says nothing.
        topic.topic_id = None
        await until(lambda: "there is no such topic" in (store.stale or ""))
        topic.topic_id = "two"
        await until(lambda: "is empty, and there were 2 quotas in it" in (store.stale or ""))
        assert len(seen.values) == 2
        assert len(await store.history(10)) == 2
        # Such as another gateway that was started anew, and into which they were imported.
        topic.append(ALICES_QUOTA, b'{"format":1,"value":1}')
        await until(lambda: "made again; 1 of the quotas in force" in (store.stale or ""))
        assert len(seen.values) == 2
        topic.append(APPS_QUOTA, b'{"format":1,"value":1}')
        await until(lambda: followed(store))
        assert seen.values == {(ALICE, PRODUCE): 1, (APP, FETCH): 1}
        # From now on it is this one that is followed.
        topic.append(APPS_QUOTA, None)
        await until(lambda: len(seen.values) == 1)


@pytest.mark.parametrize("topic_id", ["one", "two"])
async def test_l01_topic_that_is_another_or_shorter_is_noticed_though_nothing_is_said(
    topic: QuotaTopic, topic_id: str
) -> None:
    async with opened(store := topic.store()) as seen:
        await store.write(alteration((ALICE, PRODUCE, 1.0), (APP, FETCH, 1.0)))
        log = list(topic.log)
        topic.topic_id = topic_id
        del topic.log[1:]
        await until(lambda: not followed(store))
        assert len(seen.values) == 2
        topic.log.extend(log[1:])
        await until(lambda: followed(store))
        assert len(seen.values) == 2


@pytest.mark.slow
async def test_l01_what_was_written_and_does_not_come_back_is_looked_for_from_the_beginning(
    topic: QuotaTopic,
) -> None:
    async with opened(store := topic.store(write_timeout_ms=200)):
        topic.consumers[0].held = True
        with pytest.raises(StoreError, match="takes effect later"):
            await store.write(alteration((ALICE, PRODUCE, 1.0)))
        await until(lambda: not followed(store))
        await until(lambda: followed(store))
        assert store.log.value_of((ALICE, PRODUCE)) == 1.0


async def test_l09_reader_that_gets_nothing_though_there_is_something_begins_again(
    topic: QuotaTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "_STUCK_S", 0.2)
    async with opened(store := topic.store()) as seen:
        await store.write(alteration((ALICE, PRODUCE, 1.0)))
        topic.consumers[0].held = True
        topic.append(APPS_QUOTA, b'{"format":1,"value":1}')
        await until(lambda: "nothing comes after 2, though there is more up to 3" in (store.stale or ""))
        await until(lambda: followed(store))
        assert seen.values == {(ALICE, PRODUCE): 1, (APP, FETCH): 1}


@pytest.mark.slow
async def test_l09_transaction_of_another_that_holds_up_the_topic_makes_no_gateway_unready(
    topic: QuotaTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "_STUCK_S", 0.2)
    async with opened(store := topic.store(write_timeout_ms=100)) as seen:
        topic.readable = 0
        topic.append(APPS_QUOTA, b'{"format":1,"value":1}')
        with pytest.raises(StoreError, match="takes effect later"):
            await store.write(alteration((ALICE, PRODUCE, 1.0)))
        await asyncio.sleep(0.5)
        assert followed(store)
        topic.readable = 1 << 40
        await until(lambda: len(seen.values) == 2)
        assert followed(store)
        assert len(topic.consumers) == 1


async def test_l10_a_gateway_that_was_away_for_long_reads_from_the_beginning(topic: QuotaTopic) -> None:
    topic.tombstones_s = 0.4
    topic.append(ALICES_QUOTA, b'{"format":1,"value":5}')
    async with opened(store := topic.store()) as seen:
        await until(lambda: (ALICE, PRODUCE) in seen.values)
        # Another removes it while this one sees nothing, and the topic forgets that it ever was.
        topic.unreachable = topic.all_held = True
        topic.append(ALICES_QUOTA, None)
        topic.append(APPS_QUOTA, b'{"format":1,"value":1}')
        topic.compacted = {0, 1}
        await until(lambda: not followed(store))
        topic.unreachable = topic.all_held = False
        await until(lambda: followed(store))
        assert seen.values == {(APP, FETCH): 1}


async def test_fault_during_the_first_read_only_delays_the_start(topic: QuotaTopic) -> None:
    topic.append(ALICES_QUOTA, b'{"format":1,"value":5}')
    topic.first_fault = RuntimeError("a bug")
    async with opened(store := topic.store()) as seen:
        assert topic.consumers[0].fault is None
        await until(lambda: followed(store))
        assert seen.values == {(ALICE, PRODUCE): 5}


async def test_topic_that_may_not_be_read_names_the_rights_and_is_read_once_it_may_be(topic: QuotaTopic) -> None:
    topic.first_fault = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "forbidden")
    topic.append(ALICES_QUOTA, b'{"format":1,"value":5}')
    store = topic.store()
    seen = Seen()
    stale: list[str] = []

    async def lost(why: str) -> None:
        await _begin_again(why)
        stale.append(store.stale or "")

    _begin_again, store._begin_again = store._begin_again, lost  # type: ignore[method-assign]
    await store.open(seen)
    rights = "the gateway's user needs the rights DESCRIBE, READ and WRITE on it"
    assert stale == [f"quota topic quotas can't be followed: forbidden; {rights}"]
    assert seen.values == {(ALICE, PRODUCE): 5}
    assert followed(store)
    await store.close()
