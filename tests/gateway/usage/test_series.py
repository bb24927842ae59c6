"""Series of usage records: promtool has no objection, and the counts are shown as they are."""

import subprocess
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from gateway.usage.file_sink import FileSettings, FileWriter
from gateway.usage.retention import Retention
from gateway.usage.series import UsageSeries
from gateway.usage.sink import ThreadedSink
from gateway.usage.table import UsageTable
from quotas.usage_record import UsageApi
from testkit.packages import require_package
from tests.gateway.usage.files import line


def recorded(directory: Path) -> CollectorRegistry:
    """Two lines delivered, one dropped; three clients too many."""
    table = UsageTable(max_rows=1)
    for name in "abcd":
        table.row("in", "", name, UsageApi.PRODUCE).count(1)
    table.take_dropped()
    writer = FileWriter(FileSettings(directory, 60, 1 << 20, Retention(1 << 30, 60)), "a", 1)
    sink = ThreadedSink(writer, max_queued_bytes=1 << 20)
    sink.start()
    for seq in range(2):
        sink.offer(line(seq, rows=5))
    sink.stop(10.0)
    sink.offer(line(2, rows=7))
    registry = CollectorRegistry()
    registry.register(UsageSeries(table, sink))
    return registry


def test_promtool_finds_nothing(tmp_path: Path) -> None:
    promtool = require_package("prometheus", "promtool")
    text = generate_latest(recorded(tmp_path)).decode()
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_became_of_lines_and_rows_is_shown(tmp_path: Path) -> None:
    registry = recorded(tmp_path)

    def shown(name: str, result: str) -> float | None:
        return registry.get_sample_value(name, {"result": result})

    results = ("made", "delivered", "dropped")
    assert [shown("gateway_usage_lines_total", result) for result in results] == [3, 2, 1]
    assert [shown("gateway_usage_rows_total", result) for result in results] == [17, 10, 7]
    assert shown("gateway_usage_files_total", "completed") == 1
    assert registry.get_sample_value("gateway_usage_folded_clients_total") == 3
    assert registry.get_sample_value("gateway_usage_queued_bytes") == 0
    assert registry.get_sample_value("gateway_usage_sink_failing") == 0
