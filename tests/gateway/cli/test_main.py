"""The command line as a whole: dispatch, exit codes, one clear line per error, no traceback (hazard F17)."""

import asyncio
import os
import re
import shlex
import socket
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.cli.table import aligned, number
from gateway.runtime.compiled_core import core_name
from testkit.forked_sluice import ForkedProcess
from testkit.tls import Pki
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
client_id = "alice"
controller_mutation_rate = 1
"""


def test_version_is_the_packages_and_no_command_is_answered_with_help(run: Run) -> None:
    assert run("--version") == (0, f"sluice {version('sluice')}, {core_name()}\n", "")
    code, out, err = run()
    assert (code, out) == (2, "")
    assert all(command in err for command in ("serve", "check-config", "quotas"))


@pytest.mark.parametrize(("argv", "text"), [
    (["serf"], "invalid choice: 'serf'"),
    (["quotas", "--cliient-id", "app"], "unknown option --cliient-id; did you mean --client-id?"),
    (["--verbos", "x"], "unknown option --verbos"),
    (["serve", "--conf", "x"], "unrecognized arguments: --conf"),
    (["serve", "--upstream", "kafka"], 'argument --upstream: "kafka" is not host:port with a port in 1..65535'),
    (["check-config"], "arguments are required: FILE"),
    (["quotas", "--client-id"], "argument --client-id: expected one argument"),
    *((["quotas", "history", f"--limit={n}"], "1..100000") for n in ("0", "-1", "x", "1e3", "100001", "٣")),
    *(([*words, "0"], "1..100000") for words in (["why", "--limit"], ["usage", "--top"], ["usage", "--minutes"])),
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
        f'sluice: {file}:4: admin.bind: "x" is not host:port with a port in 0..65535\n',
    )


def test_interrupt_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("config.load_file", interrupted)
    assert main(["check-config", "x"]) == 130


async def started(*arguments: str) -> tuple[int, str]:
    """Exit code and errors of a process."""
    process = ForkedProcess()
    await process.start([*arguments])
    _, err = await asyncio.wait_for(process.communicate(), 60)
    code = await process.wait()
    process.release()
    return code, err.decode()


@pytest.mark.slow
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
        code, err = asyncio.run(started("serve", "--config", str(file)))
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("sluice: ")]
    key = "listeners.a.bind" if busy == "listener" else "admin.bind"
    assert line == f"sluice: cannot listen: {key}: Address already in use: 127.0.0.1:{port}"
    assert "Traceback" not in err


@pytest.mark.slow
def test_reader_that_stops_reading_is_no_error() -> None:
    example = Path(__file__).parents[3] / "config/examples/full.toml"
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        command = [*SLUICE, "quotas", "--config", str(example)]
        ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
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


def test_check_config_names_hosts_that_no_certificate_has(file: Path, run: Run, pki: Pki) -> None:
    def written(*hosts: str) -> str:
        pair = pki.authority.issue("brokers", "brokers", hosts=hosts)
        pair.key.chmod(0o600)
        tls = f'security_protocol = "SSL"\n[listeners.tls]\ncertificate = "{pair.certificate}"\nkey = "{pair.key}"\n'
        sni = '[listeners.sni]\nbootstrap_name = "gw.test"\nbroker_name = "b{node}.gw.test"\n'
        return f'[upstream]\nbootstrap = ["k:1"]\n[[listeners]]\nname = "a"\nbind = "0.0.0.0:9093"\n{tls}{sni}'

    for hosts in (("gw.test", "*.gw.test"), ("GW.test", "b4.gw.test")):
        file.write_text(written(*hosts))
        code, out, err = run("check-config", file)
        assert (code, err) == (0, "")
        assert out.splitlines()[2] == "  listener a  0.0.0.0:9093, brokers at b{node}.gw.test:9093"
    file.write_text(written("x.gw.test"))
    code, _, err = run("check-config", "--strict", file)
    assert code == 3
    told = "no certificate of the listener is made for {}, so clients refuse it; give one in tls.certificates"
    assert [line.partition(": note: ")[2] for line in err.splitlines()] == [
        f"listeners.a.sni.bootstrap_name: {told.format('gw.test')}",
        f"listeners.a.sni.broker_name: {told.format('b0.gw.test')}",
    ]


def test_check_config_names_variables_and_the_keys_that_have_their_values(
    file: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(TEXT.replace('"gw"', '"${POD}.gw"').replace('"alice"', '"${SECRET}-${POD}"'))
    monkeypatch.setenv("POD", "sluice-0")
    monkeypatch.setenv("SECRET", "opensesame")
    code, out, err = run("check-config", file)
    assert (code, err) == (0, "")
    assert out.splitlines()[-2:] == [
        "  variable POD     in listeners.inside.advertised_host, quotas.0.client_id",
        "  variable SECRET  in quotas.0.client_id",
    ]
    assert "opensesame" not in out
    monkeypatch.delenv("SECRET")
    code, out, err = run("check-config", file)
    assert (code, out) == (2, "")
    assert "quotas.0.client_id: the environment has no variable SECRET" in err


NEVER_READY = 'security_protocol = "SASL_PLAINTEXT"\n'
NOTED = '[quota_admin]\nauthorize = "anyone"\n'


@pytest.mark.parametrize(("strict", "code"), [((), 0), (("--strict",), 3)])
def test_notes_count_with_strict_alone(strict: tuple[str, ...], code: int, file: Path, run: Run) -> None:
    file.write_text(TEXT)
    assert run("check-config", *strict, file)[::2] == (0, "")
    file.write_text(TEXT + NOTED)
    found, out, err = run("check-config", *strict, file)
    assert (found, out.splitlines()[0]) == (code, f"{file}: ok, with 1 note")
    note = "quota_admin.authorize: every client may change quotas; for development only"
    assert err == f"sluice: {file}:14: note: {note}\n"


@pytest.mark.parametrize("strict", [(), ("--strict",)])
def test_what_will_never_be_ready_is_an_error(strict: tuple[str, ...], file: Path, run: Run) -> None:
    file.write_text(TEXT.replace("[[listeners]]", f"{NEVER_READY}[[listeners]]") + NOTED)
    code, out, err = run("check-config", *strict, file)
    assert (code, out) == (2, "")
    lines = [line.removeprefix(f"sluice: {file}:").split(" ")[1] for line in err.splitlines()]
    assert lines == ["note:", "note:", "upstream.sasl:"]


def test_help_tells_exit_codes(run: Run) -> None:
    _, out, _ = run("check-config", "--help")
    assert all(f"exit code {code}" in " ".join(out.lower().split()) for code in (0, 2, 3))


@pytest.mark.parametrize(("more", "key"), [
    ('[quota_store]\nkind = "topic"\nsecret_file = "{0}"\nprevious_secret_file = "{0}"\n', "quota_store.secret_file"),
    ('[usage]\nkind = "topic"\nsecret_file = "{0}"\n', "usage.secret_file"),
    ('[client_quota]\nscope = "fleet"\n[quota_store]\nkind = "topic"\n[fleet]\nsecret_file = "{0}"\n',
     "fleet.secret_file"),
    ('[[upstreams]]\nname = "x"\nbootstrap = ["k:1"]\nsecurity_protocol = "SASL_PLAINTEXT"\n'
     'sasl = {{ mechanism = "PLAIN", username = "u", password_file = "{0}" }}\n', "upstreams.x.sasl.password_file"),
    ('[[upstreams]]\nname = "x"\nbootstrap = ["k:1"]\nsecurity_protocol = "SASL_PLAINTEXT"\n'
     'sasl = {{ mechanism = "OAUTHBEARER", token_file = "{0}" }}\n', "upstreams.x.sasl.token_file"),
    ('[[upstreams]]\nname = "x"\nbootstrap = ["k:1"]\nsecurity_protocol = "SASL_PLAINTEXT"\n'
     'sasl = {{ mechanism = "OAUTHBEARER", token_endpoint = "https://k/t", client_id = "u", '
     'client_secret_file = "{0}" }}\n', "upstreams.x.sasl.client_secret_file"),
])  # fmt: skip
def test_files_that_the_gateway_would_read_are_read(
    more: str, key: str, file: Path, run: Run, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    file.write_text(TEXT + more.format(secret))
    code, out, err = run("check-config", file)
    assert (code, out) == (2, "")
    assert re.search(rf"^sluice: {file}:\d+: {key}: ", err, re.MULTILINE)
    assert "No such file" in err
    secret.write_text("x" * 40)
    secret.chmod(0o640)
    assert str(secret) not in run("check-config", file)[2]
    secret.chmod(0o644)
    code, _, err = run("check-config", "--strict", file)
    assert code == 3
    note = f"{secret} has mode 0644, so all users of this machine may read or change it; run chmod o-rwx {secret}"
    assert f"note: {key}: {note}\n" in err
    assert run("check-config", file)[0] == 0


def test_f19_files_and_tokens_of_the_admin_port_are_looked_at(
    file: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    key = '[[admin.keys]]\nname = "k"\nroles = ["read"]\n'
    file.write_text(f'{TEXT}{key}token_file = "{token}"\n')
    assert run("check-config", file) == (
        2,
        "",
        f"sluice: {file}:16: admin.keys.0.token_file: {token}: No such file or directory\n",
    )
    token.write_text("0123456789abcdef" * 2)
    token.chmod(0o644)
    code, _, err = run("check-config", file)
    assert (code, err.count(f"note: admin.keys.0.token_file: {token} has mode 0644, so all users")) == (0, 1)
    token.write_text("")
    token.chmod(0o600)
    empty = f"admin.keys.0.token_file: {token} has no token, so the key opens nothing; add a line with one"
    code, out, err = run("check-config", file)
    assert (code, err) == (0, f"sluice: {file}:16: note: {empty}\n")
    assert out.startswith(f"{file}: ok, with 1 note\n")
    file.write_text(f'{TEXT}{key}token = "{"0123456789abcdef" * 2}"\n')
    note = (
        'admin.keys.0.token: a token is in this file; use token_file, or take it from a file: token = "${file:/PATH}"'
    )
    assert run("check-config", file)[2] == f"sluice: {file}:16: note: {note}\n"
    monkeypatch.setenv("TOKEN_OF_A_TEST", "0123456789abcdef" * 2)
    file.write_text(f'{TEXT}{key}token = "${{TOKEN_OF_A_TEST}}"\n')
    code, out, err = run("check-config", file)
    assert (code, err) == (0, "")
    assert "variable TOKEN_OF_A_TEST" in out
    assert "0123456789" not in out
    file.write_text(f'{TEXT}[admin.tls]\ncertificate = "{token}"\nkey = "{token}"\n')
    assert f"{file}:14: admin.tls.certificate: " in run("check-config", file)[2]


def test_packages_that_are_not_there_are_found(file: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {name: f'{TEXT}[{name}]\nendpoint = "http://127.0.0.1:1/"\n' for name in ("traces", "metrics")}
    for text in texts.values():
        file.write_text(text)
        assert run("check-config", file)[0] == 0
    monkeypatch.setitem(sys.modules, "gateway.observability.otlp", None)
    for name, text in texts.items():
        file.write_text(text)
        code, _, err = run("check-config", file)
        assert code == 2
        line = text.splitlines().index(f"[{name}]") + 2
        assert err.startswith(f"sluice: {file}:{line}: {name}.endpoint: needs more packages")


def test_f20_a_command_that_lacks_its_packages_gives_the_command_that_installs_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gateway.cli.top_screen", None)
    code, _, err = run("top")
    assert code == 1
    command = shlex.split(err.partition(" is missing: ")[2])
    assert command[:-1] == [sys.executable, "-m", "pip", "install"]
    assert command[-1] in {
        requirement.partition(";")[0] for requirement in requires("sluice") or () if '"top"' in requirement
    }


def test_more_than_this_machine_carries_is_a_note(file: Path, run: Run) -> None:
    file.write_text(TEXT + "[connections]\nmax_connections = 2000000000\n")
    code, _, err = run("check-config", file)
    assert (code, err.count("note: connections.max_connections: 2000000000 and what else there is")) == (0, 1)


def test_certificates_that_can_not_be_used_are_found(file: Path, run: Run) -> None:
    tls = 'security_protocol = "SSL"\ntls = { certificate = "/nowhere.crt", key = "/nowhere.key" }\n'
    file.write_text(TEXT.replace("[[listeners]]\n", f"[[listeners]]\n{tls}"))
    for command in (["check-config"], ["serve", "--config"]):
        code, out, err = run(*command, file)
        assert (code, out) == (2, "")
        assert 'listeners.inside.tls.certificate: "/nowhere.crt" cannot be read' in err
        assert 'listeners.inside.tls.key: "/nowhere.key" cannot be read' in err


def test_columns_line_up_and_numbers_have_no_needless_fraction() -> None:
    assert aligned([("a", "bb", ""), ("ccc", "d", "e")], indent="> ") == ["> a    bb", "> ccc  d   e"]
    assert aligned([]) == []
    assert [number(value) for value in (5.0, 2.5, 12_345_678.0, None)] == ["5", "2.5", "12345678", "-"]
