"""Whether a missed deadline is the peer's fault or comes from a pause of this process. Pure."""

from __future__ import annotations

from typing import Final

LATE_MS: Final = 1_000
"""A deadline that is noticed so much later than it was due has passed while the process stood still: SIGSTOP, or the
pause of a virtual machine. What its peer has sent meanwhile was not read yet, so it is set again (hazard L06)."""
