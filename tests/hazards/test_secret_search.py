"""The search for secrets itself: what it would find, so that its silence during all other tests means something."""

import base64
from pathlib import Path

from testkit.secrets import CANARY, Outputs, packed

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
