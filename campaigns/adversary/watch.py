"""Checks the gateway's process, whatever clients do: its memory, loop and log."""

from __future__ import annotations

import re
from typing import Final

from campaigns.adversary.stage import Stage
from campaigns.adversary.timed_gateway import EVENT, TURNS
from campaigns.adversary.verdict import Violation

MAX_RSS_BYTES: Final = 320 << 20
"""About 95 MiB for the process itself, the rest for thirty clients with requests below 1 MB."""

EVENT_CPU_MS: Final = 20.0
"""The longest that one event may block the loop, in CPU time because other programs use the machine. Tests allow more
where these programs also use the CPU's caches."""

BUGS: Final = frozenset({"internal_error", "upstream_malformed", "upstream_desync"})
"""Close causes that must not occur while the broker works."""

_FIELD: Final = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')


class Watch:
    """Checks a stage's gateway from time to time.

    Attributes:
        most_rss_bytes: highest so far.
        most_event_cpu_ms: the longest event, in CPU time, where the gateway measures each.
        most_turn_cpu_ms: the longest turn of the loop; a turn has many events when many clients send at once.
        turns, long_turns: how many were measured, and how many took longer than one event may.
    """

    def __init__(self, stage: Stage, *, event_cpu_ms: float = EVENT_CPU_MS) -> None:
        """Prepare the watch without checking anything.

        Args:
            stage: a running stage.
            event_cpu_ms: how long one event may take.
        """
        self._stage = stage
        self._event_cpu_ms = event_cpu_ms
        self._at = 0
        self._too_large = False
        self.most_rss_bytes = 0
        self.begin()

    def begin(self) -> None:
        """Ignore the durations of events until now."""
        self.most_event_cpu_ms = self.most_turn_cpu_ms = 0.0
        self.turns = self.long_turns = 0

    def look(self) -> list[tuple[Violation, int | None]]:
        """Violations since the last call, each with the port of the client concerned, if known."""
        found: list[tuple[Violation, int | None]] = []
        if not self._stage.gateway_runs:
            found.append((Violation("ended", "the gateway's process has ended"), None))
        rss = self._stage.rss_bytes()
        self.most_rss_bytes = max(self.most_rss_bytes, rss)
        if rss > MAX_RSS_BYTES and not self._too_large:
            self._too_large = True
            found.append((Violation("memory", f"{rss >> 20} MiB, bound {MAX_RSS_BYTES >> 20} MiB"), None))
        with self._stage.log_file.open("rb") as log:
            log.seek(self._at)
            data = log.read()
        whole = data.rpartition(b"\n")[0]
        self._at += len(whole) + bool(whole)
        for line in whole.decode(errors="replace").splitlines():
            found += self._judge(line)
        return found

    def _judge(self, line: str) -> list[tuple[Violation, int | None]]:
        fields = {key: value.strip('"') for key, value in _FIELD.findall(line)}
        port = fields.get("peer", "").rpartition(":")[2]
        peer = int(port) if port.isdigit() else None
        if fields.get("event") == TURNS:
            self.most_turn_cpu_ms = max(self.most_turn_cpu_ms, float(fields["cpu_ms"]))
            self.turns += int(fields["turns"])
            self.long_turns += int(fields["long"])
            return []
        if fields.get("event") == EVENT:
            cpu_ms = float(fields["cpu_ms"])
            self.most_event_cpu_ms = max(self.most_event_cpu_ms, cpu_ms)
            if cpu_ms <= self._event_cpu_ms:
                return []
            return [(Violation("stall", f"{cpu_ms} ms of CPU time in {fields['handler']}"), peer)]
        if fields.get("level") in ("error", "critical") or fields.get("cause") in BUGS:
            return [(Violation("error", line[:400]), peer)]
        return []
