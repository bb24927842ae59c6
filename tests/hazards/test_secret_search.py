"""The search for secrets itself: what it would find, so that its silence during all other tests means something."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testkit.secrets import CANARY, Outputs, packed

ROOT = Path(__file__).parents[2]
SECRET = f"{CANARY}alice-5f1c"


def test_h15_leak_planted_in_a_log_is_found_once_wherever_lines_are_cut(tmp_path: Path) -> None:
    outputs, log = Outputs(), tmp_path / "gateway.log"
    outputs.watch(log)
    outputs.look()
    with log.open("a") as file:
        for piece in ("event=x password=cana", "ry-of-al", "ice\n", "event=y\n"):
            file.write(piece)
            file.flush()
            outputs.look()
    assert len(outputs.hits) == 1
    assert "gateway.log" in outputs.hits[0]


def test_h15_leak_planted_in_files_is_found_unpacked(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "usage.jsonl.gz").write_bytes(packed(b'{"user": "' + SECRET.encode() + b'"}'))
    (tmp_path / "data" / "store").write_bytes(b"\0" + base64.b64encode(b"p=" + SECRET.encode()))
    outputs = Outputs()
    outputs.look_at_files(tmp_path)
    assert sorted({Path(hit.split(":")[0].split(",")[0]).name for hit in outputs.hits}) == ["store", "usage.jsonl.gz"]


@pytest.mark.slow
def test_a_failed_test_shows_what_its_gateways_wrote_last(tmp_path: Path) -> None:
    (log := tmp_path / "gateway.log").write_text("before\n")
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_makereport\n")
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\nfrom testkit.secrets import OUTPUTS\n\n"
        f"log = Path({str(log)!r})\nOUTPUTS.watch(log)\nOUTPUTS.look()\n\n"
        "def test_it() -> None:\n    log.write_text('before\\n' + 'line\\n' * 200 + 'last\\n')\n    assert False\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    shown = done.stdout.partition(f"End of {log}")[2]
    assert (shown.count("line\n"), shown.count("last\n"), shown.count("before\n")) == (99, 1, 0), done.stdout
