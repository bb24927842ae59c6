"""A fault in a copy of the sources, for a test that checks whether it is found."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Fault:
    """A line of a source, and its replacement.

    Attributes:
        file: the source file.
        line: the original line.
        instead: the line with the fault.
        places: how often the line occurs.
    """

    file: str
    line: str
    instead: str
    places: int = 1

    @property
    def can_be_planted(self) -> bool:
        """Whether the source still has the line."""
        return (ROOT / self.file).read_text().count(self.line) == self.places

    def plant(self, folder: Path) -> None:
        """Copies the gateway's packages into a folder, with this fault.

        Raises:
            AssertionError: the source has changed, so that the copy would have no fault.
        """
        assert self.can_be_planted
        for package in ("config", "gateway", "protocol", "quotas"):
            shutil.copytree(ROOT / package, folder / package)  # with what Python has compiled
        file = folder / self.file
        file.write_text(file.read_text().replace(self.line, self.instead))
