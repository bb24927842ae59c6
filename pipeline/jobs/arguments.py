"""Arguments that several jobs have, and the session that a job needs only to look into a folder."""

from __future__ import annotations

import argparse
from typing import Any

from pipeline.spark.session import open_session
from pipeline.storage.entity_days import Scope
from pipeline.storage.store import is_local


def add_out(
    parser: argparse.ArgumentParser, text: str = "the pipeline's folder, the same for all jobs"
) -> None:
    """The folder that all jobs share."""
    parser.add_argument("--out", required=True, help=text)


def add_master(parser: argparse.ArgumentParser) -> None:
    """Where the job runs."""
    parser.add_argument(
        "--master", help="Spark's cluster (spark-submit's, SPARK_MASTER, or this machine's cores)"
    )


def add_scope(parser: argparse.ArgumentParser) -> None:
    """What one counter covers."""
    parser.add_argument(
        "--scope", choices=list(Scope), default=Scope.GATEWAY, help="the gateway's quota scope"
    )


def add_windows(parser: argparse.ArgumentParser) -> None:
    """How quotas are measured."""
    parser.add_argument(
        "--window-num", type=int, default=11, help="samples of a rate, windows of a burst (11)"
    )
    parser.add_argument("--window-ms", type=int, default=1_000, help="length of one (1000)")


def open_to_look(app: str, out: str, *, master: str | None = None) -> Any:
    """A session where a folder can't be looked into without one, else None: most errors need not wait for a JVM.

    Args:
        app, master: see `open_session`.
        out: the folder.
    """
    return None if is_local(out) else open_session(app, master=master)
