"""Metrics as a real receiver gets them over HTTP are those of /metrics; one that is slow or away costs no client."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from config.sections.metrics import MetricSettings
from gateway.observability.otlp_metrics import OtlpMetrics, Points, in_requests
from testkit.broker import ScriptedBroker
from testkit.clusters import clusters_process
from testkit.crowd import is_served
from testkit.frames import create_topics
from testkit.gateway import LISTENER, RunningGateway, gateway_config, gateway_process, metric_of, running_gateway
from testkit.otlp_collector import OtlpCollector, Series, series_of
from testkit.raw_client import HOST, until

HOSTILE: Final = '<img src=x> \x1b[31m\u202e{{user}} "}\\ \n'
S: Final = 1_000_000_000
EXPORTS: Final = "gateway_metric_exports_total"


def counter(**values: float) -> Metric:
    family = CounterMetricFamily("c", "Help.", labels=["who"])
    for who, value in values.items():
        family.add_metric([who], value)
    return family


def starts(metrics: Sequence[Any]) -> dict[str, int]:
    return {
        point.attributes["who"]: point.start_time_unix_nano // S
        for each in metrics
        for point in each.data.data_points
    }


def test_a_counter_that_begins_again_has_a_new_start_and_one_that_is_gone_is_forgotten() -> None:
    points = Points(10 * S)
    assert starts(points.of([counter(a=5, b=5)], {}, 20 * S)) == {"a": 10, "b": 10}
    assert starts(points.of([counter(a=6, b=2)], {}, 30 * S)) == {"a": 10, "b": 20}
    assert starts(points.of([counter(a=6)], {}, 40 * S)) == {"a": 10}
    # As one that is new: it counts from the export before, in which it was not.
    assert starts(points.of([counter(a=6, b=9)], {}, 50 * S)) == {"a": 10, "b": 40}


@given(st.lists(st.integers(0, 12), max_size=12), st.integers(1, 7))
def test_requests_have_all_points_in_order_and_at_most_so_many(sizes: list[int], most: int) -> None:
    families = [counter(**{f"w{at}": at for at in range(size)}) for size in sizes]
    metrics = Points(0).of(families, {}, S)
    parts = list(in_requests(metrics, most))
    assert all(0 < sum(len(each.data.data_points) for each in part) <= most for part in parts)
    whole = [point for each in metrics for point in each.data.data_points]
    assert [point for part in parts for each in part for point in each.data.data_points] == whole


async def test_every_kind_of_series_arrives_with_the_value_that_a_scrape_has() -> None:
    level = GaugeMetricFamily("level", "A level.", labels=["client_id"])
    level.add_metric([HOSTILE], -math.inf)
    level.add_metric([""], 0.25)
    late = HistogramMetricFamily("late_seconds", "A histogram.", labels=["loop"])
    late.add_metric(["a"], [("0.1", 2.0), ("1.0", 3.0), ("2.5", 4.0), ("+Inf", 5.0)], 11.85)
    late.add_metric(["b"], [("0.1", 0.0), ("1.0", 0.0), ("2.5", 0.0), ("+Inf", 0.0)], 0.0)
    shown = [level, CounterMetricFamily("served", "A count.", value=7), late]

    async def families() -> AsyncIterator[Metric]:
        for family in shown:
            yield family

    with OtlpCollector() as collector:
        metrics = OtlpMetrics(
            collector.metrics_endpoint, families, interval_ms=60_000, resource={"service.name": "sluice"}
        )
        metrics.start()
        await metrics.stop()
        scraped = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in shown
            for sample in family.samples
        }
        assert series_of(each for part in collector.metrics for each in part) == scraped
        assert collector.resource["service.name"] == "sluice"
        assert {each.name: each.description for part in collector.metrics for each in part} == {
            "level": "A level.",
            "served_total": "A count.",
            "late_seconds": "A histogram.",
        }


@asynccontextmanager
async def exporting(endpoint: str, *, interval_ms: int = 1_000) -> AsyncIterator[RunningGateway]:
    """A gateway that refuses the second topic of each client."""
    quotas = [{"default_client_id": True, "controller_mutation_rate": 1}]
    async with ScriptedBroker() as broker:
        config = gateway_config([broker.port], quotas=quotas)
        section = MetricSettings(endpoint=endpoint, interval_ms=interval_ms)
        config = config.model_copy(update={"metrics": section})
        async with running_gateway(config=config) as running:
            await running.discovered()
            yield running


async def scrape(running: RunningGateway) -> dict[Series, float]:
    url = f"http://{HOST}:{running.gateway.admin.port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def latest(collector: OtlpCollector, cluster: str | None = None) -> dict[Series, float]:
    """The latest value of each series that was sent, of one cluster."""
    found: dict[Series, float] = {}
    for request in list(collector.metrics):
        found |= {
            series: value for series, value in series_of(request).items() if dict(series[1]).get("cluster") == cluster
        }
    return found


def is_value(collector: OtlpCollector, cluster: str, series: Series, value: float) -> bool:
    return latest(collector, cluster).get(series) == value


def of_last_export(collector: OtlpCollector, requests_before: int) -> dict[Series, float]:
    return series_of(metric for request in collector.metrics[requests_before:] for metric in request)


async def test_what_a_gateway_exports_lies_between_two_scrapes_around_it() -> None:
    with OtlpCollector() as collector:
        # The only export is the last one, which the end of the gateway makes: a scrape is before and one after.
        async with exporting(collector.metrics_endpoint, interval_ms=3_600_000) as running:
            async with await running.connect() as client:
                for correlation_id in (1, 2):
                    await client.send(create_topics(correlation_id, (f"t{correlation_id}", 60), client_id=HOSTILE))
                    await client.receive_frame()
            otlp = running.gateway.otlp_metrics
            assert otlp is not None
            before = await scrape(running)
            assert collector.metrics == []
            await otlp.stop()
            after = await scrape(running)
        sent = of_last_export(collector, 0)
    assert len(before) > 100
    assert sent.keys() >= before.keys()
    same = [series for series in before if before[series] == after.get(series)]
    assert [series for series in same if sent[series] != before[series]] == []
    growing = [series for series in before if series[0].endswith(("_total", "_bucket", "_count", "_sum"))]
    assert [series for series in growing if not before[series] <= sent[series] <= after[series]] == []
    assert sum(value for (name, _), value in sent.items() if name == "gateway_refused_topics_total") == 1
    assert HOSTILE in {dict(labels)["client_id"] for name, labels in sent if name.endswith("_mutation_tokens")}


@pytest.mark.slow
async def test_a_collector_that_hangs_or_refuses_costs_exports_and_no_client() -> None:
    with OtlpCollector() as collector:
        collector.status = 400
        async with exporting(collector.metrics_endpoint) as running:
            sample = running.gateway.registry.get_sample_value
            await until(lambda: sample(EXPORTS, {"result": "failed"}))
            collector.status = 200
            await until(lambda: sample(EXPORTS, {"result": "exported"}))
            collector.may_answer.clear()
            await until(lambda: collector.waiting)
            async with await running.connect() as client:
                assert await is_served(client)
            collector.may_answer.set()


async def test_a_replaced_process_sends_nothing_more() -> None:
    with OtlpCollector() as collector:
        async with exporting(collector.metrics_endpoint, interval_ms=3_600_000) as running:
            assert running.gateway.otlp_metrics is not None
            running.gateway.otlp_metrics.replaced()
        assert collector.metrics == []


@pytest.mark.parametrize("cluster", [None, "east"])
async def test_each_point_of_a_cluster_has_its_label(cluster: str | None) -> None:
    async def families() -> AsyncIterator[Metric]:
        yield counter(a=1)

    labels = {} if cluster is None else {"cluster": cluster}
    with OtlpCollector() as collector:
        metrics = OtlpMetrics(collector.metrics_endpoint, families, interval_ms=60_000, resource={}, labels=labels)
        metrics.start()
        await asyncio.wait_for(metrics.stop(), 60)
        (part,) = collector.metrics
        assert series_of(part) == {("c_total", frozenset({"who": "a", **labels}.items())): 1}


@pytest.mark.slow
async def test_workers_send_their_sums_once(tmp_path: Path) -> None:
    with OtlpCollector() as collector:
        tables = f'[server]\nworkers = 2\n[metrics]\nendpoint = "{collector.metrics_endpoint}"\ninterval_ms = 1000\n'
        async with (
            ScriptedBroker() as broker,
            gateway_process(tmp_path, broker.port, tables=tables) as gateway,
            AsyncExitStack() as stack,
        ):
            for _ in range(4):
                assert await is_served(await stack.enter_async_context(await gateway.connect()))
            asked = {"listener": LISTENER, "api": "fetch"}
            scraped = await gateway.metric("gateway_requests_total", **asked)
            assert scraped == 4
            series = "gateway_requests_total", frozenset(asked.items())
            await until(lambda: latest(collector).get(series) == scraped)
            workers = {dict(labels)["worker"] for name, labels in latest(collector) if "_worker_conn" in name}
            assert workers == {"supervisor", "0", "1"}


@pytest.mark.slow
async def test_clusters_send_what_their_parent_shows_at_metrics(tmp_path: Path) -> None:
    with OtlpCollector() as collector:
        section = f'[metrics]\nendpoint = "{collector.metrics_endpoint}"\ninterval_ms = 1000\n'
        async with (
            ScriptedBroker() as a,
            ScriptedBroker() as b,
            clusters_process(tmp_path, {"a": a.port, "b": b.port}, admin=section) as gateway,
        ):
            await gateway.until_ready("a", "b")
            async with await gateway.connect("a") as client:
                assert await is_served(client)
            for cluster, count in (("a", 1), ("b", 0)):
                asked = {"listener": LISTENER, "api": "fetch", "cluster": cluster}
                scraped = await metric_of(gateway.admin_port, "gateway_requests_total", **asked)
                series = "gateway_requests_total", frozenset(asked.items())
                await until(partial(is_value, collector, cluster, series, scraped))
                assert scraped == count


async def test_an_answer_without_an_end_is_cut_and_the_next_export_follows() -> None:
    """A collector that sends for ever fills no memory and holds up no later export."""
    asked = 0

    async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"ffff\r\n" + bytes(0xFFFF) + b"\r\n")
                await writer.drain()

    async def families() -> AsyncIterator[Metric]:
        yield counter(a=1)

    async with await asyncio.start_server(endless, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        metrics = OtlpMetrics(f"http://{HOST}:{port}/v1/metrics", families, interval_ms=10, resource={})
        metrics.start()
        await until(lambda: asked >= 3)
        await metrics.stop()


async def test_an_export_that_fails_before_it_is_sent_counts_and_does_not_end_the_others() -> None:
    looks = 0

    async def families() -> AsyncIterator[Metric]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise RuntimeError("can't start new thread")
        yield counter(a=1)

    with OtlpCollector() as collector:
        metrics = OtlpMetrics(collector.metrics_endpoint, families, interval_ms=10, resource={})
        metrics.start()
        await until(lambda: collector.metrics)
        await metrics.stop()
    (exports,) = metrics.collect()
    assert {sample.labels["result"]: sample.value for sample in exports.samples}["failed"] == 1
