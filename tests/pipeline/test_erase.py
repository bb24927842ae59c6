"""A client erased: what is left is as if it had never been there, whatever happens meanwhile."""

import fcntl
import gzip
import json
import os
import random
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipeline.cli import main
from pipeline.client_tables import making
from pipeline.client_tables.tables import clients_table
from pipeline.erase import erasure, leftovers, results, tables, usage_files
from pipeline.erase.client import Client
from pipeline.errors import Exit, JobError
from pipeline.ingest import writer
from pipeline.jobs import arguments
from pipeline.maintenance import compaction
from pipeline.maintenance.compaction import compact
from pipeline.maintenance.status import status
from pipeline.plans.changes import Change, Revert
from pipeline.plans.plan import Plan, TooLittle
from pipeline.report.report import make
from pipeline.storage.compacted_days import published_days
from pipeline.storage.raw_table import raw_table
from pipeline.storage.tables import Table
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.usage_record import hashed_name
from testkit.pipeline.local_session import LocalSession, compact_all, contents, ingest_files, known, tables_of
from testkit.pipeline.searching import files_with
from testkit.pipeline.usage_lines import BOOT, DAY, LONG_AFTER, event, line, place, row

DATE, NEXT = "2026-09-28", "2026-09-29"
MADE = ("compacted", "clients", "client_use")
OTHERS = ["app", "appliance", "Søren", 'q"uo<te&s', "10.0.0.70"]
NOW = DAY + 5 * 86_400

Rows = list[list[Any]]


class History:
    """Usage files of two gateways on two days, made at random and without the client where that is asked for."""

    def __init__(self, seed: int, /, *, user: str = "", client_id: str = "", ip: str = "") -> None:
        self._seed = seed
        self._names = {"user": user, "client_id": client_id, "ip": ip}

    def is_erased(self, user: str, client_id: str, api: str) -> bool:
        given = {name: value for name, value in self._names.items() if value}
        there = {"user": user, "client_id": "" if api == "connect" else client_id, "ip": ""}
        if api == "connect":
            there["ip"] = client_id
        return all(there[name] == value for name, value in given.items())

    def files(self, folder: Path, *, without: bool) -> list[list[Path]]:
        """The files, batch by batch."""
        chance = random.Random(self._seed)
        batches = []
        for number in range(2):
            batch = []
            for gw in ("a", "b"):
                for day in (0, 1):
                    lines = [self._line(chance, gw, day, 3 * number + at, without) for at in range(3)]
                    torn = b'{"half of a line with "' + "".join(self._names.values()).encode()
                    lines.insert(2, b"{}" if without else torn)
                    batch.append(place(folder, f"usage-{gw}-{BOOT}-{number}{day}.jsonl.gz", *lines))
            batches.append(batch)
        return batches

    def _line(self, chance: random.Random, gw: str, day: int, seq: int, without: bool) -> bytes:
        users, client_ids, ips = (
            [*others, *([self._names[name]] if self._names[name] else [])]
            for name, others in (("user", ["alice", ""]), ("client_id", OTHERS), ("ip", ["10.0.0.1", "::1"]))
        )
        rows, events, topics = [], [], []
        for _ in range(chance.randrange(8)):
            api = chance.choice(["produce", "fetch", "request", "mutation", "connect"])
            user = "" if api == "connect" else chance.choice(users)
            client_id = chance.choice(ips if api == "connect" else client_ids)
            node = chance.randrange(2) if api in ("produce", "fetch") else -1
            limits = {"quota": chance.choice([None, 5e5]), "muted_ms": chance.randrange(3)}
            units, taken = chance.randrange(1, 10**6), chance.randrange(5)
            if without and self.is_erased(user, client_id, api):
                continue
            rows.append(row(client_id, units, user=user, api=api, node=node, **limits))
            topics.append(["plain", user, client_id, api, node, "orders", 1, 2, 3])
            if api == "mutation":
                events.append(event(client_id, 7, taken, user=user))
        more: dict[str, Any] = {"topics": topics}
        if self._seed % 2:
            more["scope"] = "fleet:both"
        number = day * 1_000 + seq
        return line(number, *rows, events=tuple(events), gw=gw, ts=DAY + day * 86_400 + seq, **more)

    def make(self, root: Path, *, without: bool = False) -> str:
        """A folder with all of it ingested and compacted."""
        out = str(root / "out")
        for batch in self.files(root / "in", without=without):
            ingest_files(out, root / "checkpoint", *batch)
        compact_all(out)
        return out


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock at which all days are closed, and no JVM."""
    monkeypatch.setattr(arguments.time, "time", lambda: NOW)
    monkeypatch.setattr("pipeline.spark.session.open_session", lambda *_, **__: LocalSession())


def erase(root: Path, *more: str) -> int:
    """Runs the command."""
    return main(["erase", "--out", str(root / "out"), "--usage", str(root / "in"), *more])


def results_of(out: str) -> tuple[Any, ...]:
    """The quotas of a plan, and the clients of a report."""
    file = Path(out).parent / "plan.json"
    assert main(["recommend", "--out", out, "--history", "2", "--allow-gaps", "--plan", str(file)]) == 0
    plan = json.loads(file.read_text())
    report = make(LocalSession(), out, LONG_AFTER)
    return plan["entries"], plan["capacity"], report.clients, report.totals()


def lines_of(folder: Path) -> dict[str, list[bytes]]:
    """The lines of usage files that can be read."""
    return {
        path.name: [text for text in gzip.decompress(path.read_bytes()).splitlines() if text.startswith(b'{"v":1')]
        for path in folder.iterdir()
    }


# Client ids and addresses are erased by the tests below, too.
NAMES = [
    pytest.param("--client-id", "mallory", {"client_id": "mallory"}, marks=pytest.mark.campaign),
    ("--user", "Frau Öz\"<&'\\", {"user": "Frau Öz\"<&'\\"}),
    pytest.param("--ip", "2001:DB8::0:1", {"ip": "2001:db8::1"}, marks=pytest.mark.campaign),
]


@pytest.mark.slow
@pytest.mark.parametrize(("option", "name", "names"), NAMES)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.campaign)])
def test_all_is_as_if_the_client_had_never_been_there(
    tmp_path: Path, option: str, name: str, names: dict[str, str], seed: int
) -> None:
    history = History(seed, **names)
    out = history.make(tmp_path / "erased")
    never = history.make(tmp_path / "never", without=True)
    (searched,) = names.values()
    assert len(files_with(tmp_path / "erased", searched)) > 10
    before = contents(out)
    for found in (Exit.DONE, Exit.NOTHING_TO_DO):
        assert erase(tmp_path / "erased", option, name, "--yes") == found
    assert files_with(tmp_path / "erased", searched) == []
    after, wanted = contents(out), contents(never)
    torn = [each for each in wanted["raw"] if "'torn'" in each]
    assert len(torn) == 8
    assert after == {**wanted, "raw": sorted(set(wanted["raw"]) - set(torn))}
    assert set(after["compacted"]) < set(before["compacted"])
    assert known(out) == known(never)
    assert lines_of(tmp_path / "erased" / "in") == lines_of(tmp_path / "never" / "in")
    assert results_of(out) == results_of(never)
    # Ingest, compact and all others continue.
    for root, each in ((tmp_path / "erased", out), (tmp_path / "never", never)):
        late = place(root / "late", "usage-a-late.jsonl.gz", line(900, row("app", 5), ts=DAY + 900))
        ingest_files(each, root / "checkpoint", late)
        compact_all(each)
    assert contents(out, *MADE) == contents(never, *MADE)
    assert results_of(out) == results_of(never)
    found = status(out, LONG_AFTER)
    assert not any(day["late"] for day in found["days"])
    assert sum(day["erased_rows"] for day in found["days"]) > 0
    assert known(out)[0].rows == sum(day["rows"] for day in found["days"])


def made_of_lines(root: Path, *lines: bytes, out: str = "") -> str:
    """A folder with these lines ingested and compacted."""
    out = out or str(root / "out")
    ingest_files(out, root / "checkpoint", place(root / "in", f"usage-a-{BOOT}-0.jsonl.gz", *lines))
    compact_all(out)
    return out


@pytest.mark.slow
def test_user_and_client_id_together_mean_rows_with_both(tmp_path: Path) -> None:
    names = [("mallory", "tool"), ("mallory", "app"), ("alice", "tool"), ("alice", "app")]
    out = made_of_lines(
        tmp_path, *(line(seq, row(client_id, user=user)) for seq, (user, client_id) in enumerate(names))
    )
    before = contents(out, "compacted")["compacted"]
    assert erase(tmp_path, "--user", "mallory", "--client-id", "tool", "--yes") == 0
    left = [each for each in before if not ("'mallory'" in each and "'tool'" in each)]
    assert len(left) == 3
    assert contents(out, "compacted")["compacted"] == left
    clients = [each for each in contents(out, "clients")["clients"] if "'table': 'client_day'" in each]
    for user, client_id in names:
        named = [f"'user': '{user}'" in each and f"'client_id': '{client_id}'" in each for each in clients]
        assert any(named) == ((user, client_id) != names[0])


@pytest.mark.slow
def test_a_client_id_that_looks_like_an_address_is_not_the_address(tmp_path: Path) -> None:
    address = "10.0.0.70"
    out = made_of_lines(tmp_path, line(0, row(address), row(address, user="", api="connect"), row("app")))
    assert erase(tmp_path, "--ip", f"::ffff:{address}", "--yes") == 0
    (left,) = (each for each in contents(out, "compacted")["compacted"] if f"'{address}'" in each)
    assert "'api': 'produce'" in left
    assert erase(tmp_path, "--client-id", address, "--yes") == 0
    assert files_with(tmp_path, address) == []


@pytest.mark.parametrize(
    ("said", "recorded"),
    [("010.1.2.3", "10.1.2.3"), ("127.1", "127.0.0.1"), ("[::1]", "::1"), ("fe80::1%eth0", "fe80::1%eth1")],
)
def test_an_address_is_found_in_every_spelling_that_quotas_take(said: str, recorded: str) -> None:
    assert Client.named(user=None, client_id=None, ip=said).is_row("", recorded, "connect")


def test_an_address_without_a_quota_is_found_in_a_plan() -> None:
    client = Client.named(user=None, client_id=None, ip="10.0.0.1")
    assert client.is_told("connect of ip=10.0.0.1")
    assert client.is_told("connect of ip=::ffff:10.0.0.1")
    others = ("connect of ip=10.0.0.10", "produce of client-id=10.0.0.1", "produce of user=ip=10.0.0.1")
    assert not any(map(client.is_told, others))
    assert not Client.named(user=None, client_id="10.0.0.1", ip=None).is_told("connect of ip=10.0.0.1")


def test_a_name_is_shown_as_plans_write_it() -> None:
    def is_shown(page: str, **named: str) -> bool:
        nothing = dict.fromkeys(("user", "client_id", "ip"))
        return Client.named(**(nothing | named)).is_shown(page.encode())

    assert is_shown("<td>user=eve,client-id=a-b</td>", user="eve", client_id="a-b")
    assert is_shown("<td>user=q&#34;uo&lt;te&amp;s</td>", user='q"uo<te&s')
    assert is_shown("no quota: produce of user=Søren (seen for only 5 s)", user="Søren")
    assert is_shown("<td>ip=10.0.0.1</td>", ip="10.0.0.1")
    assert not is_shown("<td>ip=10.0.0.17</td>", ip="10.0.0.1")
    # Words of the page, parts of other names, and names of another kind.
    words = "<style>.client {width: 1px}</style><table class=client>client eve 1<td>client-id=client-2,user=client"
    for name in ("client", "eve", "1", "table", "width"):
        assert not is_shown(words, client_id=name)


@pytest.mark.slow
def test_a_report_goes_if_only_its_plan_shows_the_client(root: Path) -> None:
    write_results(root)
    out, plan = str(root / "out"), root / "out/results/plan/run=1/plan.json"
    made = Plan.from_json(plan.read_bytes())
    entity = QuotaEntity(user="gone", client_id="c-7")
    address = TooLittle("connect of ip=10.9.9.9", "2026-09-28 left out for a")
    given = root / "given.json"
    shown = replace(made.entries[0], entity=entity)
    given.write_text(replace(made, entries=(shown,), too_little=(address,)).to_json())
    for name, *options in (("gone", "--client-id", "c-7", "--user", "gone"), ("address", "--ip", "10.9.9.9")):
        report = root / "out/results/report" / name
        assert main(["report", "--out", out, "--plan", str(given), "--to-dir", str(report)]) == 0
        assert options[1] not in (report / "report.json").read_text()
        assert options[1] in (report / "index.html").read_text()
        assert erase(root, *options, "--yes") == 0
        assert not list(report.iterdir())
        assert (root / "out/results/report/run=1/report.json").exists()


@pytest.mark.slow
def test_hashed_names_are_found_by_the_salt(tmp_path: Path) -> None:
    salt = b"s" * 32
    (tmp_path / "salt").write_bytes(salt)
    hashed = hashed_name("mallory", salt)
    out = made_of_lines(tmp_path, line(0, row(user=hashed), row()))
    assert erase(tmp_path, "--user", "mallory", "--yes") == Exit.NOTHING_TO_DO
    assert any(hashed in each for each in contents(out, "compacted")["compacted"])
    assert erase(tmp_path, "--user", "mallory", "--salt-file", str(tmp_path / "salt"), "--yes") == 0
    assert files_with(tmp_path, hashed) == []


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a client called mallory."""
    root = tmp_path_factory.mktemp("template")
    History(7, client_id="mallory").make(root)
    return root


@pytest.fixture(scope="module")
def small_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a client called mallory and another one."""
    root = tmp_path_factory.mktemp("small")
    made_of_lines(root, line(0, row("mallory"), row()))
    return root


@pytest.fixture
def small(small_template: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    shutil.copytree(small_template, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return tmp_path


MALLORY = Client.named(user=None, client_id="mallory", ip=None)


@pytest.mark.slow
def test_without_yes_it_only_says_what_there_is(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(str(root / "out")), lines_of(root / "in")
    versions = [table.read().version for table in tables_of(str(root / "out")).values()]
    assert erase(root, "--client-id", "mallory") == 0
    said = capsys.readouterr().out
    raw = [each for each in before[0]["compacted"] if "'mallory'" in each]
    assert f"compacted {DATE}: {sum(DATE.replace('-', ', ').replace('09', '9') in each for each in raw)} rows" in said
    assert "raw without a day: 8 lines that could not be read" in said
    assert f"usage {root / 'in'}: " in said
    assert "8 files" in said
    assert "this command does not reach:\n  the usage topic" in said
    assert said.endswith("nothing was erased: say --yes\n")
    assert (contents(str(root / "out")), lines_of(root / "in")) == before
    assert [table.read().version for table in tables_of(str(root / "out")).values()] == versions
    assert erase(root, "--client-id", "mallory", "--yes") == 0
    said = capsys.readouterr().out
    assert f"tables of clients made again of what is left: {DATE}, {NEXT}" in said
    assert said.endswith("erased; earlier versions of the tables are deleted too (retention: 0 hours)\n")
    assert erase(root, "--client-id", "mallory") == Exit.NOTHING_TO_DO
    assert capsys.readouterr().out.endswith("nothing to erase\n")


@pytest.mark.parametrize(("given", "fault"), [
    ([], "whose rows? Say --user, --client-id, both, or --ip"),
    (["--user", "a", "--ip", "10.0.0.1"], "erase them one by one"),
    (["--client-id", ""], "an empty name is that of all clients without one"),
    (["--client-id", "~other"], "~other is the sum of many clients"),
    (["--ip", "localhost"], "--ip localhost: no address"),
    (["--user", "a", "--usage", "/nowhere"], "/nowhere is not there"),
    (["--user", "a", "--salt-file", "/nowhere"], "/nowhere"),
    (["--user", "a"], "nothing has been ingested there yet"),
])  # fmt: skip
def test_what_is_no_client_is_refused(
    tmp_path: Path, given: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["erase", "--out", str(tmp_path / "out"), *given, "--yes"])
    assert code == Exit.NOT_YET_COMPLETE if "ingested" in fault else code in (Exit.WRONG_ARGUMENTS, Exit.FAILED)
    assert fault in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# -- plans, revert files, simulations and reports --------------------------------------------------------------------
def write_results(root: Path) -> None:
    """Results of all jobs, of the folder and elsewhere."""
    out = str(root / "out")
    plan = root / "out/results/plan/run=1/plan.json"
    options = ["--history", "2", "--allow-gaps", "--default-plus-overrides", "2", "--plan", str(plan)]
    assert main(["recommend", "--out", out, *options]) == 0
    entity, other = QuotaEntity(user="alice", client_id="mallory"), QuotaEntity(user="alice", client_id="app")
    made = Plan.from_json(plan.read_bytes())
    of_client, of_other = (replace(made.entries[0], entity=each) for each in (entity, other))
    default = replace(
        made.entries[0],
        entity=QuotaEntity(user=DEFAULT, client_id=DEFAULT),
        reason=f"covers 4 clients; the largest, {entity}: 5 B/s",
    )
    names = ("produce of user=alice,client-id=mallory", "fetch of client-id=x,y")
    too_little = tuple(TooLittle(name, "2026-09-28 left out for a") for name in names)
    plan.write_text(replace(made, entries=(of_client, of_other, default), too_little=too_little).to_json())
    changes = [Change(each, QuotaKey.PRODUCER_BYTE_RATE, None, 5.0) for each in (entity, other)]
    revert = root / "elsewhere" / "plan.revert.json"
    revert.parent.mkdir()
    revert.write_text(Revert("2026-11-21T21:00:00Z", "gateway:9092", tuple(changes)).to_json())
    report = root / "out/results/report/run=1"
    assert main(["report", "--out", out, "--to-dir", str(report)]) == 0
    shutil.copytree(report, root / "elsewhere" / "report")
    simulated = root / "out/results/sim/run=1/part-0.parquet"
    simulated.parent.mkdir(parents=True)
    names = ["mallory", "app", "mallory"]
    rows = {"user": ["alice"] * 3, "client_id": names, "api": ["produce"] * 3, "quota": [1.0, 2.0, 3.0]}
    pq.write_table(pa.table(rows), simulated)
    (simulated.parent / ".part-0.parquet.crc").write_bytes(b"sum of what was there")
    (root / "out/results/backtest/run=1").mkdir(parents=True)
    (root / "out/results/backtest/run=1/backtest.json").write_text('{"rules": []}')


@pytest.mark.slow
def test_results_lose_the_client_and_keep_all_others(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(root)
    capsys.readouterr()
    elsewhere = [str(root / "elsewhere" / name) for name in ("plan.revert.json", "report")]
    options = ["--results", elsewhere[0], "--results", elsewhere[1]]
    assert erase(root, "--client-id", "mallory", *options, "--yes") == 0
    said = capsys.readouterr().out
    assert f"{root}/out/results/plan/run=1/plan.json: 1 quotas, 2 notes" in said
    assert f"{root}/elsewhere/plan.revert.json: 1 quotas" in said
    assert f"{root}/out/results/sim/run=1/part-0.parquet: 2 rows" in said
    assert f"{root}/elsewhere/report/report.json: 1 report, which goes as a whole" in said
    assert files_with(root, "mallory") == []
    plan = Plan.from_json((root / "out/results/plan/run=1/plan.json").read_bytes())
    assert [str(each.entity) for each in plan.entries] == [
        "user=alice,client-id=app",
        "user=<default>,client-id=<default>",
    ]
    assert plan.entries[1].reason == "covers 4 clients"
    assert [each.client for each in plan.too_little] == ["fetch of client-id=x,y"]
    revert = Revert.from_json((root / "elsewhere/plan.revert.json").read_bytes())
    assert [str(each.entity) for each in revert.changes] == ["user=alice,client-id=app"]
    assert pq.read_table(root / "out/results/sim/run=1").select(["client_id", "quota"]).to_pylist() == [
        {"client_id": "app", "quota": 2.0}
    ]
    left = sorted(path.name for path in (root / "out/results").rglob("*") if path.is_file())
    assert left == ["backtest.json", "part-0.parquet", "plan.json"]
    assert not list((root / "elsewhere/report").iterdir())


@pytest.mark.slow
def test_results_without_the_client_keep_their_bytes_and_what_cannot_be_read_is_said(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(root)
    (root / "out/results/plan/run=1/other.json").write_text('{"format": "sluice-plan", "version": 9, "of": "eve"}')
    (root / "out/results/sim/run=1/torn.parquet").write_bytes(b"PAR1")
    files = {path: path.read_bytes() for path in (root / "out/results").rglob("*") if path.is_file()}
    assert erase(root, "--user", "eve", "--yes") == Exit.FAILED
    said = capsys.readouterr().out
    assert "can't be erased: " in said
    assert "other.json can't be read or written: version: this program reads 1, not 9" in said
    assert "torn.parquet can't be read or written" in said
    assert {path: path.read_bytes() for path in files} == files


# -- usage files -----------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_file_that_a_gateway_writes_is_left_and_said_and_one_that_it_left_is_erased(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = line(1, row("mallory"), row("app")) + b"\n" + line(2, row("app")) + b"\n"
    parts = [small / "in" / f".usage-c-{BOOT}-000000000{n}.jsonl.gz.part" for n in range(2)]
    for part in parts:
        part.write_bytes(gzip.compress(lines)[:-8])
    drafts = [part.with_name(f"{part.name}.whole") for part in parts]
    for draft in drafts:
        draft.write_bytes(gzip.compress(lines))
    with parts[0].open("rb") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        assert erase(small, "--client-id", "mallory", "--yes") == Exit.FAILED
    said = capsys.readouterr().out
    assert f"can't be erased: {parts[0]} is still written by a gateway: erase again when it is complete" in said
    assert files_with(small, "mallory") == [f"in/{parts[0].name}", f"in/{drafts[0].name}"]
    assert gzip.decompress(parts[1].read_bytes()) == line(1, row("app")) + b"\n" + line(2, row("app")) + b"\n"
    assert (drafts[0].exists(), drafts[1].exists()) == (True, False)
    # The gateway has ended.
    assert erase(small, "--client-id", "mallory", "--yes") == 0
    assert not drafts[0].exists()
    assert b"mallory" not in gzip.decompress(parts[0].read_bytes())


@pytest.mark.slow
def test_usage_files_keep_owner_rights_and_time_and_lines_of_others_their_bytes(small: Path) -> None:
    plain = small / "in" / "older.jsonl"
    spaced = json.dumps(json.loads(line(7, row("app")))).encode()
    newer = orjson.dumps({**json.loads(line(9, row("app"))), "later": [["mallory", 1], ["app", 2]], "note": "x"})
    plain.write_bytes(b"\n".join([spaced, line(8, row("mallory")), newer, b"mallory, torn"]))
    plain.chmod(0o640)
    os.utime(plain, ns=(5, 7))
    damaged = small / "in" / "damaged.jsonl.gz"
    packed = zlib.compressobj(wbits=31)
    text = line(1, row("app")) + b"\n" + line(2, row("mallory"))
    damaged.write_bytes(packed.compress(text) + packed.flush(zlib.Z_SYNC_FLUSH))
    untouched = place(small / "in", "usage-z-1-1.jsonl.gz", line(3, row("mallory-2"), row("app")))
    before = untouched.stat()
    assert erase(small, "--client-id", "mallory", "--yes") == 0
    there = plain.stat()
    assert (there.st_mode & 0o777, there.st_mtime_ns) == (0o640, 7)
    kept = orjson.dumps({**json.loads(newer), "later": [["app", 2]]})
    assert plain.read_bytes() == b"\n".join([spaced, line(8), kept, b"", b""])
    assert gzip.decompress(damaged.read_bytes()) == line(1, row("app")) + b"\n"
    assert (untouched.stat().st_ino, untouched.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not list((small / "in").glob(".*"))


@pytest.mark.slow
def test_a_file_that_is_completed_meanwhile_is_found_under_its_name(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = small / "in" / f".usage-c-{BOOT}-0000000000.jsonl.gz.part"
    part.write_bytes(gzip.compress(line(1, row("mallory")) + b"\n"))
    complete = part.with_name(part.name[1:].removesuffix(".part"))
    real = usage_files._usage_files

    def completed(folder: Path) -> Iterator[Path]:
        found = list(real(folder))
        if part.exists():
            part.rename(complete)
        return iter(found)

    monkeypatch.setattr(usage_files, "_usage_files", completed)
    assert erase(small, "--client-id", "mallory", "--yes") == 0
    assert gzip.decompress(complete.read_bytes()) == line(1) + b"\n"


# -- other writers and other jobs ------------------------------------------------------------------------------------
@pytest.mark.slow
def test_what_other_writers_have_left_of_the_client_goes_too(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(root / "out")
    wanted = root / "wanted"
    shutil.copytree(root / "out", wanted / "out")
    assert main(["erase", "--out", str(wanted / "out"), "--client-id", "mallory", "--yes"]) == 0
    for name in ("raw", "compacted", "clients", "client_use"):
        folder = f"{out}/{name}"
        DeltaTable(folder).optimize.compact()
        DeltaTable(folder).create_checkpoint()
        DeltaTable(folder).optimize.z_order(["client_id"])
        # Sums of the tables of clients have it still.
        some = " and api = 'fetch'" if name in ("raw", "compacted") else ""
        DeltaTable(folder).delete(f"client_id = 'mallory'{some}")
        rows = pa.table({"user": ["alice"], "client_id": ["mallory"], "api": ["fetch"]})
        for left in (f"date={DATE}/part-of-an-attempt.parquet", "_change_data/cdc-1.parquet"):
            Path(folder, left).parent.mkdir(exist_ok=True)
            pq.write_table(rows, f"{folder}/{left}")
        pq.write_table(rows.set_column(1, "client_id", pa.array(["eve"])), f"{folder}/under-way.parquet")
    assert files_with(root / "out" / "raw" / "_delta_log", "mallory")
    assert erase(root, "--client-id", "mallory", "--yes") == 0
    assert files_with(root / "out", "mallory") == []
    after, expected = contents(out), contents(str(wanted / "out"))
    # How many rows a line had is not known of rows that others have deleted.
    assert set(after["raw"]) - heads(after["raw"]) == set(expected["raw"]) - heads(expected["raw"])
    assert {**after, "raw": []} == {**expected, "raw": []}
    assert known(out) == known(str(wanted / "out"))
    assert Path(out, "raw", "under-way.parquet").exists()
    assert re.search(r"raw: \d+ replaced files, \d+ files of the log", capsys.readouterr().out)
    # Other engines read the table, and the log continues.
    assert DeltaTable(f"{out}/raw").count() == len(contents(out)["raw"]) + 1
    assert results_of(out) == results_of(str(wanted / "out"))


@pytest.mark.slow
def test_a_file_below_a_table_that_cannot_be_read_is_said(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torn = small / f"out/raw/date={DATE}/torn.parquet"
    torn.write_bytes(b"PAR1 mallory")
    assert erase(small, "--client-id", "mallory", "--yes") == Exit.FAILED
    assert f"can't be erased: {torn} can't be read" in capsys.readouterr().out


def heads(rows: list[str]) -> set[str]:
    """Heads of lines, which say how many rows a line has."""
    return {each for each in rows if "'kind': 'lines'" in each}


def erase_within(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, root: Path, client_id: str = "mallory"
) -> list[str]:
    """Erases once right after a step of another job; what was done."""
    real, done = getattr(owner, name), []

    def step(*arguments: Any, **options: Any) -> Any:
        made = real(*arguments, **options)
        made = list(made) if name == "compact_buckets" else made
        if not done:
            done.append(name)
            assert erase(root, "--client-id", client_id, "--yes") == Exit.DONE
        return made

    monkeypatch.setattr(owner, name, step)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("client_id", ["mallory", "trudy"])
def test_an_ingest_that_has_read_the_client_before_does_not_bring_it_back(
    small: Path, monkeypatch: pytest.MonkeyPatch, client_id: str
) -> None:
    # Of the second one there is nothing in the tables yet.
    out = str(small / "out")
    file = place(small / "in", "usage-c-1-1.jsonl.gz", line(1, row(client_id), row("app", 77), gw="c"))
    done = erase_within(monkeypatch, writer, "write_rows", small, client_id)
    ingest_files(out, small / "checkpoint", file)
    assert done == ["write_rows"]
    compact_all(out)
    for table in tables_of(out).values():
        table.sweep()
    assert files_with(small, client_id) == []
    assert sum("'gw': 'c'" in each and "'kind': 'rows'" in each for each in contents(out)["raw"]) == 1


@pytest.mark.slow
def test_a_compaction_that_has_read_the_client_before_does_not_bring_it_back(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(small / "out")
    erase_within(monkeypatch, compaction, "compact_buckets", small)
    with pytest.raises(JobError, match="meanwhile: run this again"):
        compact(LocalSession(), out, LONG_AFTER, date="all")
    compact_all(out)
    for table in tables_of(out).values():
        table.sweep()
    assert files_with(small, "mallory") == []


@pytest.mark.slow
def test_tables_of_clients_made_meanwhile_do_not_bring_it_back(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(small / "out")
    table = clients_table(out)
    before = table.prepared()
    table.commit(before, remove=before.files, state={"days": {}})
    erase_within(monkeypatch, making, "made_of", small)
    # Of its first table it comes too late, or of its second it finds no rows any more.
    with pytest.raises((JobError, FileNotFoundError), match=r"meanwhile: run this again|No such file"):
        making.make_missing(LocalSession(), out)
    making.make_missing(LocalSession(), out)
    for each in tables_of(out).values():
        each.sweep()
    assert files_with(small, "mallory") == []


@pytest.mark.slow
def test_large_tables_are_erased_in_several_commits_and_what_comes_meanwhile_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(root / "out")
    shutil.copytree(root / "out", root / "wanted" / "out")
    assert main(["erase", "--out", str(root / "wanted/out"), "--client-id", "mallory", "--yes"]) == 0
    monkeypatch.setattr(tables, "_BYTES_AT_ONCE", 1)
    real, late = Table.commit, []

    def commit(table: Table, *arguments: Any, **options: Any) -> Any:
        made = real(table, *arguments, **options)
        if len(late) < 2 and table.folder.endswith("raw"):
            late.append(
                place(root / "late", f"usage-l-1-{len(late)}.jsonl.gz", line(len(late), row("mallory"), gw="l"))
            )
            ingest_files(out, root / "late-checkpoint", late[-1])
        return made

    monkeypatch.setattr(Table, "commit", commit)
    assert erase(root, "--client-id", "mallory", "--yes") == 0
    assert raw_table(out).read().version > raw_table(str(root / "wanted/out")).read().version + 5
    assert contents(out)["compacted"] == contents(str(root / "wanted/out"))["compacted"]
    assert files_with(root / "out", "mallory") == []
    assert sum("'gw': 'l'" in each for each in contents(out)["raw"]) == 2


@pytest.mark.slow
def test_a_client_that_was_alone_on_its_days_leaves_days_without_rows(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    lines = line(0, row("mallory"), events=(event("mallory"),)), line(1)
    file = place(tmp_path / "in", "usage-a-1-1.jsonl.gz", *lines)
    ingest_files(out, tmp_path / "checkpoint", file)
    compact_all(out)
    assert erase(tmp_path, "--client-id", "mallory", "--yes") == 0
    (day,) = published_days(out)
    assert (day.rows, day.keys, day.erased, day.lines) == (0, 0, 1, 2)
    assert contents(out)["compacted"] == contents(out)["clients"] == contents(out)["client_use"] == []
    assert make(LocalSession(), out, LONG_AFTER).clients == ()
    options = ["--history", "1", "--plan", str(tmp_path / "plan.json")]
    assert main(["recommend", "--out", out, *options]) == Exit.NOTHING_TO_DO
    compact_all(out)
    assert files_with(tmp_path, "mallory") == []


@pytest.mark.slow
def test_it_works_on_object_stores(tmp_path: Path, bucket: str) -> None:
    out = made_of_lines(tmp_path, line(0, row("mallory"), row()), out=f"{bucket}/out")
    never = made_of_lines(tmp_path / "never", line(0, row()))
    DeltaTable(f"{out}/raw").optimize.compact()
    assert main(["erase", "--out", out, "--client-id", "mallory", "--yes"]) == 0
    assert contents(out, *MADE) == contents(never, *MADE)
    assert main(["erase", "--out", out, "--client-id", "mallory"]) == Exit.NOTHING_TO_DO


# -- killed in the middle --------------------------------------------------------------------------------------------
STEPS: list[tuple[Any, str]] = [
    *((Table, name) for name in ("commit", "_write_state", "sweep", "_delete")),
    *((results, name) for name in ("replace_file", "_delete")),
    *((leftovers, name) for name in ("_shorten_log", "_delete_files")),
    (DeltaTable, "create_checkpoint"),
    (tables, "write_raw_files"),
    (usage_files, "replace_file"),
    (making, "make_missing"),
    (erasure, "erase_results"),
]


_PARTS = 12


class Killed(BaseException):
    """In place of SIGKILL: no code of the product catches it."""


def kind_of(owner: Any, name: str) -> str:
    """The kind of a step."""
    return f"{owner.__name__}.{name}"


def dying(monkeypatch: pytest.MonkeyPatch, at: int | str) -> list[str]:
    """Ends the process before a step, by its number, or before the first one of a kind; the kinds of steps so far."""
    taken: list[str] = []

    def counted(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if at in (len(taken), kind):
                raise Killed
            taken.append(kind)
            return real(*arguments, **options)

        return step

    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, counted(kind_of(owner, name), getattr(owner, name)))
    return taken


def erase_all(root: Path) -> int:
    """The client, everywhere."""
    return erase(root, "--client-id", "mallory", "--results", str(root / "elsewhere"), "--yes")


def all_of(root: Path) -> Any:
    """What is left."""
    return contents(str(root / "out")), known(str(root / "out")), lines_of(root / "in")


class Steps(NamedTuple):
    """The steps of an erasure that nothing interrupts, and what is there before and after it."""

    taken: list[str]
    before: dict[str, list[str]]
    after: Any


@pytest.fixture(scope="module")
def prepared(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client in all places, with files of other writers and a log that names it."""
    root = tmp_path_factory.mktemp("prepared") / "root"
    shutil.copytree(template, root)
    with pytest.MonkeyPatch.context() as clock:
        clock.setattr(arguments.time, "time", lambda: NOW)
        write_results(root)
    DeltaTable(f"{root}/out/raw").optimize.compact()
    DeltaTable(f"{root}/out/raw").delete("client_id = 'mallory' and api = 'fetch'")
    return root


@pytest.fixture(scope="module")
def steps(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """See `Steps`."""
    root = tmp_path_factory.mktemp("whole") / "root"
    shutil.copytree(prepared, root)
    with pytest.MonkeyPatch.context() as patched:
        taken = dying(patched, -1)
        patched.setattr("pipeline.spark.session.open_session", lambda *_, **__: LocalSession())
        assert erase_all(root) == 0
    assert set(taken) == {kind_of(*each) for each in STEPS}
    return Steps(taken, contents(str(prepared / "out")), all_of(root))


def kill_before(at: int | str, steps: Steps, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Erases with a kill before a step: others lose nothing."""
    with monkeypatch.context() as patched:
        dying(patched, at)
        with pytest.raises(Killed):
            erase_all(root)
    after = contents(str(root / "out"), "raw", "compacted")
    for name, rows in after.items():
        others = {each for each in steps.before[name] if "mallory" not in each}
        assert others - heads(steps.before[name]) <= set(rows)
        assert len(heads(steps.before[name])) == len(heads(rows))
    assert not any(day["late"] for day in status(str(root / "out"), LONG_AFTER)["days"])


def complete(steps: Steps, root: Path, killed: str) -> None:
    """Erases once more: nothing of the client is left, and all of others."""
    assert erase_all(root) in (Exit.DONE, Exit.NOTHING_TO_DO)
    assert files_with(root, "mallory") == []
    assert all_of(root) == steps.after, f"killed before {killed}"


@pytest.mark.slow
def test_killed_before_a_step_of_each_kind_nothing_of_others_is_lost_and_the_next_run_does_the_rest(
    prepared: Path, steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each run continues from where the one before was killed, up to the first step of the next kind.
    root = tmp_path / "root"
    shutil.copytree(prepared, root)
    kinds = list(dict.fromkeys(steps.taken))
    for kind in kinds:
        kill_before(kind, steps, root, monkeypatch)
    complete(steps, root, ", ".join(kinds))


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(_PARTS))
def test_killed_before_any_step_nothing_of_others_is_lost_and_the_next_run_does_the_rest(
    prepared: Path, steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    root = tmp_path / "root"
    for at in range(part, len(steps.taken), _PARTS):
        shutil.copytree(prepared, root)
        kill_before(at, steps, root, monkeypatch)
        complete(steps, root, f"step {at}: {steps.taken[at]}")
        shutil.rmtree(root)
