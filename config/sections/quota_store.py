"""[quota_store]: where quotas that are changed in a running gateway are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from config.section_base import Key, Milliseconds, NonEmpty, Section, faults_error

_TOPIC = r"^[A-Za-z0-9._-]{1,249}$"  # Kafka's rule for names of topics


class QuotaStoreSettings(Section, frozen=True):
    """What keeps the quotas that AlterClientQuotas and `sluice quotas import` change.

    Attributes:
        kind: sqlite: a file of this gateway; topic: a topic of the cluster, which several gateways share; memory:
            forgotten at the end.
        data_dir: for sqlite: a directory that no other gateway uses; relative to where the gateway is started.
        topic: for topic: its name. Made if it is not there.
        replication_factor: for topic: of one that is made; None: 3, or as many brokers as there are.
        max_quotas: how many quotas it may hold; all are in memory.
        max_history: how many changes are remembered.
        write_timeout_ms: for topic: how long an alteration may take, its wait for others included; below the
            30 s of a client's request.timeout.ms. At the end a gateway waits 5 s longer for any store.
        secret_file: for topic: its records are signed with what is in it, and others do not count; the same in all
            gateways that share the topic. None: every record counts.
        previous_secret_file: records signed with this one count as well; at the start they are signed anew.
        accept_unsigned: true: records without a signature count as well, and are signed at the start; false: they
            are passed over; None: as false, but a topic in which nothing is signed stops the start.
    """

    kind: Literal["sqlite", "topic", "memory"] = "sqlite"
    data_dir: NonEmpty = "sluice-data"
    topic: Annotated[str, Field(pattern=_TOPIC)] = "__sluice_quotas"
    replication_factor: Annotated[int, Field(ge=1, le=32_767)] | None = None
    max_quotas: Annotated[int, Field(ge=1, le=10_000_000)] = 200_000
    max_history: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    write_timeout_ms: Milliseconds = 20_000
    secret_file: NonEmpty | None = None
    previous_secret_file: NonEmpty | None = None
    accept_unsigned: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> QuotaStoreSettings:
        faults: list[tuple[Key, str]] = []
        if self.secret_file is None:
            faults.extend(
                ((key,), "without effect, since there is no secret_file")
                for key in ("previous_secret_file", "accept_unsigned")
                if getattr(self, key) is not None
            )
        if faults:
            raise faults_error(faults)
        return self
