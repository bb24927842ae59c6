"""The documentation site: dead links are errors, and links out of `docs/` work there as they do on the repository."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
BUILD = re.search(r"/mkdocs (build .*)", (ROOT / "Makefile").read_text())


def build(folder: Path, home: str) -> subprocess.CompletedProcess[str]:
    """`make docs` of a project that has one page, with our settings."""
    assert BUILD is not None
    (folder / "docs" / "how-to").mkdir(parents=True, exist_ok=True)
    (folder / "config").mkdir()
    (folder / "config" / "example.toml").write_text("a = 1\n")
    (folder / "config" / "README.md").write_text("# About\n\n[home](../docs/index.md), [file](example.toml)\n")
    (folder / "docs" / "index.md").write_text(f"# Home\n\n{home}\n")
    (folder / "docs" / "how-to" / "start.md").write_text("# Start\n\n[example](../../config/example.toml)\n")
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    hook = str(ROOT / "testkit" / "site_hook.py")
    nav = "\nnav:\n  - index.md\n  - Guides:\n      - how-to/\n"
    (folder / "mkdocs.yml").write_text(settings.replace("  - testkit/site_hook.py", f"  - {hook}") + nav)
    return subprocess.run(
        [str(Path(sys.executable).with_name("mkdocs")), *BUILD[1].split()],
        cwd=folder,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_link_out_of_the_docs_leads_to_a_copy_on_the_site(tmp_path: Path) -> None:
    done = build(tmp_path, "[about](../config/README.md), [start](how-to/start.md#start)")
    assert done.returncode == 0, done.stderr
    site = tmp_path / "build" / "site"
    assert 'href="source/config/"' in (site / "index.html").read_text()
    assert 'href="../../source/config/example.toml"' in (site / "how-to" / "start" / "index.html").read_text()
    assert (site / "source" / "config" / "example.toml").read_text() == "a = 1\n"
    about = (site / "source" / "config" / "index.html").read_text()
    assert 'href="../.."' in about
    assert 'href="example.toml"' in about


def test_each_dead_link_and_each_page_that_the_navigation_lacks_fails_the_build(tmp_path: Path) -> None:
    dead = ["nowhere.md", "how-to/start.md#end", "../config/none.toml", "../config/", "../../x.md"]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "forgotten.md").write_text("# Forgotten\n")
    done = build(tmp_path, "\n".join(f"[dead]({link})" for link in dead))
    assert done.returncode == 1, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert len(warnings) == len(dead) + 1
    assert [link for link in dead if not any(f"'{link}'" in line for line in warnings)] == []
    assert "  - forgotten.md" in done.stderr
