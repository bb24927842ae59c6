"""The command line as a whole: dispatch, exit codes, one clear line per error, no traceback (hazard F17)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from gateway.cli.main import main

SLUICE = [sys.executable, "-c", "from gateway.cli.main import main; raise SystemExit(main())"]


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"sluice {version('sluice')}\n"


def test_no_command_is_answered_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(command in captured.err for command in ("serve", "check-config", "quotas"))


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["serf"], "invalid choice: 'serf'"),
        (["serve", "--conf", "x"], "unrecognized arguments: --conf"),
        (["serve", "--upstream", "kafka"], 'argument --upstream: "kafka" is not host:port with a port in 1..65535'),
        (["check-config"], "arguments are required: FILE"),
        (["quotas", "--client-id"], "argument --client-id: expected one argument"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line_and_code_2(
    argv: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", [["serve", "--config"], ["check-config"], ["quotas", "--config"]])
def test_wrong_configuration_is_one_line_per_fault_and_code_2(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text('[upstream]\nbootstrap = ["k:1"]\n[admin]\nbind = "x"\n')
    assert main([*command, str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        f"sluice: {file}: listeners: required, but missing",
        f'sluice: {file}: admin.bind: "x" is not host:port with a port in 0..65535',
    ]


def test_interrupt_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("config.load", interrupted)
    assert main(["check-config", "x"]) == 130


@pytest.mark.parametrize("busy", ["listener", "admin"])
def test_f17_busy_port_is_one_line_and_code_2(busy: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        bind, admin = (port, 0) if busy == "listener" else (0, port)
        file = tmp_path / "sluice.toml"
        file.write_text(
            f'[upstream]\nbootstrap = ["127.0.0.1:9"]\n[admin]\nbind = "127.0.0.1:{admin}"\n'
            f'[[listeners]]\nname = "a"\nbind = "127.0.0.1:{bind}"\nfirst_broker_port = 17000\n'
            '[quota_store]\nkind = "memory"\n'
        )
        ended = subprocess.run(
            [*SLUICE, "serve", "--config", str(file)], capture_output=True, text=True, timeout=30, check=False
        )
    assert ended.returncode == 2
    lines = [line for line in ended.stderr.splitlines() if line.startswith("sluice: ")]
    assert len(lines) == 1
    assert "ddress already in use" in lines[0]
    assert "Traceback" not in ended.stderr


def test_reader_that_stops_reading_is_no_error() -> None:
    example = Path(__file__).parents[3] / "config/examples/full.toml"
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        ended = subprocess.run(
            [*SLUICE, "quotas", "--config", str(example)],
            stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=30, check=False,
        )  # fmt: skip
    finally:
        os.close(write_end)
    assert (ended.returncode, ended.stderr) == (0, "")
