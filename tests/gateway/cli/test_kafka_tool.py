"""``sluice kafka-tool`` becomes the tool, with its arguments as they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from embedded_kafka import tools
from embedded_kafka.jars import MissingProgramError
from gateway.cli.kafka_tool import TOOLS
from gateway.cli.main import main


class Become(Exception):
    """What the process would have become."""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java that is never started."""

    def tool_command(main_class: str, arguments: Sequence[str], **_options: Any) -> list[str]:
        return ["java", main_class, *arguments]

    def execvp(file: str, command: list[str]) -> None:
        raise Become(file, command)

    monkeypatch.setattr(tools, "tool_command", tool_command)
    monkeypatch.setattr(os, "execvp", execvp)


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["--bootstrap-server", "k:1", "--alter", "--add-config", "a=1,b=2"], ["-x", "--", "y"]],
)
def test_the_tool_gets_its_arguments_as_they_are(arguments: list[str]) -> None:
    with pytest.raises(Become) as became:
        main(["kafka-tool", "kafka-configs", *arguments])
    assert became.value.args == ("java", ["java", "kafka.admin.ConfigCommand", *arguments])


def test_an_unknown_tool_is_refused_with_the_names_of_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["kafka-tool", "kafka-nothing"])
    assert ended.value.code == 2
    assert "kafka-configs" in capsys.readouterr().err


def test_a_machine_without_java_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tool_command(*_arguments: Any, **_options: Any) -> list[str]:
        raise MissingProgramError("java is not there")

    monkeypatch.setattr(tools, "tool_command", tool_command)
    assert main(["kafka-tool", "kafka-topics"]) == 2
    assert capsys.readouterr().err == "sluice: java is not there\n"


def test_tools_have_the_names_that_kafka_gives_them() -> None:
    assert {"kafka-configs", "kafka-topics"} <= TOOLS.keys()
    assert all(name.startswith("kafka-") for name in TOOLS)
