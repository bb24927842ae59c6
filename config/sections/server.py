"""[server]: the processes of a gateway."""

from __future__ import annotations

import os
from typing import Annotated, Final, Literal

from pydantic import Field

from config.section_base import Section

MAX_WORKERS: Final = 64


class ServerSettings(Section, frozen=True):
    """The processes of a gateway.

    Attributes:
        workers: how many processes serve clients. 1: the gateway is one process. More: a supervisor accepts
            connections and hands them to the workers. auto: one worker for each core that the gateway may
            use.
    """

    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] | Literal["auto"] = 1

    @property
    def worker_count(self) -> int:
        """`workers` as a number, on this machine."""
        if self.workers == "auto":
            return min(len(os.sched_getaffinity(0)), MAX_WORKERS)
        return self.workers
