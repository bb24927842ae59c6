"""Plans that once broke a law, made smaller: each names what was wrong with the gateway."""

from __future__ import annotations

from typing import Final

from simulation.plan import Plan

FINDINGS: Final[dict[str, Plan]] = {}
