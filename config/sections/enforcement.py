"""[enforcement]: whether quotas are enforced, observed or off."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from config.section_base import Section
from quotas.limits import Enforcement


class EnforcementSettings(Section, frozen=True):
    """What the gateway does with all quotas. `sluice enforcement` changes it at run time.

    Attributes:
        mode: enforce: clients are throttled and refused. observe: quotas are computed and reported, but no
            client is throttled or refused. off: quotas are not computed.
    """

    mode: Annotated[Enforcement, Field(strict=False)] = Enforcement.ENFORCE
