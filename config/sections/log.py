"""[log]: logging to standard error."""

from __future__ import annotations

from typing import Literal

from config.section_base import Section


class LogSettings(Section, frozen=True):
    """Logging to standard error.

    Attributes:
        level: the lowest level that is logged.
        format: format of the log, one line per event.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["logfmt", "json"] = "logfmt"
