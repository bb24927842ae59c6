"""Valid topic names (`org.apache.kafka.common.internals.Topic`)."""

from __future__ import annotations

import re
from typing import Final

_LEGAL: Final = re.compile(rb"[a-zA-Z0-9._-]{1,249}")


def is_valid_topic_name(name: bytes) -> bool:
    """1 to 249 ASCII letters, digits, dots, underscores and hyphens, but neither "." nor ".."."""
    return _LEGAL.fullmatch(name) is not None and name not in (b".", b"..")
