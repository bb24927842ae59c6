"""The recorded frames of `tests/golden`, found by name (described in `tests/golden/ORIGIN.md`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "tests" / "golden"
_NAME: Final = re.compile(r"(?P<label>\w+)_v(?P<version>\d+)_(?P<kind>request|response)")


def golden(label: str, version: int, kind: str = "response") -> bytes:
    """One recorded frame."""
    return (FOLDER / f"{label}_v{version}_{kind}.bin").read_bytes()


def goldens(*, kind: str = "response") -> Iterator[tuple[str, int]]:
    """(label, version) of every recorded frame of this kind."""
    for path in sorted(FOLDER.glob("*.bin")):
        found = _NAME.fullmatch(path.stem)
        assert found, f"{path.name} is not named <api>_v<version>_<request|response>.bin"
        if found["kind"] == kind:
            yield found["label"], int(found["version"])


def api_name(label: str) -> str:
    """The API's name in kafka-python's spelling: "metadata_by_id" belongs to "Metadata"."""
    base = re.sub(r"_(by_id|refused|by_id_refused|invalid|unsupported|misrouted|not_leader)$", "", label)
    return "".join(word.capitalize() for word in base.split("_"))
