"""Kafka's own command line tools, from the same jars as the broker."""

import subprocess
from collections.abc import Sequence

from embedded_kafka import jars


def run_tool(
    main_class: str,
    arguments: Sequence[str],
    *,
    stdin: str | None = None,
    timeout_s: float = 60,
    jvm_options: Sequence[str] = jars.QUICK_START,
    log_level: str = "WARN",
) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end and give back what it said.

    Args:
        main_class: `org.apache.kafka.tools.TopicCommand`, `org.apache.kafka.tools.ConfigCommand`,
            `org.apache.kafka.tools.ProducerPerformance` ...
        arguments: as on the tool's command line.
        stdin: text for its standard input.
        timeout_s: after this it is killed.
        jvm_options: heap, collector, compiler; `jars.FULL_SPEED` for the perf tools.
        log_level: of Kafka's clients inside the tool, to standard error.

    Returns:
        Exit code, stdout and stderr; a failing tool is a value, not an exception.

    Raises:
        subprocess.TimeoutExpired: it was not done in time.
    """
    return subprocess.run(
        tool_command(main_class, arguments, jvm_options=jvm_options, log_level=log_level),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def tool_command(
    main_class: str,
    arguments: Sequence[str],
    *,
    jvm_options: Sequence[str] = jars.QUICK_START,
    log_level: str = "WARN",
) -> list[str]:
    """The command line of a tool, for callers that want to run it beside something else."""
    install = jars.installed()
    return jars.java_command(install, main_class, arguments, jvm_options=jvm_options, log_level=log_level)
