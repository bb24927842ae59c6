"""Distinguishes a deadline that the peer missed from one that passed in a pause of this process. Pure."""

from __future__ import annotations

from typing import Final

LATE_MS: Final = 1_000
"""If a timer runs this much too late, the process itself was stopped, by SIGSTOP or a pause of its virtual machine.
The peer may have sent bytes that were not read yet, so the deadline is set again (hazard L06)."""
