"""``sluice kafka-tool`` becomes the tool, with its arguments as they are."""

import os
from typing import Any

import pytest

from embedded_kafka import tools
from gateway.cli.kafka_tool import TOOLS
from gateway.cli.main import main
from pinned_jars import MissingProgramError
from tests.gateway.cli.conftest import Run


class Become(Exception):
    """What the process would have become."""


@pytest.mark.parametrize("arguments", [
    [], ["--help"], ["--bootstrap-server", "k:1", "--alter", "--add-config", "a=1,b=2"], ["-x", "--", "y"],
])  # fmt: skip
def test_tool_gets_its_arguments_as_they_are(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    def execvp(file: str, command: list[str]) -> None:
        raise Become(file, command)

    monkeypatch.setattr(tools, "tool_command", lambda main, arguments, **_more: ["java", main, *arguments])
    monkeypatch.setattr(os, "execvp", execvp)
    with pytest.raises(Become) as became:
        main(["kafka-tool", "kafka-configs", *arguments])
    assert became.value.args == ("java", ["java", "org.apache.kafka.tools.ConfigCommand", *arguments])


def test_an_unknown_tool_is_refused_with_the_names_that_kafka_gives_them(run: Run) -> None:
    assert {"kafka-configs", "kafka-topics"} <= TOOLS.keys()
    assert all(name.startswith("kafka-") for name in TOOLS)
    code, _, err = run("kafka-tool", "kafka-nothing")
    assert code == 2
    assert "kafka-configs" in err


def test_a_machine_without_java_is_told_so(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def tool_command(*_arguments: Any, **_options: Any) -> list[str]:
        raise MissingProgramError("java is not there")

    monkeypatch.setattr(tools, "tool_command", tool_command)
    assert run("kafka-tool", "kafka-topics") == (2, "", "sluice: java is not there\n")
