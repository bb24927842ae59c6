"""A topic that can't be read on is read from its beginning again, and meanwhile that shows."""

import pytest
from confluent_kafka import KafkaError

from gateway.quota_admin.store import topic_reader
from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.topic_store import TopicStore
from testkit.quota_stores import ALICE, APP, FETCH, PRODUCE, alteration, opened
from testkit.quota_topic import QuotaTopic, until

ALICES_QUOTA = b'{"quota":"user=alice","key":"producer_byte_rate"}'


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
        consumer = topic.consumers[0]
        consumer.held = True
        del topic.log[kept:]
        topic.append(ALICES_QUOTA, b'{"format":1,"value":9}')
        consumer.fault = fault
        await until(lambda: not followed(store))
        assert store.stale is not None
        assert store.stale.startswith("quota topic quotas can't be followed: ")
        # What was in force stays so until the topic was read to its end, and nothing is built on it.
        assert len(seen.values) == 3
        with pytest.raises(StoreError, match="can't be followed"):
            await store.write(alteration((ALICE, PRODUCE, 3.0)))
        consumer.held = False
        await until(lambda: followed(store))
        assert seen.values == {(ALICE, PRODUCE): 9, (APP, FETCH): 1}
        assert store.version == kept + 1
        await store.write(alteration((ALICE, PRODUCE, 4.0)))
        assert seen.values[ALICE, PRODUCE] == 4


async def test_topic_that_was_made_anew_takes_no_quota_away_until_somebody_writes_to_it(topic: QuotaTopic) -> None:
    async with opened(store := topic.store()) as seen:
        await store.write(alteration((ALICE, PRODUCE, 1.0), (APP, FETCH, 1.0)))
        topic.log.clear()
        topic.consumers[0].fault = KafkaError(KafkaError._AUTO_OFFSET_RESET, "the position is past the end")
        await until(lambda: "is empty, and there were 2 quotas in it" in (store.stale or ""))
        assert len(seen.values) == 2
        assert len(await store.history(10)) == 2
        # Such as another gateway that was started anew, and into which they were imported.
        topic.append(ALICES_QUOTA, b'{"format":1,"value":1}')
        await until(lambda: followed(store))
        assert seen.values == {(ALICE, PRODUCE): 1}


async def test_fault_during_the_first_read_only_delays_the_start(topic: QuotaTopic) -> None:
    topic.append(ALICES_QUOTA, b'{"format":1,"value":5}')
    topic.first_fault = RuntimeError("a bug")
    async with opened(store := topic.store()) as seen:
        assert topic.consumers[0].fault is None
        await until(lambda: followed(store))
        assert seen.values == {(ALICE, PRODUCE): 5}
