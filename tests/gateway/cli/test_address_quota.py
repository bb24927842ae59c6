from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.cli.quotas import describe_address
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateSettings

CONFIG = """
[upstream]
bootstrap = ["k:1"]
[[listeners]]
name = "a"
bind = "127.0.0.1:19092"
[[quotas]]
ip = "10.0.0.7"
connection_creation_rate = 50
[[quotas]]
ip = "10.1.0.0/16"
connection_creation_rate = 200
observe = true
[[quotas]]
user = "alice"
producer_byte_rate = 5
"""
DEFAULT = "[[quotas]]\ndefault_ip = true\nconnection_creation_rate = 20\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "sluice.toml"
    file.write_text(CONFIG + DEFAULT)
    return file


@pytest.mark.parametrize(
    ("ip", "limit", "decided_by", "counted_by", "observe"),
    [
        ("10.0.0.7", 50, "ip=10.0.0.7", "10.0.0.7", False),
        ("::ffff:10.0.0.7", 50, "ip=10.0.0.7", "10.0.0.7", False),
        ("10.1.2.3", 200, "ip=10.1.0.0/16", "10.1.0.0/16", True),
        ("10.2.0.1", 20, "ip=<default>", "10.2.0.1", False),
        ("2001:db8::1", 20, "ip=<default>", "2001:db8::/64", False),
    ],
)
def test_address_has_the_rate_of_the_row_that_decides(
    file: Path,
    capsys: pytest.CaptureFixture[str],
    ip: str,
    limit: int,
    decided_by: str,
    counted_by: str,
    observe: bool,
) -> None:
    assert main(["quotas", "--config", str(file), "--ip", ip, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["limit"], told["decided_by"], told["counted_by"]) == (limit, decided_by, counted_by)
    assert told["burst"] == limit * 10
    assert told["observe"] is observe


def test_a_kept_row_of_another_spelling_is_told_by_its_name() -> None:
    row = QuotaEntity(ip="2001:DB8::1")
    limits = Limits()
    limits.put(row, QuotaKey.CONNECTION_CREATION_RATE, 7.0)
    told = describe_address(limits, RateSettings(), "2001:db8::1", ipv6_prefix_bits=128)
    assert (told["limit"], told["decided_by"]) == (7, str(row))


def test_address_without_a_row_is_unlimited(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(CONFIG)
    assert main(["quotas", "--config", str(file), "--ip", "10.2.0.1"]) == 0
    assert "unlimited" in capsys.readouterr().out


def test_people_are_told_who_shares_the_counter(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quotas", "--config", str(file), "--ip", "10.1.2.3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "address     10.1.2.3",
        "quota       connection_creation_rate",
        "limit       200/s, at once up to 2000 after a quiet while; only observed",
        "decided by  ip=10.1.0.0/16",
        "counted by  10.1.0.0/16, all its addresses together",
    ]


def test_list_has_a_column_for_addresses_when_there_are_any(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quotas", "--config", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["USER", "CLIENT-ID", "IP", "QUOTA", "LIMIT", "MODE"]
    assert [line.split()[2] for line in lines[1:]] == ["-", "10.0.0.7", "10.1.0.0/16", "<default>"]


@pytest.mark.parametrize("argv", [["--ip", "localhost"], ["--ip", "10.0.0.1", "--user", "alice"]])
def test_what_is_no_address_alone_is_one_line_and_code_2(
    file: Path, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    assert main(["quotas", "--config", str(file), *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--ip" in line
