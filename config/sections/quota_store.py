"""[quota_store]: where quotas that are changed in a running gateway are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from config.section_base import WITHOUT_SECRET, Key, Milliseconds, NonEmpty, Section, faults_error

_TOPIC = r"^[A-Za-z0-9._-]{1,249}$"  # Kafka's rule for names of topics


class QuotaStoreSettings(Section, frozen=True):
    """Where quotas are kept that AlterClientQuotas or `sluice quotas` changed.

    Attributes:
        kind: sqlite: a file of this gateway. topic: a topic of the cluster, which several gateways share.
            memory: nothing is kept after the end.
        data_dir: for sqlite: a directory that no other gateway uses. A relative path starts where the gateway
            is started.
        topic: for topic: its name. The gateway creates it if it does not exist.
        replication_factor: for topic: used when the gateway creates it. Not set: 3, or the number of brokers
            if that is smaller, but not less than the cluster's `default.replication.factor`.
        max_quotas: maximum number of quotas. All of them are in memory.
        max_history: how many changes the history keeps.
        write_timeout_ms: for topic: how long an alteration may take, including its wait for others. The
            default is below the 30 s of a client's request.timeout.ms. When a gateway stops it waits up to 5
            s longer, for any kind of store.
        secret_file: for topic: records are signed with the secret in this file, and records without a valid
            signature are ignored. All gateways that share the topic need the same secret. Not set: every
            record counts.
        previous_secret_file: records signed with this secret are accepted too. The gateway signs them again
            when it starts.
        accept_unsigned: true: records without a signature are accepted, and signed at the start. false: they
            are ignored. Not set: as false, but the gateway does not start if nothing in the topic is signed.
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
                ((key,), WITHOUT_SECRET)
                for key in ("previous_secret_file", "accept_unsigned")
                if getattr(self, key) is not None
            )
        if faults:
            raise faults_error(faults)
        return self
