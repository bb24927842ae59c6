"""The command line as a whole: dispatch, exit codes, one clear line per error, no traceback (hazard F17)."""

import os
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.cli.table import aligned, number
from gateway.runtime.compiled_core import core_name
from tests.gateway.cli.conftest import Run

SLUICE = [sys.executable, "-c", "from gateway.cli.main import main; raise SystemExit(main())"]
TEXT = """
[upstream]
bootstrap = ["kafka-1:9092", "[::1]:9092"]
[[listeners]]
name = "inside"
bind = "0.0.0.0:19092"
advertised_host = "gw"
lowest_broker_id = 5
broker_ports = 3
[[quotas]]
user = "alice"
controller_mutation_rate = 1
"""


def test_version_is_the_packages_and_no_command_is_answered_with_help(run: Run) -> None:
    assert run("--version") == (0, f"sluice {version('sluice')}, {core_name()}\n", "")
    code, out, err = run()
    assert (code, out) == (2, "")
    assert all(command in err for command in ("serve", "check-config", "quotas"))


@pytest.mark.parametrize(("argv", "text"), [
    (["serf"], "invalid choice: 'serf'"),
    (["serve", "--conf", "x"], "unrecognized arguments: --conf"),
    (["serve", "--upstream", "kafka"], 'argument --upstream: "kafka" is not host:port with a port in 1..65535'),
    (["check-config"], "arguments are required: FILE"),
    (["quotas", "--client-id"], "argument --client-id: expected one argument"),
    *((["quotas", "history", f"--limit={n}"], "1..100000") for n in ("0", "-1", "x", "1e3", "100001", "٣")),
])  # fmt: skip
def test_wrong_arguments_are_one_line_and_code_2(argv: list[str], text: str, run: Run) -> None:
    code, _, err = run(*argv)
    assert code == 2
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [["serve", "--config"], ["check-config"], ["quotas", "--config"]])
def test_wrong_configuration_is_one_line_per_fault_and_code_2(command: list[str], file: Path, run: Run) -> None:
    file.write_text('[upstream]\nbootstrap = ["k:1"]\n[admin]\nbind = "x"\n')
    assert run(*command, file) == (
        2,
        "",
        f"sluice: {file}: listeners: required, but missing\n"
        f'sluice: {file}: admin.bind: "x" is not host:port with a port in 0..65535\n',
    )


def test_interrupt_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("config.load", interrupted)
    assert main(["check-config", "x"]) == 130


@pytest.mark.parametrize("busy", ["listener", "admin"])
def test_f17_busy_port_is_one_line_and_code_2(busy: str, file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        bind, admin = (port, 0) if busy == "listener" else (0, port)
        file.write_text(
            f'[upstream]\nbootstrap = ["127.0.0.1:9"]\n[admin]\nbind = "127.0.0.1:{admin}"\n'
            f'[[listeners]]\nname = "a"\nbind = "127.0.0.1:{bind}"\nfirst_broker_port = 17000\n'
            '[quota_store]\nkind = "memory"\n'
        )
        command = [*SLUICE, "serve", "--config", str(file)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("sluice: ")]
    assert "ddress already in use" in line
    assert "Traceback" not in ended.stderr


def test_reader_that_stops_reading_is_no_error() -> None:
    example = Path(__file__).parents[3] / "config/examples/full.toml"
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        command = [*SLUICE, "quotas", "--config", str(example)]
        ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    finally:
        os.close(write_end)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_check_config_tells_where_clients_come_in_and_where_they_go(file: Path, run: Run) -> None:
    file.write_text(TEXT)
    code, out, err = run("check-config", file)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{file}: ok",
        "  upstream         kafka-1:9092, [::1]:9092",
        "  listener inside  0.0.0.0:19092, brokers 5..7 at gw:19093..19095",
        "  admin            127.0.0.1:9644",
        "  quotas           1, enforced",
    ]
    for mode, text in (("observe", "1, all only observed"), ("off", "1, all switched off")):
        file.write_text(TEXT + f'[enforcement]\nmode = "{mode}"\n')
        assert run("check-config", file)[1].splitlines()[-1] == f"  quotas           {text}"
    file.write_text(TEXT.replace("alice", "<default>"))
    warning = '"<default>" is taken as a name; the default is default_user = true'
    assert run("check-config", file)[::2] == (0, f"sluice: {file}: quotas.0.user: {warning}\n")


def test_certificates_that_can_not_be_used_are_found(file: Path, run: Run) -> None:
    tls = 'security_protocol = "SSL"\ntls = { certificate = "/nowhere.crt", key = "/nowhere.key" }\n'
    file.write_text(TEXT.replace("[[listeners]]\n", f"[[listeners]]\n{tls}"))
    for command in (["check-config"], ["serve", "--config"]):
        code, out, err = run(*command, file)
        assert (code, out) == (2, "")
        assert 'listeners.0.tls.certificate: "/nowhere.crt" can not be read' in err
        assert 'listeners.0.tls.key: "/nowhere.key" can not be read' in err


def test_columns_line_up_and_numbers_have_no_needless_fraction() -> None:
    assert aligned([("a", "bb", ""), ("ccc", "d", "e")], indent="> ") == ["> a    bb", "> ccc  d   e"]
    assert aligned([]) == []
    assert [number(value) for value in (5.0, 2.5, 12_345_678.0, None)] == ["5", "2.5", "12345678", "-"]
