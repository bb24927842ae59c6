"""``sluice kafka-tool``: runs Kafka's own command line tools from the embedded Kafka."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Final

TOOLS: Final = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-configs": "org.apache.kafka.tools.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
}


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "kafka-tool",
        help="run one of Kafka's own tools: kafka-configs, kafka-topics ...",
        description="Run one of Kafka's own command line tools, as Apache Kafka ships them. Its arguments are passed "
        f"on as they are. Tools: {', '.join(TOOLS)}. The first call downloads Kafka's jars; this needs Java and "
        "Maven.",
        allow_abbrev=False,
    )
    parser.add_argument("tool", choices=list(TOOLS), metavar="TOOL", help="the tool, such as kafka-configs")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the arguments of the tool"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:  # noqa: RET503  (what follows the last line is the tool)
    """Replaces this process by the tool; 2 when there is no Java or the jars can't be fetched."""
    from embedded_kafka.tools import tool_command
    from pinned_jars import FetchError, MissingProgramError

    try:
        command = tool_command(TOOLS[arguments.tool], arguments.arguments, log_level="ERROR")
    except (MissingProgramError, FetchError) as exc:
        print(f"sluice: {exc}", file=sys.stderr)
        return 2
    # The tool replaces this process, so signals, terminal and exit code are its own.
    os.execvp(command[0], command)
