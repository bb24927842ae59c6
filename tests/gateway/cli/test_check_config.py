from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.main import main

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


def test_summary_tells_where_clients_come_in_and_where_they_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text(TEXT)
    assert main(["check-config", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        f"{file}: ok",
        "  upstream         kafka-1:9092, [::1]:9092",
        "  listener inside  0.0.0.0:19092, brokers 5..7 at gw:19093..19095",
        "  admin            127.0.0.1:9644",
        "  quotas           1, enforced",
    ]
    assert captured.err == ""


def test_what_is_probably_a_mistake_is_told_and_still_ok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text(TEXT.replace("alice", "<default>"))
    assert main(["check-config", str(file)]) == 0
    assert capsys.readouterr().err == (
        f'sluice: {file}: quotas.0.user: "<default>" is taken as a name; the default is default_user = true\n'
    )


@pytest.mark.parametrize(
    ("mode", "text"), [("observe", "1, all only observed"), ("off", "1, all switched off")]
)
def test_summary_says_when_quotas_are_not_enforced(
    mode: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text(TEXT + f'[enforcement]\nmode = "{mode}"\n')
    assert main(["check-config", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"  quotas           {text}"


def test_certificates_that_can_not_be_used_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sluice.toml"
    tls = 'security_protocol = "SSL"\ntls = { certificate = "/nowhere.crt", key = "/nowhere.key" }\n'
    file.write_text(TEXT.replace("[[listeners]]\n", f"[[listeners]]\n{tls}"))
    assert main(["check-config", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f'{file}: listeners.0.tls.certificate: "/nowhere.crt" can not be read' in captured.err
    assert main(["serve", "--config", str(file)]) == 2
    assert 'listeners.0.tls.certificate: "/nowhere.crt" can not be read' in capsys.readouterr().err
