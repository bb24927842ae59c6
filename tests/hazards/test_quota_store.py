"""What happens to the file of quotas (G): crashes, full and broken disks, damage, and files that are not ours."""

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from gateway.app import _serve
from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.sqlite_format import FORMAT
from quotas.entities import QuotaEntity
from testkit.faults.effects import SmallDisk
from testkit.gateway import gateway_config
from testkit.packages import require_package
from testkit.quota_stores import ALICE, ANYBODY, APP, FETCH, PRODUCE, alteration, opened, sqlite_store
from testkit.raw_client import until

ROOT: Final = Path(__file__).parents[2]
VALUES: Final = {(ALICE, PRODUCE): 1.0, (ANYBODY, FETCH): 2.0, (APP, FETCH): 3.0}


@pytest.fixture
def store_folder(tmp_path: Path) -> Path:
    """A store with three quotas, not open."""

    async def fill() -> None:
        async with opened(store := sqlite_store(tmp_path)):
            await store.write(alteration(*((*at, value) for at, value in VALUES.items())))

    asyncio.run(fill())
    return tmp_path


def killed_with_a_log(folder: Path, *, more: int = 0) -> None:
    """A store with the three quotas, and more, as a process that was killed leaves it: all in the log."""
    program = (
        "import asyncio, os, sys, pathlib\n"
        "from testkit.quota_stores import *\n"
        "async def run():\n"
        "    store = sqlite_store(pathlib.Path(sys.argv[1]))\n"
        "    await store.open(Seen())\n"
        "    store._tidy = lambda: None\n"
        "    await store.write(alteration((ALICE, PRODUCE, 1.0), (ANYBODY, FETCH, 2.0), (APP, FETCH, 3.0),\n"
        f"        *((QuotaEntity(user=f'user-{{n}}'), FETCH, 1.0) for n in range({more}))))\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(run())\n"
    )
    subprocess.run([sys.executable, "-c", program, folder], cwd=ROOT, check=False)
    assert (folder / "quotas.db-wal").stat().st_size > 0


async def refusal(folder: Path) -> str:
    """Why a store is not opened."""
    store = sqlite_store(folder)
    with pytest.raises(StoreError) as caught:
        await store.open(lambda _changes, _version: pytest.fail("quotas were handed over"))
    return str(caught.value)


# -- crashes and disks ---------------------------------------------------------------------------------------
@pytest.mark.integration
def test_g01_g02_g03_g05_crash_failing_call_and_power_cut_leave_the_old_store_or_the_new_one(tmp_path: Path) -> None:
    require_package("strace")
    # Each 240th of the points of the campaign `crash`; a process of its own, since it forks. What was
    # synced is known from the calls, so memory does for a disk.
    memory = Path("/dev/shm")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.crash",
            "--every",
            "240",
            "--output",
            tmp_path,
            "--folder",
            memory if memory.is_dir() else tmp_path,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 stores torn" in done.stdout
    assert "**Power:**" in done.stdout


@pytest.mark.parametrize("left_bytes", [0, 4_096, 8_192, 16_384])
async def test_g02_full_disk_refuses_and_changes_nothing_until_there_is_room(
    small_disk: Callable[[str], SmallDisk], left_bytes: int
) -> None:
    disk = small_disk("256k")
    many = [(QuotaEntity(user=f"user-{number}"), PRODUCE, 1.0) for number in range(300)]
    async with opened(store := sqlite_store(disk.folder)) as seen:
        await store.write(alteration((ALICE, PRODUCE, 1.0)))
        disk.fill(left_bytes)
        for _ in range(3):
            with pytest.raises(StoreError, match="could not be written"):
                await store.write(alteration(*many))
            assert seen.values == {(ALICE, PRODUCE): 1.0}
        disk.free()
        assert await store.write(alteration(*many)) == 2
        assert len(seen.values) == 301
    async with opened(sqlite_store(disk.folder)) as again:
        assert again.values == seen.values


@pytest.mark.slow
@pytest.mark.parametrize("left_bytes", [0, 8_192])
@pytest.mark.asyncio
async def test_l03_store_on_a_full_disk_is_read_and_is_written_as_soon_as_there_is_room(
    small_disk: Callable[[str], SmallDisk], left_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk("256k")
    monkeypatch.setattr("gateway.quota_admin.store.sqlite_store._TRY_AGAIN_S", 0.05)
    # What is in the log needs more room in the file.
    killed_with_a_log(disk.folder, more=200)
    disk.fill(left_bytes)
    async with opened(store := sqlite_store(disk.folder)) as seen:
        values = dict(seen.values)
        assert len(values) == 203
        assert values.items() >= VALUES.items()
        assert (store.version, len(await store.history(10))) == (1, 10)
        with pytest.raises(StoreError, match="can't be written for now"):
            await store.write(alteration((ALICE, PRODUCE, None)))
        assert seen.values == values
        disk.free()
        await until(lambda: store.read_only is None)
        assert await store.write(alteration((ALICE, PRODUCE, 4.0))) == 2
        assert (await store.history(1))[0].new == 4.0
    async with opened(sqlite_store(disk.folder)) as again:
        assert again.values == values | {(ALICE, PRODUCE): 4.0}


# -- files that are not what they should be ------------------------------------------------------------------
def _truncated(size: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        os.truncate(path, int(size if size > 1 else path.stat().st_size * size))

    return damage


def _header(at: int, value: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(value.to_bytes(4, "big"))

    return damage


def _foreign_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE quotas (entity, key, value)")
    database.close()


def _another_store(path: Path) -> None:
    async def make() -> None:
        async with opened(sqlite_store(path.parent / "other")):
            pass

    asyncio.run(make())
    shutil.move(path.parent / "other" / "quotas.db", path)


def _edited(statement: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with sqlite3.connect(path) as database:
            database.execute(statement)
        database.close()

    return damage


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        pytest.param(_truncated(0), "damaged: it is empty", id="empty"),
        pytest.param(_truncated(50), "damaged: it is no SQLite file", id="first bytes"),
        pytest.param(_truncated(4096), "damaged", id="first page"),
        pytest.param(_truncated(0.5), "damaged", id="half"),
        pytest.param(lambda path: path.write_bytes(b"quotas:\n" * 999), "no SQLite file", id="text"),
        pytest.param(_header(60, FORMAT + 1), "written by a newer version of sluice", id="future"),
        pytest.param(_header(68, 7), "belongs to another program", id="mark"),
        pytest.param(_foreign_database, "belongs to another program", id="foreign"),
        pytest.param(lambda path: path.unlink(), "is missing, and there was one", id="deleted"),
        pytest.param(_another_store, "is another store", id="swapped"),
        pytest.param(_edited("DELETE FROM quotas"), "checksum", id="rows gone"),
        pytest.param(_edited("UPDATE quotas SET value = value + 1"), "checksum", id="values changed"),
        pytest.param(_edited("UPDATE quotas SET owner = 'apply'"), "checksum", id="owner changed"),
        pytest.param(_edited("UPDATE quotas SET owner = 'nobody'"), "damaged", id="no owner"),
        pytest.param(_edited("UPDATE state SET version = 99"), "checksum", id="version changed"),
        pytest.param(_edited("DELETE FROM state"), "does not say its version", id="state gone"),
        pytest.param(_edited("DROP TABLE state"), "damaged", id="table gone"),
    ],
)
def test_g04_file_that_can_not_be_trusted_is_refused_and_left_alone(
    store_folder: Path, damage: Callable[[Path], None], text: str
) -> None:
    path = store_folder / "quotas.db"
    damage(path)
    before = path.read_bytes() if path.exists() else None
    told = asyncio.run(refusal(store_folder))
    assert text in told
    assert str(path) in told
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.slow
def test_g04_flipped_bit_is_refused_or_changes_nothing(store_folder: Path) -> None:
    path = store_folder / "quotas.db"
    sound = path.read_bytes()
    dice = random.Random(4)
    refused = 0

    async def look() -> bool:
        try:
            async with opened(store := sqlite_store(store_folder)) as seen:
                assert (seen.values, store.version) == (VALUES, 1)
        except StoreError:
            return False
        return True

    used = [at for at, byte in enumerate(sound) if byte]
    for _ in range(250):
        at, bit = dice.choice(used), dice.randrange(8)
        path.write_bytes(sound[:at] + bytes([sound[at] ^ (1 << bit)]) + sound[at + 1 :])
        for leftover in ("quotas.db-wal", "quotas.db-shm"):
            (store_folder / leftover).unlink(missing_ok=True)
        refused += not asyncio.run(look())
    # Most bytes in use are names, values and pointers; those of the history are not summed up.
    assert refused > 100


def test_g04_store_that_was_never_finished_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "quotas.db.new").write_bytes(b"half")

    async def look() -> None:
        async with opened(sqlite_store(tmp_path)) as seen:
            assert seen.values == {}

    asyncio.run(look())
    assert not (tmp_path / "quotas.db.new").exists()


@pytest.mark.slow
def test_f18_lock_ends_with_its_process(store_folder: Path) -> None:
    program = (
        "import asyncio, os, sys, pathlib\n"
        "from testkit.quota_stores import Seen, sqlite_store\n"
        "asyncio.run(sqlite_store(pathlib.Path(sys.argv[1])).open(Seen()))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, store_folder], cwd=ROOT, check=False)
    assert ended.returncode == -9

    async def look() -> None:
        async with opened(sqlite_store(store_folder)) as seen:
            assert seen.values == VALUES

    asyncio.run(look())


# -- a disk that can't be written ----------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("log_left", [False, True])
def test_g18_read_only_disk_serves_the_quotas_and_refuses_alterations(
    store_folder: Path, log_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The rest of the disk may be as it is.
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")

    async def look(folder: Path) -> None:
        async with opened(store := sqlite_store(folder)) as seen:
            assert (seen.values, store.version) == (VALUES, 1)
            assert len(await store.history(10)) == 3
            with pytest.raises(StoreError, match="Read-only file system"):
                await store.write(alteration((ALICE, PRODUCE, None)))
            assert seen.values == VALUES

    folder = store_folder
    if log_left:
        folder = store_folder / "killed"
        killed_with_a_log(folder)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("may not mount")
    if subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False).returncode:
        pytest.skip("may not mount")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        asyncio.run(look(folder))
    finally:
        subprocess.run(["umount", folder], check=True)


# -- in a gateway --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("signal_handlers")
async def test_g04_gateway_with_a_damaged_store_ends_with_one_line_and_binds_nothing_for_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quotas.db").write_bytes(b"")
    config = gateway_config([9], quota_store={"kind": "sqlite", "data_dir": str(tmp_path)})
    assert await _serve(config, "listening", None) == 2
    out, err = capsys.readouterr()
    assert "listening" not in out.split("event=")[0]
    assert err.startswith(f"sluice: quota store: {tmp_path}/quotas.db is damaged: it is empty")
