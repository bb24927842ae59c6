"""Spreads over pytest-xdist's workers what pytest does once for each file of tests.

It rewrites the assertions of a file, and keeps the result beside the file. In a fresh clone all workers would
rewrite all files, as they collect the same ones at the same time. Here each imports a part of them first, and finds
the other parts rewritten.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress

import pytest

from testkit.marked_files import pytest_ignore_collect


def import_part(session: pytest.Session) -> None:
    """To be called before a worker collects; other processes have no part."""
    config = session.config
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not hasattr(config, "workerinput"):
        return
    ignored = [config.rootpath / name for name in config.getoption("ignore") or ()]
    files = [
        file
        for folder in config.args
        for file in sorted((config.rootpath / folder).rglob("test_*.py"))
        if not any(file.is_relative_to(each) for each in ignored) and not pytest_ignore_collect(file, config)
    ]
    for file in files[int(worker.removeprefix("gw")) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]:
        # pytest shows what is wrong with a file when it collects it.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))
