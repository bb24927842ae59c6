"""Headers for responses of the admin port, so that no other site may read, frame or include them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NOT_FOR_OTHER_SITES: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page_headers(policy: str) -> dict[str, str]:
    """The headers of a page.

    Args:
        policy: its Content-Security-Policy.
    """
    return {**NOT_FOR_OTHER_SITES, "Content-Security-Policy": policy, "X-Frame-Options": "DENY"}
