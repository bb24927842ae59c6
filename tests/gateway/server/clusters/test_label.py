"""Metrics of several clusters in one text."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.server.clusters.label import labelled

HOSTILE = st.text(st.sampled_from('a{}" ,=\\\n#\t\u00e9'), max_size=8)


def samples(text: bytes, **more: str) -> list[tuple[str, list[tuple[str, str]], float]]:
    return sorted(
        (sample.name, sorted({**sample.labels, **more}.items()), sample.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    )


@given(values=st.dictionaries(HOSTILE, st.integers(0, 5), max_size=4), plain=st.integers(0, 5))
def test_each_sample_gets_the_label_and_nothing_else_changes(values: dict[str, int], plain: int) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("x", 'help with " and { and \n', ["client_id"], registry=registry)
    for name, value in values.items():
        gauge.labels(name).set(value)
    Counter("plain", "no labels", registry=registry).inc(plain)
    Histogram("h", "buckets", ["l"], registry=registry).labels("}").observe(1)
    text = generate_latest(registry)
    found = labelled({"a": text, "b-1": text})
    assert samples(found) == sorted(samples(text, cluster="a") + samples(text, cluster="b-1"))
    # Each family is described once, with all its samples in one place.
    heads = [line for line in found.split(b"\n") if line.startswith(b"# TYPE")]
    assert len(heads) == len(set(heads))


def test_family_that_two_versions_describe_in_other_words_is_described_once() -> None:
    old = b"# HELP x old words\n# TYPE x gauge\nx 1.0\n"
    new = b"# HELP x new words\n# TYPE x gauge\nx 2.0\n# HELP y only here\n# TYPE y gauge\ny 3.0\n"
    assert labelled({"a": old, "b": new}) == (
        b'# HELP x old words\n# TYPE x gauge\nx{cluster="a"} 1.0\nx{cluster="b"} 2.0\n'
        b'# HELP y only here\n# TYPE y gauge\ny{cluster="b"} 3.0\n'
    )


def test_clusters_that_say_nothing_make_no_text() -> None:
    assert labelled({}) == b""
    assert labelled({"a": b""}) == b""
