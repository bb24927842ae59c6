"""Why a gateway cannot start, other than a port that cannot be bound or a quota store that cannot be used."""

from __future__ import annotations


class StartError(Exception):
    """Something that the gateway waits for at its start did not happen; the text says what, and what to check."""
