"""[log]: what is written to standard error."""

from __future__ import annotations

from typing import Literal

from config.section_base import Section


class LogSettings(Section, frozen=True):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["logfmt", "json"] = "logfmt"
