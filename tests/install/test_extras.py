"""Each extra alone brings all that its modules import, beside the locked packages, and what it is for works."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from testkit.installed import Environment, extra_of, modules
from testkit.pipeline.usage_lines import line, place, row

NAMES: Final = {
    extra: [name for name in modules() if extra_of(name) == extra] for extra in ("top", "traces", "pipeline")
}
NAMES["kernels"] = [name for name in NAMES["pipeline"] if name.startswith("pipeline.replay.kernels")]
NUMBA: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from pipeline.replay.kernels.compiled import numba; print(numba)"
)


@contextmanager
def installed(wheel: Path, folder: Path, extra: str) -> Iterator[Environment]:
    """An environment with Sluice and one extra, which has all that modules of the extra import."""
    with Environment(folder) as environment:
        environment.install_sluice(wheel)
        environment.install_extra(wheel, extra)
        assert NAMES[extra]
        assert environment.imports(NAMES[extra]) == ""
        yield environment


@pytest.mark.slow
def test_traces(wheel: Path, tmp_path: Path) -> None:
    with installed(wheel, tmp_path, "traces"):
        pass


@pytest.mark.slow
def test_top(wheel: Path, tmp_path: Path) -> None:
    with installed(wheel, tmp_path, "top") as environment:
        said = environment.run("sluice", "top", "--admin", "http://127.0.0.1:1", code=1)
    assert said.startswith("sluice: no answer from http://127.0.0.1:1: ")
    assert said.count("\n") == 1


@pytest.mark.slow
def test_kernels(wheel: Path, tmp_path: Path) -> None:
    with installed(wheel, tmp_path, "kernels") as environment:
        said = environment.run("python", "-c", NUMBA, str(environment.packages / "sluice"))
    assert "module 'numba'" in said


@pytest.mark.spark
def test_pipeline_whose_workers_find_its_packages(wheel: Path, tmp_path: Path) -> None:
    place(tmp_path / "in", "usage-a-0.jsonl.gz", *(line(seq, row("c")) for seq in range(10)))
    source, out = f"files:{tmp_path}/in", str(tmp_path / "out")
    with installed(wheel, tmp_path, "pipeline") as environment:
        said = environment.run("sluice-pipeline", "ingest", "--from", source, "--out", out)
        assert "10 lines with 10 rows" in said
        assert "1 batch: 10 lines with 10 rows" in environment.run("sluice-pipeline", "status", "--out", out)
