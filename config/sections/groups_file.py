"""[groups_file]: groups of clients in a file of their own, which the pipeline reads too."""

from __future__ import annotations

from config.section_base import NonEmpty, Section


class GroupsFileSettings(Section, frozen=True):
    """A file with more groups, which `sluice-pipeline` reads too.

    It has `[[groups]]` alone, with the keys below and `topics`, `cost_center`, `owner` and `tier`, which the gateway
    checks and does not use. A group must not be in both files. Each reload reads the file again.

    Attributes:
        path: of the file. A relative path starts where the gateway is started.
    """

    path: NonEmpty | None = None
