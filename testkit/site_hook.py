"""Adds two features to MkDocs for this project's site: links to files outside `docs/`, and folders in the navigation.

In the repository a link such as `../config/examples/full.toml` works by itself. The site has no such file, so the
hook adds each linked file under `source/`: Markdown as a page, other files unchanged. A link to a missing file, or to
a folder, is not changed, and `mkdocs build --strict` fails because of it.

`mkdocs.yml` names this file under `hooks`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

OUTSIDE: Final = "source"
"""The site's folder with the files from outside `docs/`."""

_LINK: Final = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replaces each entry of the navigation that ends in a slash by all pages of that folder."""
    config.nav = _expanded(config.nav or [], Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files outside `docs/` to which pages link, and those to which these files link."""
    pages = [Path(file.abs_src_path or "") for file in files.documentation_pages()]
    added: set[Path] = set()
    while pages:
        for target in _targets(pages.pop(), config):
            if target.is_relative_to(config.docs_dir) or target in added:
                continue
            added.add(target)
            uri = _uri(target, config)
            files.append(
                File.generated(config, uri, abs_src_path=str(target), inclusion=InclusionLevel.NOT_IN_NAV)
            )
            if target.suffix == ".md":
                pages.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Changes links to the places of their targets on the site."""
    source = Path(page.file.abs_src_path or "")
    if not source.is_relative_to(config.docs_dir):
        page.meta["search"] = {"exclude": True}

    def on_site(link: re.Match[str]) -> str:
        target = _resolved(source, link[2], config)
        if target is None:
            return link[0]
        return link[1] + posixpath.relpath(_uri(target, config), posixpath.dirname(page.file.src_uri) or ".")

    return _LINK.sub(on_site, markdown)


def _expanded(nav: list[Any], docs: Path) -> list[Any]:
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            ((title, below),) = entry.items()
            found.append({title: _expanded(below, docs) if isinstance(below, list) else below})
        elif entry.endswith("/"):
            found += sorted(str(page.relative_to(docs)) for page in (docs / entry).glob("*.md"))
        else:
            found.append(entry)
    return found


def _targets(page: Path, config: MkDocsConfig) -> Iterator[Path]:
    for link in _LINK.finditer(page.read_text(encoding="utf-8")):
        target = _resolved(page, link[2], config)
        if target is not None:
            yield target


def _resolved(page: Path, link: str, config: MkDocsConfig) -> Path | None:
    """The project's file to which a link leads, if there is one."""
    target = Path(posixpath.normpath(page.parent / link))
    return target if target.is_file() and target.is_relative_to(_root(config)) else None


def _uri(target: Path, config: MkDocsConfig) -> str:
    if target.is_relative_to(config.docs_dir):
        return str(target.relative_to(config.docs_dir))
    return f"{OUTSIDE}/{target.relative_to(_root(config))}"


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent
