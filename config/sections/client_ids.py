"""[client_ids]: how client ids are read."""

from __future__ import annotations

from config.section_base import Section
from quotas.limits import EmptyClientId


class ClientIdSettings(Section, frozen=True):
    """How Sluice reads client ids.

    Attributes:
        empty: how to treat a client without a client id. kafka: as Kafka does, so the client matches no quota
            for a client id. as_named: like a client whose id is the empty name.
        prefixes: whether a user or client id that ends in `*` in a quota stands for all names with that
            beginning.
    """

    empty: EmptyClientId = "kafka"
    prefixes: bool = False
