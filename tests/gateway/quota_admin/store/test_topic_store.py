"""How long alterations may take, and what is said of those that failed; over a topic without brokers."""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from gateway.quota_admin.store import topic_reader, topic_store
from gateway.quota_admin.store.interface import ChangedMeanwhileError, StoreError, slot_of
from gateway.quota_admin.store.topic_log import Written
from testkit.quota_stores import ALICE, APP, FETCH, PRODUCE, alteration, opened
from testkit.quota_topic import QuotaTopic, until


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> QuotaTopic:
    monkeypatch.setattr(topic_reader, "_POLL_S", 0.02)
    monkeypatch.setattr(topic_store, "_SETTLE_S", 0.2)
    monkeypatch.setattr(topic_store, "_RETRY_S", 0.1)
    return QuotaTopic(monkeypatch)


def timed_out(_commit: object = None) -> None:
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the commit timed out"))


# -- how long ------------------------------------------------------------------------------------------------
async def test_waiting_for_other_alterations_counts_as_time(
    topic: QuotaTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_store, "_RETRY_S", 60.0)
    others_failed = threading.Event()

    def slow(commit: Callable[[], None]) -> None:
        others_failed.wait(60)
        commit()

    topic.on_commit = slow
    async with opened(store := topic.store(write_timeout_ms=200)):
        first, *others = (
            asyncio.create_task(store.write(alteration((ALICE, PRODUCE, value)))) for value in range(1, 6)
        )
        failures = await asyncio.gather(*others, return_exceptions=True)
        others_failed.set()
        await first
        assert {str(each) for each in failures} == {"other alterations took too long; nothing was changed"}
        assert [entry.new for entry in await store.history(100)] == [1]


# -- what became of it ---------------------------------------------------------------------------------------
async def test_failed_commit_that_was_made_is_a_success_though_it_is_read_late(topic: QuotaTopic) -> None:
    def made_and_not_told(commit: Callable[[], None]) -> None:
        topic.consumers[0].held = True
        commit()
        timed_out()

    async with opened(store := topic.store()) as seen:
        topic.on_commit = made_and_not_told
        task = asyncio.create_task(store.write(alteration((ALICE, PRODUCE, 1))))
        await until(lambda: topic.log)
        # Longer than one would wait for what is said not to be there.
        await asyncio.sleep(0.5)
        assert not task.done()
        topic.consumers[0].held = False
        await task
        assert seen.values == {(ALICE, PRODUCE): 1}


async def test_failed_commit_that_was_read_is_a_success_though_brokers_say_no_more(topic: QuotaTopic) -> None:
    def made_and_read(commit: Callable[[], None]) -> None:
        commit()
        latest_s = time.monotonic() + 60
        while not seen.values and time.monotonic() < latest_s:
            time.sleep(0.01)
        topic.unreachable = True
        timed_out()

    async with opened(store := topic.store(write_timeout_ms=1_000)) as seen:
        topic.on_commit = made_and_read
        assert await store.write(alteration((ALICE, PRODUCE, 1))) == store.version
        assert seen.values == {(ALICE, PRODUCE): 1}


@pytest.mark.slow
async def test_failed_commit_that_was_not_made_is_told_as_such_once_end_was_read(
    topic: QuotaTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_store, "_RETRY_S", 60.0)
    async with opened(store := topic.store(write_timeout_ms=200)) as seen:
        topic.on_commit = timed_out
        with pytest.raises(StoreError, match="could not be written; nothing was changed: "):
            await store.write(alteration((ALICE, PRODUCE, 1)))
        assert seen.values == {}
        topic.on_commit = lambda commit: commit()
        await store.write(alteration((ALICE, PRODUCE, 2)))
        assert seen.values == {(ALICE, PRODUCE): 2}


@pytest.mark.parametrize("faults", [1, 2])
async def test_change_that_failed_by_a_fault_of_the_broker_is_written_once_more(
    topic: QuotaTopic, faults: int
) -> None:
    tries = []

    def faulty(commit: Callable[[], None]) -> None:
        tries.append(1)
        if len(tries) <= faults:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN, "EndTxn commit failed"))
        commit()

    async with opened(store := topic.store()) as seen:
        topic.on_commit = faulty
        if faults == 1:
            await store.write(alteration((ALICE, PRODUCE, 1)))
        else:
            with pytest.raises(StoreError, match=r"nothing was changed: .*EndTxn commit failed"):
                await store.write(alteration((ALICE, PRODUCE, 1)))
        assert (len(tries), seen.values) == (2, {(ALICE, PRODUCE): 1} if faults == 1 else {})


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT])
async def test_change_for_which_librdkafka_waited_in_vain_is_written_again_until_its_deadline(
    topic: QuotaTopic, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_store, "_SETTLE_S", 600.0)
    tries, deadlines = [], []

    def slow(commit: Callable[[], None]) -> None:
        tries.append(1)
        if len(tries) < 4:
            raise KafkaException(KafkaError(code, "Message timed out"))
        commit()

    async with opened(store := topic.store(write_timeout_ms=60_000)) as seen:
        write = store._writer.transaction

        def noted(name: str | None, records: Sequence[Written], deadline: float) -> None:
            deadlines.append(deadline)
            write(name, records, deadline)

        monkeypatch.setattr(store._writer, "transaction", noted)
        topic.on_commit = slow
        await store.write(alteration((ALICE, PRODUCE, 1)))
        assert (len(tries), seen.values) == (4, {(ALICE, PRODUCE): 1})
        assert len(set(deadlines)) == 1
        assert [entry.new for entry in await store.history(100)] == [1]


async def test_change_that_is_written_again_counts_with_what_others_have_changed_meanwhile(topic: QuotaTopic) -> None:
    async with opened(one := topic.store(write_timeout_ms=60_000)), opened(two := topic.store()):
        await one.write(alteration((ALICE, PRODUCE, 1)))
        await two.catch_up()
        loop = asyncio.get_running_loop()

        def slow_while_other_sets(value: float) -> None:
            def slow(_commit: Callable[[], None]) -> None:
                topic.on_commit = lambda commit: commit()
                others = two.write(alteration((ALICE, PRODUCE, value)))
                asyncio.run_coroutine_threadsafe(others, loop).result(60)
                raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, "Message timed out"))

            topic.on_commit = slow

        slow_while_other_sets(2)
        asked = alteration((ALICE, PRODUCE, 9))
        with pytest.raises(ChangedMeanwhileError):
            await one.write(replace(asked, expected={slot_of(asked.changes[0]): 1}))
        slow_while_other_sets(3)
        await one.write(alteration((ALICE, PRODUCE, 4)))
        assert [(entry.old, entry.new) for entry in await one.history(9)] == [(3, 4), (2, 3), (1, 2), (None, 1)]


async def test_change_that_is_written_again_is_completed_though_its_store_is_closing(topic: QuotaTopic) -> None:
    closing: list[concurrent.futures.Future[None]] = []
    loop = asyncio.get_running_loop()

    def slow(_commit: Callable[[], None]) -> None:
        topic.on_commit = lambda commit: commit()
        closing.append(asyncio.run_coroutine_threadsafe(store.close(), loop))
        raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, "Message timed out"))

    async with opened(store := topic.store(write_timeout_ms=60_000)) as seen:
        topic.on_commit = slow
        await store.write(alteration((ALICE, PRODUCE, 1)))
        await asyncio.wrap_future(closing[0])
        assert seen.values == {(ALICE, PRODUCE): 1}


async def test_change_that_was_made_in_spite_of_a_fault_of_the_broker_is_not_written_again(topic: QuotaTopic) -> None:
    tries = []

    def made_and_faulty(commit: Callable[[], None]) -> None:
        tries.append(1)
        commit()
        raise KafkaException(KafkaError(KafkaError.UNKNOWN, "EndTxn commit failed"))

    async with opened(store := topic.store()) as seen:
        topic.on_commit = made_and_faulty
        assert await store.write(alteration((ALICE, PRODUCE, 1))) == store.version
        assert (len(tries), seen.values) == (1, {(ALICE, PRODUCE): 1})
        assert [entry.new for entry in await store.history(100)] == [1]


async def test_why_the_brokers_refused_the_records_is_told(topic: QuotaTopic) -> None:
    async with opened(store := topic.store()):
        topic.refused = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
        with pytest.raises(StoreError, match=r"could not be written; nothing was changed: .*Message size too large"):
            await store.write(alteration((ALICE, PRODUCE, 1)))


async def test_change_that_comes_into_force_after_its_error_is_audited(topic: QuotaTopic) -> None:
    commits: list[Callable[[], None]] = []

    def unknown(commit: Callable[[], None]) -> None:
        commits.append(commit)
        timed_out()

    async with opened(store := topic.store(write_timeout_ms=1_000)) as seen:
        await store.write(alteration((APP, FETCH, 1)))
        topic.on_commit = unknown
        topic.unreachable = True
        with pytest.raises(StoreError, match="not confirmed; it may take effect later"):
            await store.write(alteration((ALICE, PRODUCE, 1), (APP, FETCH, 2), by="User:eve"))
        assert seen.values == {(APP, FETCH): 1}
        with capture_logs() as logs:
            commits[0]()
            await until(lambda: len(seen.values) == 2)
            await asyncio.sleep(0)
        told = [(line["principal"], line["entity"], line["old"], line["new"], line["late"]) for line in logs]
        assert told == [("User:eve", "user=alice", None, 1, True), ("User:eve", "client-id=app", 1, 2, True)]


@pytest.mark.slow
async def test_change_that_was_written_and_cannot_be_read_is_no_failure_for_sure(topic: QuotaTopic) -> None:
    async with opened(store := topic.store(write_timeout_ms=300)) as seen:
        topic.consumers[0].held = True
        with pytest.raises(StoreError, match="takes effect later, once it can"):
            await store.write(alteration((ALICE, PRODUCE, 1)))
        topic.consumers[0].held = False
        await until(lambda: seen.values == {(ALICE, PRODUCE): 1})


# -- what seems to change nothing ----------------------------------------------------------------------------
async def test_g06_value_that_another_gateway_has_just_replaced_is_set_again(topic: QuotaTopic) -> None:
    async with opened(one := topic.store()) as first, opened(two := topic.store()) as second:
        await one.write(alteration((ALICE, PRODUCE, 5), (APP, FETCH, 1)))
        await until(lambda: second.values == first.values)
        topic.consumers[1].held = True
        await one.write(alteration((ALICE, PRODUCE, 10)))
        with capture_logs() as logs:
            task = asyncio.create_task(two.write(alteration((ALICE, PRODUCE, 5), (APP, FETCH, 1))))
            await asyncio.sleep(0.1)
            assert not task.done()
            topic.consumers[1].held = False
            assert await task == two.version
        assert second.values[ALICE, PRODUCE] == 5
        await until(lambda: first.values == second.values)
        assert [(line["entity"], line["old"], line["new"]) for line in logs] == [("user=alice", 10, 5)]
        assert (await two.history(1))[0].old == 10


async def test_value_that_is_set_already_is_no_alteration_and_needs_brokers_word(topic: QuotaTopic) -> None:
    async with opened(store := topic.store(write_timeout_ms=1_000)):
        version = await store.write(alteration((ALICE, PRODUCE, 5)))
        assert await store.write(alteration((ALICE, PRODUCE, 5))) == version
        assert len(await store.history(10)) == 1
        topic.unreachable = True
        with pytest.raises(StoreError, match="can't be reached; nothing was changed"):
            await store.write(alteration((ALICE, PRODUCE, 5)))


async def test_catching_up_waits_for_what_others_had_made(topic: QuotaTopic) -> None:
    async with opened(one := topic.store()), opened(two := topic.store(write_timeout_ms=500)) as second:
        topic.consumers[1].held = True
        await one.write(alteration((ALICE, PRODUCE, 5)))
        with pytest.raises(StoreError, match="could not be read to its end"):
            await two.catch_up()
        topic.consumers[1].held = False
        await two.catch_up()
        assert second.values == {(ALICE, PRODUCE): 5}
    with pytest.raises(StoreError, match="closed"):
        await two.catch_up()


@pytest.mark.parametrize(("code", "hint"), [
    (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "WRITE and DESCRIBE on transactional ids"),
    (KafkaError._UNSUPPORTED_FEATURE, 'use quota_store.kind = "sqlite"'),
])  # fmt: skip
async def test_topic_that_may_not_be_written_is_logged_at_the_start_and_each_change_says_why(
    topic: QuotaTopic, code: int, hint: str
) -> None:
    topic.not_writable = KafkaError(code, "no")
    topic.append(b'{"quota":"user=alice","key":"producer_byte_rate"}', b'{"format":1,"value":5}')
    with capture_logs() as logs:
        async with opened(store := topic.store()) as seen:
            await until(lambda: [line for line in logs if line["event"] == "quota_topic_not_writable"])
            with pytest.raises(StoreError, match="can't be written; nothing was changed: no; ") as raised:
                await store.write(alteration((ALICE, PRODUCE, 1)))
            assert hint in str(raised.value)
            # What is in the topic is in force all the same.
            assert seen.values == {(ALICE, PRODUCE): 5}
            assert store.stale is None
