"""An upgrade from a released version: its configuration and its store, started by this one."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from gateway.quota_admin.store.sqlite_format import FORMAT
from testkit import wire
from testkit.admin_commands import command
from testkit.broker import ScriptedBroker
from testkit.gateway import HOST, free_ports, serving

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def configuration_of(version: str, folder: Path, broker: int) -> tuple[Path, int, int]:
    """The file in a folder, with ports that are free; the port of its first listener, and its admin port."""
    first = free_ports(16, besides=[broker])
    text = (GOLDEN / f"config_{version}" / "full.toml").read_text()
    for old, new in {
        '["127.0.0.1:9092", "[::1]:9092"]': f'["{HOST}:{broker}"]',
        "127.0.0.1:19092": f"{HOST}:{first}",
        "= 19093 ": f"= {first + 1}",
        "broker_ports = 100": "broker_ports = 4",
        "0.0.0.0:29092": f"{HOST}:{first + 5}",
        "= 29100": f"= {first + 6}",
        "127.0.0.1:9644": f"{HOST}:{first + 9}",
        '"sluice-data"': f'"{folder / "sluice-data"}"',
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file = folder / "sluice.toml"
    file.write_text(text)
    shutil.copytree(GOLDEN / f"quota_store_{version}", folder / "sluice-data")
    return file, first, first + 9


async def sluice(*arguments: object) -> str:
    code, text = await command(*arguments)
    assert code == 0, text
    return text


@pytest.mark.parametrize(
    ("version", "sources", "in_file"),
    [("0.1.0", ("store", "store", "store"), 13), ("0.2.0", ("store: api", "store: apply", "store: set"), 33)],
)
async def test_gateway_starts_with_the_configuration_and_the_store_of(
    version: str, sources: tuple[str, ...], in_file: int, tmp_path: Path
) -> None:
    async with ScriptedBroker() as broker:
        file, port, admin = configuration_of(version, tmp_path, broker.port)
        assert f"{file}: ok" in await sluice("check-config", file)
        async with serving(file, port, admin) as gateway:
            quotas = await sluice("quotas", "--admin", f"http://{HOST}:{admin}")
            rows = [" ".join(cell for cell in line.split() if cell != "-") for line in quotas.splitlines()]
            assert [row for row in rows if "store" in row] == [
                f"alice producer_byte_rate 1048576 B/s enforce {sources[0]}",
                f"app consumer_byte_rate 2097152 B/s enforce {sources[1]}",
                f"<default> request_percentage 33.3 % observe {sources[2]}",
            ]
            assert sum(row.endswith(" file") for row in rows) == in_file
            async with await gateway.connect() as client:
                await client.send(wire.request("ApiVersions", 3, correlation_id=7, client_id="app"))
                assert wire.correlation_id_of(await client.receive_frame()) == 7
    with sqlite3.connect(tmp_path / "sluice-data" / "quotas.db") as database:
        assert database.execute("PRAGMA user_version").fetchone() == (FORMAT,)
