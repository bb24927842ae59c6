"""KIP-599's worked example on the wire, and what its users see of it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from embedded_kafka.tools import run_tool
from testkit.scenarios import scenarios
from testkit.wire_client import Reply, WireClient
from tests.integration.conftest import StartGateway
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.java_programs import run_java

pytestmark = pytest.mark.integration

TOPICS: Final = "org.apache.kafka.tools.TopicCommand"
NONE, THROTTLING_QUOTA_EXCEEDED = 0, 89
RATE: Final = 5.0
# The burst is rate * window.num * window size: 500 partitions at 5/s.
WINDOW: Final = "[mutation_quota]\nwindow_num = 100\nwindow_size_seconds = 1\n"
SMALL_RATE: Final = 2.0
SMALL_BURST: Final = 22


@pytest.fixture(scope="module")
def worked_example(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    """5 partitions a second, burst 500, for every client id that an example needs for itself."""
    return start_gateway(kafka, GatewayOptions(quotas={"example-v6": RATE}, tables=WINDOW))


@pytest.fixture(scope="module")
def small(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    """2 partitions a second, burst 22: waits that a test can sit out."""
    names = ("rq18-0", "rq18-1", "rq18-2", "tool", "java-admin")
    return start_gateway(kafka, GatewayOptions(quotas=dict.fromkeys(names, SMALL_RATE)))


@pytest.fixture
def created(kafka: KafkaCluster) -> Iterator[list[str]]:
    """Names put in here are deleted at the end, past the gateway."""
    names: list[str] = []
    yield names
    with WireClient(kafka.brokers[1]) as broker:
        broker.ask("DeleteTopics", 5, topic_names=names, timeout_ms=30_000)


def create(client: WireClient, version: int, partitions: dict[str, int], **fields: Any) -> Reply:
    topics = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in partitions.items()]
    return client.ask("CreateTopics", version, topics=topics, timeout_ms=60_000, **fields)


def codes(reply: Reply) -> list[int]:
    return [topic.error_code for topic in reply.body.topics]


def topics_of(client: WireClient) -> dict[str, int]:
    topics = client.ask("Metadata", 12, topics=None, allow_auto_topic_creation=False).body.topics
    return {topic.name: len(topic.partitions) for topic in topics}


def await_topics(broker: WireClient, partitions: dict[str, int]) -> None:
    """A broker learns of topics a moment after their creation was answered."""
    deadline = time.monotonic() + 60
    while not partitions.items() <= topics_of(broker).items():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def exhausting(prefix: str, created: list[str]) -> dict[str, int]:
    """The example's 7 topics of 80 partitions each: 60 more than the burst."""
    names = [f"{prefix}-{number}" for number in range(7)]
    created.extend(names)
    return dict.fromkeys(names, 80)


def test_worked_example_accepts_560_partitions_and_refuses_the_next_request_for_12_seconds(
    worked_example: GatewayProcess, created: list[str]
) -> None:
    with WireClient(worked_example.bootstrap, client_id="example-v6") as client:
        started = time.monotonic()
        first = create(client, 7, exhausting("worked-v6", created))
        assert codes(first) == [NONE] * 7
        assert first.body.throttle_time_ms == 0
        tokens = worked_example.metric("gateway_controller_mutation_tokens", client_id="example-v6")
        second = create(client, 6, {"worked-v6-refused": 1})
        elapsed_s = time.monotonic() - started

    assert tokens is not None
    assert -60 <= tokens <= -60 + RATE * elapsed_s
    assert codes(second) == [THROTTLING_QUOTA_EXCEEDED]
    assert second.body.topics[0].error_message is None
    assert 12_000 - elapsed_s * 1000 <= second.body.throttle_time_ms <= 12_000
    assert second.elapsed_ms < second.body.throttle_time_ms, "KIP-219: the answer comes at once, the silence after it"
    assert worked_example.metric("gateway_controller_mutation_refused_topics_total", client_id="example-v6") == 1


def test_kafka_topics_shows_its_user_the_throttling_error(
    small: GatewayProcess, created: list[str], tmp_path: Path
) -> None:
    created += ["tool-a"]
    client_config = tmp_path / "client.properties"
    client_config.write_text("client.id=tool\n")
    common = ["--bootstrap-server", str(small.bootstrap), "--command-config", str(client_config), "--create"]
    accepted = run_tool(TOPICS, [*common, "--topic", "tool-a", "--partitions", "60"])
    assert accepted.returncode == 0, accepted.stderr
    refused = run_tool(TOPICS, [*common, "--topic", "tool-b", "--partitions", "1"])
    assert refused.returncode != 0
    assert "ThrottlingQuotaExceededException" in refused.stdout + refused.stderr


def test_java_admin_client_waits_by_itself_and_succeeds(small: GatewayProcess, created: list[str]) -> None:
    created += ["java-admin-a", "java-admin-b"]
    program = run_java("AdminRetry", [str(small.bootstrap), "java-admin", "java-admin-a:42", "java-admin-b:1"])
    assert program.returncode == 0, program.stderr
    first_ms, second_ms = (int(line.split()[1]) for line in program.stdout.splitlines())
    # 42 of 22: a debt of 20 at 2/s. The second topic is created once it has been worked off.
    assert second_ms >= 10_000 - first_ms
    refused = small.metric("gateway_controller_mutation_refused_topics_total", client_id="java-admin")
    assert refused is not None
    assert refused >= 1


@pytest.mark.parametrize("scenario", scenarios("client"))
@pytest.mark.parametrize("case", range(3))
def test_java_admin_client_does_with_a_partial_refusal_what_kafka_s_own_tests_say(
    scenario: dict[str, Any], case: int, small: GatewayProcess, kafka: KafkaCluster, created: list[str]
) -> None:
    """The row's second answer is a mocked 89 again; here the quota itself decides when the retry is let in."""
    row = scenario["rows"][case]
    names = [f"rq18-{case}-{name}" for name, _ in scenario["first"]]
    created += names
    with WireClient(kafka.brokers[1]) as broker:
        assert codes(create(broker, 7, {names[2]: 1})) == [NONE]
        await_topics(broker, {names[2]: 1})
    # A refused client says what is left of the throttle when it ends, so that must be more than a slow machine takes.
    throttle_ms = scenario["throttle_ms"] if row["result_topic2"] == "ok" else 20_000
    over_by = SMALL_RATE * throttle_ms / 1000
    timeout_ms = 10_000 if "timeout_after_ms" in row else 60_000
    wanted = [f"{names[0]}:{SMALL_BURST + int(over_by)}", f"{names[1]}:1", f"{names[2]}:1"]
    arguments = [str(small.bootstrap), f"rq18-{case}", str(row["retry"]).lower(), str(timeout_ms), *wanted]
    started = time.monotonic()
    program = run_java("AdminQuotas", arguments)
    elapsed_ms = (time.monotonic() - started) * 1000
    assert program.returncode == 0, program.stderr
    said = [line.split()[1:] for line in program.stdout.splitlines()]
    assert [said[0], said[2]] == [["ok"], ["TopicExistsException"]]
    if row["result_topic2"] == "ok":
        assert said[1] == ["ok"]
        assert small.metric("gateway_controller_mutation_refused_topics_total", client_id=f"rq18-{case}")
        return
    assert said[1][0] == f"{row['result_topic2']}Exception"
    # What is left of the throttle when the client ends. The row gives up long after the throttle, and here the client
    # gives up before. Its call lasted for the timeout, and the answer came within the rest of the program's time.
    gone_ms = timeout_ms - (elapsed_ms - timeout_ms) if "timeout_after_ms" in row else 0
    assert throttle_ms - elapsed_ms <= int(said[1][1]) <= throttle_ms - max(0, gone_ms)
