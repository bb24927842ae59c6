"""Records of the quota topic with signatures: what counts, what is passed over, how secrets change (K11)."""

import asyncio
from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.topic_log import Record, TopicLog
from quotas.record_signature import SIGNATURE_HEADER, RecordSigner
from testkit.quota_stores import ALICE, APP, FETCH, PRODUCE, Seen, alteration, opened
from testkit.quota_topic import QuotaTopic

OLD, NEW = b"the secret before", b"the secret from now on"
KEY = b'{"quota":"user=alice","key":"producer_byte_rate"}'
MINE = b'{"format":1,"value":5.0}'
NEWER = b'{"format":2}'


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> QuotaTopic:
    return QuotaTopic(monkeypatch)


async def values(topic: QuotaTopic, *secrets: bytes, accept_unsigned: bool | None = None) -> Seen:
    """What a gateway with these secrets has in force once it has signed what it signs at its start."""
    store = topic.store(secrets=secrets, accept_unsigned=accept_unsigned)
    async with opened(store) as seen:
        await store._writing.done()
        await store.catch_up()
    return seen


async def test_k11_records_of_others_count_for_nothing_whatever_their_format(topic: QuotaTopic) -> None:
    signer, foreign = RecordSigner("quotas", [NEW]), RecordSigner("usage", [NEW])
    wrong: Sequence[bytes | None] = (
        None,
        b"",
        RecordSigner("quotas", [b"another one" * 3]).sign(KEY, MINE),
        foreign.sign(KEY, MINE),
        signer.sign(KEY, b"another value"),
        signer.sign(KEY + MINE, None),
        b"\x02" + signer.sign(KEY, MINE)[1:],
    )
    store = topic.store(secrets=[NEW])
    async with opened(store) as seen:
        await store.write(alteration((ALICE, PRODUCE, 7.0)))
        for value in (MINE, NEWER, None):
            for signature in wrong:
                topic.append(KEY, value, None if signature is None else {SIGNATURE_HEADER: signature})
        await store.catch_up()
        assert (seen.values, store.read_only) == ({(ALICE, PRODUCE): 7.0}, None)
        assert store.unsigned_records == 3 * len(wrong)
        await store.write(alteration((APP, FETCH, 1.0)))
    assert (await values(topic, NEW)).values == {(ALICE, PRODUCE): 7.0, (APP, FETCH): 1.0}


async def test_k11_what_a_newer_gateway_has_signed_stops_the_start_as_ever(topic: QuotaTopic) -> None:
    signature = RecordSigner("quotas", [NEW]).sign(KEY, NEWER)
    topic.append(KEY, NEWER, {SIGNATURE_HEADER: signature})
    with pytest.raises(StoreError, match="newer version"):
        await topic.store(secrets=[NEW]).open(lambda *_: None)


async def test_k11_a_secret_for_a_topic_that_has_none_loses_no_quota(topic: QuotaTopic) -> None:
    async with opened(store := topic.store()):
        await store.write(alteration((ALICE, PRODUCE, 7.0), (APP, FETCH, 1.0)))
        await store.write(alteration((APP, FETCH, None)))
        history = await store.history(10)
    with pytest.raises(StoreError, match=r"none of its 5 records is signed.*accept_unsigned"):
        await topic.store(secrets=[NEW]).open(lambda *_: None)
    assert (await values(topic, NEW, accept_unsigned=True)).values == {(ALICE, PRODUCE): 7.0}
    # All of it is signed now, the history too, so nothing has to be accepted any more.
    written = len(topic.log)
    store = topic.store(secrets=[NEW])
    async with opened(store) as seen:
        assert seen.values == {(ALICE, PRODUCE): 7.0}
        after = await store.history(10)
    assert [(line.entity, line.old, line.new) for line in after] == [
        (line.entity, line.old, line.new) for line in history
    ]
    await values(topic, NEW, accept_unsigned=True)
    assert len(topic.log) == written


async def test_k11_a_new_secret_takes_over_from_the_one_before(topic: QuotaTopic) -> None:
    async with opened(store := topic.store(secrets=[OLD])):
        await store.write(alteration((ALICE, PRODUCE, 7.0)))
    # First all gateways accept both, then they sign with the new one, then the old one goes.
    assert (await values(topic, OLD, NEW)).values == {(ALICE, PRODUCE): 7.0}
    assert (await values(topic, NEW, OLD)).values == {(ALICE, PRODUCE): 7.0}
    assert (await values(topic, NEW)).values == {(ALICE, PRODUCE): 7.0}
    with pytest.raises(StoreError, match="none of its"):
        await topic.store(secrets=[b"neither of the two"]).open(lambda *_: None)


async def test_k11_what_another_gateway_alters_while_records_are_signed_anew_stays(topic: QuotaTopic) -> None:
    async with opened(one := topic.store(secrets=[OLD])):
        await one.write(alteration((ALICE, PRODUCE, 7.0), (APP, FETCH, 1.0)))
    signer = RecordSigner("quotas", [NEW])

    def overtake(commit: object) -> None:
        topic.on_commit = lambda commit: commit()
        topic.append(KEY, MINE, {SIGNATURE_HEADER: signer.sign(KEY, MINE)})
        assert callable(commit)
        commit()

    topic.on_commit = overtake
    assert (await values(topic, NEW, OLD)).values == {(ALICE, PRODUCE): 5.0, (APP, FETCH): 1.0}
    assert (await values(topic, NEW)).values == {(ALICE, PRODUCE): 5.0, (APP, FETCH): 1.0}


def test_k11_without_a_secret_signatures_are_not_looked_at() -> None:
    log = TopicLog()
    log.feed([Record(0, KEY, MINE, None, b"any")])
    assert (len(log.values()), log.unsigned_records) == (1, 0)


async def test_k11_records_that_are_passed_over_are_logged_once_a_minute(
    topic: QuotaTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.quota_admin.store.topic_store._log", log := Mock())
    async with opened(store := topic.store(secrets=[NEW], accept_unsigned=False)):
        for _ in range(5):
            topic.append(KEY, MINE)
            await store.catch_up()
            await asyncio.sleep(0)
        assert store.unsigned_records == 5
    assert [call.args[0] for call in log.error.call_args_list] == ["quota_store_unsigned_records"]
