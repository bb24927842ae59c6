"""Spans as a real receiver gets them over HTTP, and a receiver that is slow, away or refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from config.sections.traces import TraceSettings
from gateway.observability.otlp import OtlpTraces
from gateway.observability.traces import Trace
from testkit.broker import ScriptedBroker
from testkit.frames import create_topics
from testkit.gateway import RunningGateway, gateway_config, running_gateway
from testkit.otlp_collector import OtlpCollector, attributes_of
from testkit.raw_client import HOST, until

pytestmark = pytest.mark.asyncio

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "\x1b]0;title\x07\x1b[31mred\x9b2J",
    "\u202egnp.exe\u2066",
    "\ud800 alone",
    "\U0001f4a3" * 255,
    "\x00",
)


def traces_to(endpoint: str, **changes: int) -> OtlpTraces:
    bounds = {"max_spans_per_second": 1_000_000, "max_queued_spans": 2_048} | changes
    return OtlpTraces(endpoint, resource={"service.name": "sluice"}, **bounds)


def counts(traces: OtlpTraces) -> dict[str, float]:
    (family,) = traces.collect()
    return {sample.labels["result"]: sample.value for sample in family.samples if sample.name.endswith("_total")}


async def test_hostile_names_arrive_as_text_that_shows_what_it_is_and_cost_no_other_span() -> None:
    with OtlpCollector() as collector:
        traces = traces_to(collector.endpoint)
        for name in HOSTILE:
            Trace(traces, "login", {"enduser.id": name}, now_ms=5).end(name, now_ms=7)
        await traces.stop()
        told = [str(attributes_of(span)["enduser.id"]) for span in collector.spans]
        assert told[:4] == [
            HOSTILE[0],
            "\\u{1b}]0;title\\u{7}\\u{1b}[31mred\\u{9b}2J",
            "\\u{202e}gnp.exe\\u{2066}",
            "\\u{d800} alone",
        ]
        assert len(told[4]) == 128
        assert told[5:] == ["\\u{0}"]
        assert all(span.status.message.isprintable() for span in collector.spans)
        assert counts(traces) == {"exported": 6, "failed": 0, "dropped": 0, "left_out": 0}


async def test_a_collector_that_hangs_costs_spans_beyond_the_queue_and_not_the_loop() -> None:
    with OtlpCollector() as collector:
        collector.may_answer.clear()
        traces = traces_to(collector.endpoint, max_queued_spans=200, max_spans_per_second=400)
        began = time.process_time()
        for at in range(500):
            Trace(traces, "login", {}, now_ms=at).end(now_ms=at)
        assert time.process_time() - began < 1  # some 50 us each, the sender's thread included
        assert counts(traces) == {"exported": 0, "failed": 0, "dropped": 200, "left_out": 100}
        # The end waits for some seconds, and in that time the loop continues.
        ticks = 0
        stopping = asyncio.ensure_future(traces.stop())
        while not stopping.done():
            await asyncio.sleep(0.01)
            ticks += 1
            if ticks == 20:
                collector.may_answer.set()
        assert ticks >= 20
        assert counts(traces)["exported"] == 200


@asynccontextmanager
async def tracing(collector: OtlpCollector) -> AsyncIterator[RunningGateway]:
    quotas = [{"default_client_id": True, "controller_mutation_rate": 1}]
    async with ScriptedBroker() as broker:
        config = gateway_config([broker.port], quotas=quotas)
        config = config.model_copy(update={"traces": TraceSettings(endpoint=collector.endpoint)})
        async with running_gateway(config=config) as running:
            await running.discovered()
            yield running


async def test_a_gateway_tells_a_mutation_with_its_phases_inside_and_a_change_of_quotas() -> None:
    with OtlpCollector() as collector:
        async with tracing(collector) as running:
            async with await running.connect() as client:
                await client.send(create_topics(1, ("a", 60)))
                await client.receive_frame()
            line = '{"entity": [{"type": "user", "name": "u"}], "quota": "producer_byte_rate", "limit": 5}'
            url = f"http://{HOST}:{running.gateway.admin.port}/quotas/import"
            types = {"Content-Type": "application/x-ndjson"}
            async with aiohttp.ClientSession() as session, session.post(url, data=line, headers=types) as answer:
                assert answer.status == 200
            now_ns = time.time_ns()
        # The end of the gateway has sent what was waiting.
        await until(lambda: collector.named("alter_quotas"))
        assert collector.resource["service.name"] == "sluice"
        (altered,) = collector.named("alter_quotas")
        assert attributes_of(altered)["enduser.id"] == "admin port"
        (root,) = collector.named("create_topics")
        assert attributes_of(root)["sluice.permits"] == 60
        assert root.kind == Span.SPAN_KIND_SERVER
        assert root.status.code == Status.STATUS_CODE_UNSET
        parts = [span for span in collector.spans if span.parent_span_id == root.span_id]
        assert [span.name for span in parts] == ["ask_cluster", "broker"]
        assert all(span.trace_id == root.trace_id for span in parts)
        assert root.start_time_unix_nano <= parts[0].start_time_unix_nano
        assert parts[-1].end_time_unix_nano <= root.end_time_unix_nano
        assert abs(now_ns - root.end_time_unix_nano) < 60e9
