"""``python -m campaigns.exactly_once.victim POINT N ARGUMENTS``: an ingest that is killed at a point of batch N.

The points are the steps of `pipeline.ingest.writer`, in order. At the point the whole process group is killed with
SIGKILL, including the JVM. With a point that ends in `-driver` only Python is killed, and the orphaned JVM must
notice that by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any, Final, NoReturn

from deltalake import DeltaTable
from pyarrow import fs

from pipeline.cli import main
from pipeline.ingest import writer as writer_module
from pipeline.ingest.writer import Writer
from pipeline.spark import session
from pipeline.storage.files import files_below
from pipeline.storage.raw_table import RawState
from pipeline.storage.tables import Table
from testkit.pipeline.spark import QUICK

POINTS: Final = (
    "rows",  # workers are writing: there is a file, and no result
    "written",  # all rows are written, but not yet recorded
    "state",  # the state is written too, but not yet recorded
    "committed",  # the commit exists, and no reader has used it
    "done",  # all is done except for Spark's own note of the batch
)


def _die(everything: bool) -> NoReturn:
    if everything:
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


class _Victim:
    """Counts batches and kills the process."""

    def __init__(self, point: str, batch: int) -> None:
        self.point = point.removesuffix("-driver")
        self.everything = self.point == point
        self.left = batch

    def at(self, point: str) -> None:
        if point == self.point and self.left == 0:
            _die(self.everything)

    def install(self) -> None:
        write_batch, write_rows = Writer._write, writer_module.write_rows
        write_state, commit = Table._write_state, DeltaTable.create_write_transaction

        def writing(writer: Any, frame: Any, batch: int) -> None:
            # A batch that was written before the last kill is only noted, so there is no step to kill.
            before = writer._table.read()
            last, _ = RawState.from_json(before.state).checkpoints.get(writer._name(), (-1, ""))
            self.left -= batch > last
            if self.left == 0 and self.point == "rows":
                watched = writer._table.folder, max(0, before.version) + 1
                threading.Thread(target=self._watch, args=watched, daemon=True).start()
            write_batch(writer, frame, batch)
            self.at("done")

        def writing_rows(*arguments: Any) -> Any:
            found = write_rows(*arguments)
            # The watcher was too late: workers are done, but no later step is.
            self.at("rows")
            self.at("written")
            return found

        def writing_state(table: Any, *arguments: Any) -> Any:
            file = write_state(table, *arguments)
            self.at("state")
            return file

        def committing(handle: Any, *arguments: Any, **options: Any) -> None:
            commit(handle, *arguments, **options)
            self.at("committed")

        Writer._write = writing  # type: ignore[method-assign]
        writer_module.write_rows = writing_rows
        Table._write_state = writing_state  # type: ignore[method-assign]
        DeltaTable.create_write_transaction = committing  # type: ignore[method-assign]

    def _watch(self, folder: str, version: int) -> None:
        while True:
            selector = fs.FileSelector("", allow_not_found=True, recursive=True)
            if any(
                f"/{version:020d}-" in f"/{info.path}" for info in files_below(folder).get_file_info(selector)
            ):
                self.at("rows")
            time.sleep(0.001)


def _quick() -> None:
    open_session = session.open_session

    def quick(app: str, *, master: str | None = None, settings: Any = None, quiet: bool = True) -> Any:
        return open_session(app, master=master, settings={**QUICK, **(settings or {})}, quiet=quiet)

    import pipeline.jobs.ingest

    pipeline.jobs.ingest.open_session = quick  # type: ignore[attr-defined]


if __name__ == "__main__":
    if sys.argv[1] != "none":
        _Victim(sys.argv[1], int(sys.argv[2])).install()
    _quick()
    sys.exit(main(["ingest", *sys.argv[3:]]))
