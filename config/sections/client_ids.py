"""[client_ids]: how client ids are read."""

from __future__ import annotations

from config.section_base import Section
from quotas.limits import EmptyClientId


class ClientIdSettings(Section, frozen=True):
    """How client ids are read.

    Attributes:
        empty: what a client without a client id is; see quotas.limits.Limits.
        prefixes: whether users and client ids of quotas that end in ``*`` stand for all names that begin so.
    """

    empty: EmptyClientId = "kafka"
    prefixes: bool = False
