"""Which core runs, and that no compiled module is used beside a source that it was not made of."""

import json
import os
import sys
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.runtime.compiled_core import ROOT, core_name, stale_modules
from gateway.session.session import ClientSession

SESSION = Path("gateway/session/session.py")
CONFIG = """
[upstream]
bootstrap = ["127.0.0.1:1"]
[[listeners]]
name = "inside"
bind = "127.0.0.1:0"
advertised_host = "gw"
first_broker_port = 19093
"""


def test_core_is_named_after_what_was_imported() -> None:
    imported = sys.modules[ClientSession.__module__].__file__ or ""
    assert core_name() == ("pure Python" if imported.endswith(".py") else "compiled core")
    assert stale_modules() == []
    # `make test-compiled` would otherwise show nothing.
    assert (core_name() == "compiled core") == (os.environ.get("SLUICE_COMPILED") == "1"), ROOT


def test_compiled_module_beside_another_source_is_stale(tmp_path: Path) -> None:
    source = tmp_path / SESSION
    source.parent.mkdir(parents=True)
    source.write_text("x = 1\n")
    assert (core_name(tmp_path), stale_modules(tmp_path)) == ("pure Python", [])
    source.with_suffix(EXTENSION_SUFFIXES[0]).touch()
    assert (core_name(tmp_path), stale_modules(tmp_path)) == ("compiled core", [str(SESSION)])
    made_of = tmp_path / "gateway/runtime/compiled_core.json"
    made_of.parent.mkdir()
    made_of.write_text(json.dumps({str(SESSION): sha256(b"x = 1\n").hexdigest()}))
    assert stale_modules(tmp_path) == []
    source.write_text("x = 2\n")
    assert stale_modules(tmp_path) == [str(SESSION)]


def test_gateway_with_stale_modules_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text(CONFIG)
    monkeypatch.setattr("gateway.cli.serve.stale_modules", lambda: [str(SESSION)])
    assert main(["serve", "--config", str(config)]) == 2
    assert "gateway/session/session.py changed since the compiled core was built" in capsys.readouterr().err
