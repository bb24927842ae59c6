"""Checks that each usage line of one gateway is in its files once, or reported as dropped."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Final

_KILLED_WITH: Final = 2
"""Lines that a killed process may lose: the line in progress, and the previous line in the queue."""
_STARTS: Final = 8
"""The latest starts, whose lines may still come: the next start completes the files of a killed process."""


class UsageLedger:
    """Reads each file once and checks the lines.

    Attributes:
        lines: number of lines read so far.
    """

    def __init__(self, directory: Path) -> None:
        """Prepare to read the directory."""
        self.lines = 0
        self._directory = directory
        self._read: set[str] = set()
        self._seqs: dict[int, set[int]] = {}  # numbers of lines by start of the gateway
        self._told: dict[int, dict[str, int]] = {}

    def faults(self, told: dict[str, int]) -> list[str]:
        """Read new files; the faults found.

        Args:
            told: counts of lines that the running process made, delivered and dropped, from before the files are
            read.
        """
        found = self._read_new_files()
        if self._seqs and told.get("delivered"):
            running = max(self._seqs)
            self._told[running] = told
            if (count := len(self._seqs[running])) < told["delivered"]:
                found.append(f"{told['delivered']} lines were delivered and {count} are in files")
        for start, seqs in self._seqs.items():
            told_then = self._told.get(start, {})
            missing = max(seqs) + 1 - len(seqs)
            if missing > (dropped := told_then.get("dropped", 0)):
                found.append(f"{missing} lines are missing and {dropped} were reported missing")
            lost = told_then.get("made", 0) - dropped - len(seqs)
            if told.get("delivered") and start != max(self._seqs) and lost > _KILLED_WITH:
                found.append(f"{lost} of {told_then['made']} lines were lost with a process")
        for start in sorted(self._seqs)[:-_STARTS]:
            del self._seqs[start]
            self._told.pop(start, None)
        return found

    def _read_new_files(self) -> list[str]:
        faults = []
        for path in sorted(self._directory.glob("usage-*.jsonl.gz")):
            if path.name in self._read:
                continue
            self._read.add(path.name)
            for text in gzip.decompress(path.read_bytes()).splitlines():
                line = json.loads(text)
                seqs = self._seqs.setdefault(line["boot"], set())
                if line["seq"] in seqs:
                    faults.append(f"line {line['seq']} is there twice")
                seqs.add(line["seq"])
                self.lines += 1
        return faults
