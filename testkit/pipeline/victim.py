"""``python -m testkit.pipeline.victim POINT N ARGUMENTS``: an ingest that is killed at a point of batch N.

The points are the steps of `pipeline.ingest.writer`, in order. At the point everything of the process dies at once,
the JVM too (SIGKILL to the group), or with a point that ends in `-driver` only Python, and the orphaned JVM finds
out by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, NoReturn

from pipeline.cli import main
from pipeline.ingest.writer import Writer
from pipeline.spark import session
from pipeline.storage.index_files import INDEX_FOLDER, read_index_file
from pipeline.storage.store import LocalStore
from testkit.pipeline.spark import QUICK

POINTS: Final = (
    "rows",  # workers are writing: there is a file, and no answer
    "written",  # all rows are written, nothing says so
    "manifest",  # the manifest is half-way into its place
    "publish",  # the folder is complete under its hidden name
    "published",  # the folder has its name, the offset index does not know
    "index",  # the offset index is half-way into its place
    "done",  # the offset index is there, Spark's own note that the batch is done is not
)


def _die(everything: bool) -> NoReturn:
    if everything:
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


class _Victim:
    """Counts batches and dies."""

    def __init__(self, point: str, batch: int) -> None:
        self.point = point.removesuffix("-driver")
        self.everything = self.point == point
        self.left = batch

    def at(self, point: str) -> None:
        if point == self.point and self.left == 0:
            _die(self.everything)

    def install(self) -> None:
        write_batch, quarantine = Writer._write, Writer._quarantine
        write_rows = Writer._rows
        write, move = LocalStore.write, LocalStore.move

        def writing(writer: Any, frame: Any, batch: int) -> None:
            # One that was written before it was killed is only noted: there is nothing to die in.
            number = writer._base + batch
            self.left -= read_index_file(writer._store, writer._out, number) is None
            if self.left == 0 and self.point == "rows":
                threading.Thread(target=self._watch, args=(writer._out,), daemon=True).start()
            write_batch(writer, frame, batch)
            self.at("done")

        def writing_rows(writer: Any, *arguments: Any) -> Any:
            heads = write_rows(writer, *arguments)
            # The watcher came too late: workers are done, nothing else is.
            self.at("rows")
            return heads

        def quarantining(writer: Any, *arguments: Any) -> None:
            self.at("written")
            quarantine(writer, *arguments)

        def storing(store: LocalStore, path: str, content: bytes) -> None:
            point = (
                "manifest"
                if path.endswith("_manifest.json")
                else "index"
                if f"/{INDEX_FOLDER}/" in path
                else ""
            )
            if point == self.point and self.left == 0:
                half = Path(path).with_name(f".{Path(path).name}.half")
                half.parent.mkdir(parents=True, exist_ok=True)
                half.write_bytes(content[: len(content) // 2])
                self.at(point)
            write(store, path, content)

        def moving(store: LocalStore, path: str, to: str) -> None:
            self.at("publish")
            move(store, path, to)
            self.at("published")

        Writer._write = writing  # type: ignore[method-assign]
        Writer._rows = writing_rows  # type: ignore[method-assign]
        Writer._quarantine = quarantining  # type: ignore[method-assign]
        LocalStore.write = storing  # type: ignore[method-assign]
        LocalStore.move = moving  # type: ignore[method-assign]

    def _watch(self, out: str) -> None:
        while not list(Path(out).glob("raw/.batch=*/*.parquet")):
            time.sleep(0.001)
        self.at("rows")


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
