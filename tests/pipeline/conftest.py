"""The one Spark session that all tests marked `spark` share."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pipeline.ingest.sources import files_stream, stream
from pipeline.ingest.writer import Writer, files_to_rows
from pipeline.spark.runner import InProcess
from pipeline.spark.session import open_session
from pipeline.storage.raw_table import raw_table
from testkit.pipeline.local_session import ingest_files
from testkit.pipeline.object_store import new_bucket, s3_server
from testkit.pipeline.spark import QUICK

Ingest = Callable[..., Writer]

# py4j leaves its sockets to the garbage collector.
_OF_PY4J: Final = (
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spares tests that use Spark the errors about sockets that are not ours."""
    for item in items:
        if item.get_closest_marker("spark"):
            for ignored in _OF_PY4J:
                item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """The address of an S3 server of this test run."""
    with s3_server() as address:
        yield address


@pytest.fixture
def bucket(object_store: str) -> str:
    """A new bucket."""
    return new_bucket(object_store)


@pytest.fixture(scope="session")
def spark(object_store: str) -> Iterator[Any]:
    """Two cores of this machine; a test leaves its settings as it found them. Workers know the object store."""
    session = open_session("tests", master="local[2]", settings=QUICK)
    yield session
    session.stop()


class Session:
    """The tests' own, which a job must not stop."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """Other tests still use it."""


@pytest.fixture
def ingest(spark: Any, tmp_path: Path) -> Ingest:
    """Ingests what is in `tmp_path/in` into `tmp_path/out`."""

    def run(checkpoint: str = "checkpoint", **options: Any) -> Writer:
        out, notes = str(tmp_path / "out"), str(tmp_path / checkpoint)
        writer = Writer(out, notes, files_to_rows, InProcess())
        frame = files_stream(spark, str(tmp_path / "in"), **{"max_files": 100, **options})
        stream(frame, writer, notes)
        return writer

    return run


@pytest.fixture
def local_ingest(tmp_path: Path) -> Ingest:
    """The same without Spark, which is for what its file source and its checkpoints do."""
    read: set[Path] = set()

    def run(checkpoint: str = "checkpoint", *, max_files: int = 100) -> Writer:
        new = sorted(set((tmp_path / "in").iterdir()) - read)
        for at in range(0, len(new), max_files):
            files = new[at : at + max_files]
            writer = ingest_files(str(tmp_path / "out"), tmp_path / checkpoint, *files)
            read.update(files)
        return writer

    return run


def rows_of(out: Path) -> list[tuple[str, int]]:
    """Client and seq of every row."""
    table = raw_table(str(out))
    rows = (row for file in table.read().files for batch in table.rows_of(file) for row in batch.to_pylist())
    return sorted((row["client_id"], seq) for row in rows if row["kind"] == "rows" for seq in row["seq"])
