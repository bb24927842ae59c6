"""Metrics of usage records. For lines, rows and events: made = delivered + dropped + pending."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.usage.file_sink import FileWriter
from gateway.usage.sink import ThreadedSink
from gateway.usage.stored import StoredBytes
from gateway.usage.table import UsageTable


class UsageSeries(Collector):
    """The metrics, for scrapes."""

    def __init__(self, table: UsageTable, sink: ThreadedSink, stored: StoredBytes | None = None) -> None:
        """Show the metrics of these; `stored` is None if stored bytes are not sampled."""
        self._stored = stored
        self._table = table
        self._sink = sink

    def describe(self) -> Iterator[Metric]:
        """Nothing: tests check the names, not the registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        sink = self._sink
        for what, text in (
            ("lines", "Lines of usage records, one per second"),
            ("rows", "Rows of usage records"),
            ("events", "Controller mutations in usage records"),
        ):
            family = CounterMetricFamily(
                f"gateway_usage_{what}", f"{text}, by what became of them.", labels=["result"]
            )
            for result, tally in (
                ("made", sink.made),
                ("delivered", sink.writer.delivered),
                ("dropped", sink.dropped()),
            ):
                family.add_metric([result], getattr(tally, what))
            yield family
        yield CounterMetricFamily(
            "gateway_usage_folded_clients",
            "Clients of a second that had no row of their own, summed over seconds (usage.max_rows).",
            value=self._table.folded_total,
        )
        yield CounterMetricFamily(
            "gateway_usage_missing_events",
            "Controller mutations left out of lines (usage.max_events).",
            value=self._table.missing_total,
        )
        yield GaugeMetricFamily(
            "gateway_usage_queued_bytes",
            "Lines that wait for the disk or the cluster.",
            value=sink.queued_bytes,
        )
        yield CounterMetricFamily(
            "gateway_usage_sink_failures",
            "Attempts to deliver usage records that failed.",
            value=sink.failures,
        )
        yield GaugeMetricFamily(
            "gateway_usage_sink_failing", "1 while usage records cannot be delivered.", value=sink.failing
        )
        if self._stored is not None:
            samples = CounterMetricFamily(
                "gateway_usage_stored_samples",
                "Samples of what a broker stores (usage.stored), by what became of them.",
                labels=["result"],
            )
            samples.add_metric(["taken"], self._stored.taken)
            samples.add_metric(["failed"], self._stored.failed)
            yield samples
        if isinstance(sink.writer, FileWriter):
            files = CounterMetricFamily(
                "gateway_usage_files",
                "Files of usage records, by what was done with them.",
                labels=["result"],
            )
            files.add_metric(["completed"], sink.writer.completed)
            files.add_metric(["recovered"], sink.writer.recovered)
            files.add_metric(["deleted"], sink.writer.removed)
            yield files
