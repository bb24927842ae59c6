"""A fault that is planted in a copy of the sources, for a test that looks whether it is found."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Fault:
    """A line of a source, and what stands there instead.

    Attributes:
        file: of the source.
        line: what stands there.
        instead: what the fault makes of it.
        places: how often it stands there.
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
        """Copy the gateway's packages into a folder, with this fault.

        Raises:
            AssertionError: the source has changed, so there would be no fault.
        """
        assert self.can_be_planted
        for package in ("config", "gateway", "protocol", "quotas"):
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        file = folder / self.file
        file.write_text(file.read_text().replace(self.line, self.instead))
