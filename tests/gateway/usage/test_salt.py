"""The salt: made once, private, the same for gateways that share it (hazard I11)."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.usage.salt import SALT_BYTES, load_salt


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
