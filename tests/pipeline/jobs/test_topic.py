"""The usage topic of a real Kafka. Broker restarts and more kills: `make campaigns ONLY=exactly-once`."""

from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from campaigns.exactly_once.ingests import KILLED, count_by_duckdb, ingest, log_tail, reported_missing
from embedded_kafka.kafka import KafkaCluster
from pipeline.errors import Exit
from testkit.pipeline.usage_lines import event, line, row

pytestmark = pytest.mark.spark

HOST: Final = "127.77.3.2"
TOPIC: Final = "__sluice_usage"


def test_lines_of_the_topic_count_once_over_a_kill_and_a_repetition(tmp_path: Path) -> None:
    lines = [line(seq, row(units=seq), row("b"), events=(event(),)) for seq in range(40) if seq != 17]
    out, log = tmp_path / "out", tmp_path / "log"
    with KafkaCluster(1, host=HOST, properties={"auto.create.topics.enable": "true"}) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
        for text in [*reversed(lines), b"junk", *lines[:10]]:
            producer.produce(TOPIC, text, "a")
        assert producer.flush(60) == 0
        arguments = ["--from", f"kafka:{TOPIC}@{cluster.bootstrap}", "--out", str(out)]
        arguments += ["--master", "local[2]", "--max-messages", "30"]
        assert ingest(arguments, log, point="committed", batch=1) == KILLED, "\n".join(log_tail(log))
        # What was killed may have read the last lines.
        assert ingest(arguments, log) in (Exit.DONE, Exit.NOTHING_TO_DO), "\n".join(log_tail(log))
    count = count_by_duckdb(out)
    assert (count.lines, count.rows, count.events, count.duplicated_rows) == (39, 78, 39, 0)
    assert count.units == sum(seq + 100 for seq in range(40) if seq != 17)
    assert {seq for _, _, seq in reported_missing(out)} == {17}
    assert "10 lines read before, 1 not readable" in log.read_text()
