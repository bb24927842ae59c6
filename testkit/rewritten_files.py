"""Divides between pytest-xdist's workers what pytest does once for each file of tests.

pytest rewrites the assertions of a file and stores the result beside it. In a fresh clone all workers would rewrite
all files, because they collect the same files at the same time. With this module each worker first imports a part of
the files, and then finds the others rewritten.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress

import pytest

from testkit.marked_files import pytest_ignore_collect


def import_part(session: pytest.Session) -> None:
    """Imports this worker's part; called before a worker collects. Processes that are not workers import nothing."""
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
        # pytest reports a file's errors when it collects the file.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))
