import gzip
import zlib

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ingest.lines import KEPT_BYTES, Line, Torn, read_line, texts_of
from pipeline.ingest.writer import messages_to_rows
from quotas.record_signature import SIGNATURE_HEADER, RecordSigner
from testkit.pipeline.usage_lines import BOOT, DAY, content, event, line, row

SECRET = b"a secret of the gateways"
THREE = [line(seq, row(units=seq + 1), events=(event(),)) for seq in range(3)]


def test_a_file_gives_its_lines_packed_or_not() -> None:
    assert list(texts_of(content(*THREE))) == THREE
    assert list(texts_of(b"\n".join(THREE) + b"\n")) == THREE
    assert list(texts_of(content(*THREE[:1]) + content(*THREE[1:]))) == THREE
    assert list(texts_of(b"")) == list(texts_of(gzip.compress(b""))) == []


@given(st.integers(min_value=1))
def test_a_file_cut_off_anywhere_gives_its_whole_lines_and_then_the_tear(at: int) -> None:
    whole = content(*(line(seq, row(client_id=f"c{seq * 7919 % 1000}", units=seq * seq)) for seq in range(300)))
    lines = list(texts_of(whole))
    *there, torn = texts_of(whole[: at % len(whole)]) if at % len(whole) > 1 else [Torn(0, "", b"")]
    assert isinstance(torn, Torn)
    assert there == lines[: len(there)]
    assert torn.position == len(there)


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\xff" * 100])
def test_damage_behind_the_lines_costs_none_of_them(tail: bytes) -> None:
    lines = [line(seq, row(units=seq * seq)) for seq in range(60)]
    stream = zlib.compressobj(wbits=31)
    begun = b"".join(stream.compress(text + b"\n") for text in lines) + stream.flush(zlib.Z_SYNC_FLUSH)
    *there, torn = texts_of(begun + tail)
    assert there == lines
    assert isinstance(torn, Torn)
    assert torn.position == len(lines)


def test_what_is_no_gzip_inside_is_told_once() -> None:
    (torn,) = texts_of(b"\x1f\x8b" + b"nonsense" * 10)
    assert isinstance(torn, Torn)
    assert "damaged" in torn.reason


def test_a_line_is_read_with_its_head_and_of_a_huge_unreadable_one_a_part_is_kept() -> None:
    read = read_line(THREE[2], position=7)
    assert isinstance(read, Line)
    assert read[:8] == (7, "a", BOOT, 2, DAY + 2, 1000, 0, 0)
    assert len(read.rows) == len(read.events) == 1
    torn = read_line(b"x" * (KEPT_BYTES + 1), position=0)
    assert isinstance(torn, Torn)
    assert len(torn.text) == KEPT_BYTES


def test_a_newer_gateway_may_say_more_and_an_older_one_less() -> None:
    # It was torn, and with it all that the gateway wrote.
    full = [*row(), 2, 7, [["group", "team", 1, 40]], 25.5]
    read = read_line(line(0, [*full, "new"], events=([*event(), 1],), extra={"a": 1}, jump_ms=-1_500), 0)
    assert isinstance(read, Line)
    assert (read.rows, read.events) == ([full], [event()])
    assert (read.algo, read.jump_ms) == ("token_bucket", -1_500)
    # An older one less.
    mixed = read_line(line(0, row(), full), 0)
    assert isinstance(mixed, Line)
    assert mixed.rows == [[*row(), 0, 0, 0, 0], full]


@pytest.mark.parametrize(("text", "reason"), [
    (line(0, jump_ms="x"), "jump_ms"), (line(0, algo=5), "algo"),
    (b"", "not JSON"), (THREE[0][:-5], "not JSON"), (b"[1]", "not an object"), (line(0, v=2), "v is 2"),
    (line(0, gw=5), "gw"), (line(-1, ts=DAY), "seq"), (line(True), "seq"), (line(0, boot="x"), "boot"),
    (line(0, ts=10**15), "ts"), (line(10**15), "seq"), (line(0, boot=2**60), "boot"),
    (line(0, rows=None), "rows"), (line(0, row()[:-1]), "rows"),
    (line(0, rows=[{}]), "rows"), (line(0, events=(event()[:-1],)), "events"),
    (b'{"v":1,"gw":"\xff"}', "not JSON"),
])  # fmt: skip
def test_a_line_that_is_none_is_kept_with_the_reason(text: bytes, reason: str) -> None:
    torn = read_line(text, position=4)
    assert isinstance(torn, Torn)
    assert torn.position == 4
    assert reason in torn.reason
    assert torn.text == text


def test_k11_of_a_topic_only_signed_lines_are_read() -> None:
    signature, other = (RecordSigner(topic, [SECRET]).sign(b"g", THREE[0]) for topic in ("usage", "quotas"))
    headers = [None, [], [(SIGNATURE_HEADER, other)], [("x", b""), (SIGNATURE_HEADER, signature)]]
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "topic": "usage",
                "partition": 0,
                "offset": offset,
                "key": b"g",
                "value": THREE[0],
                "headers": [{"key": name, "value": value} for name, value in each or ()],
            }
            for offset, each in enumerate(headers)
        ]
    )
    rows = pa.Table.from_batches(messages_to_rows([batch], frozenset(), secrets=[b"another" * 4, SECRET]))
    assert rows.filter(pc.field("kind") == "torn")["at"].to_pylist() == [0, 1, 2]
    assert rows.filter(pc.field("kind") == "lines")["position"].to_pylist() == [[3]]


def test_rows_of_topics_are_no_rows_of_clients() -> None:
    topics = b',"topics":[["in","alice","app","produce",1,"orders",1,5,1]]}'
    read, plain = (read_line(text, position=7) for text in (THREE[1][:-1] + topics, THREE[1]))
    assert isinstance(read, Line)
    assert isinstance(plain, Line)
    assert (read[:8], list(read.rows), list(read.events)) == (plain[:8], list(plain.rows), list(plain.events))
