"""The error of a gateway that cannot start, except for ports that cannot be bound and unusable quota stores."""

from __future__ import annotations


class StartError(Exception):
    """The start failed because the gateway waited in vain; the text says for what, and what to check."""
