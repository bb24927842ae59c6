"""[enforcement]: what is done with all quotas."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from config.section_base import Section
from quotas.limits import Enforcement


class EnforcementSettings(Section, frozen=True):
    """What is done with all quotas: enforced, only watched, or nothing.

    Attributes:
        mode: see quotas.limits.Enforcement.
    """

    mode: Annotated[Enforcement, Field(strict=False)] = Enforcement.ENFORCE
