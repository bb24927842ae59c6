"""How names are written: readable, bounded, or hashed with a salt that is made once (hazard I11)."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.usage.names import Names
from gateway.usage.salt import SALT_BYTES, load_salt
from quotas.entities import MAX_NAME_CHARS
from quotas.usage_record import HASHED


def test_i14_names_are_written_as_every_reader_takes_them() -> None:
    assert Names().written("Zoë, team <7>") == "Zoë, team <7>"
    written = Names().written("a\ud800b")
    assert json.loads(json.dumps(written).encode()) == "a?b"
    one, two = Names().written("x" * 40_000 + "1"), Names().written("x" * 40_000 + "2")
    assert len(one) == len(two) == MAX_NAME_CHARS
    assert one != two


def test_i11_hashed_names_tell_nothing_and_another_salt_gives_another_hash() -> None:
    names = Names(b"s" * 32)
    hashed = names.written("alice")
    assert hashed == names.written("alice")
    assert hashed != names.written("bob")
    assert hashed.startswith(HASHED)
    assert "alice" not in hashed
    assert Names(b"a" * 32).written("alice") != Names(b"b" * 32).written("alice")


@pytest.mark.parametrize("salt", [None, b"s" * 32])
def test_nothing_stays_nothing(salt: bytes | None) -> None:
    assert Names(salt).written("") == ""


def test_i11_a_salt_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "etc" / "salt"
    salt = load_salt(path)
    assert len(salt) == SALT_BYTES
    assert load_salt(path) == salt
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_i11_gateways_that_start_together_agree_on_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        salts = set(threads.map(load_salt, [tmp_path / "salt"] * 32))
    assert len(salts) == 1


def test_a_file_too_short_to_be_a_salt_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "salt"
    path.write_bytes(b"secret")
    with pytest.raises(ValueError, match="has 6 bytes; a salt has at least 32"):
        load_salt(path)
