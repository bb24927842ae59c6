"""The section about usage records: whether, where, and how much (docs/decisions/0007-usage-records.md)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from config.section import Key, NonEmpty, Section, faults_error

_GIB: Final = 1024**3


class UsageSettings(Section, frozen=True):
    """What every client used, one line per second.

    Attributes:
        kind: off; files: gzip files in `directory`; topic: the Kafka topic `topic` of the cluster behind the gateway.
        gateway_id: names this gateway in its records, unique among gateways; None: the host's name.
        directory: of the files; the gateway makes it.
        rotate_seconds, rotate_bytes: a file is completed after so long, or with so many bytes.
        keep_hours, keep_bytes: files of the directory beyond that are deleted, oldest first.
        topic: its name; made when it is not there and the gateway may.
        topic_partitions, topic_replication_factor: of a topic that is made; -1 leaves it to the brokers.
        max_rows: clients in one line; all others share one row.
        max_events: controller mutations in one line; further ones are only counted.
        max_queued_bytes: lines that wait for a slow disk or cluster; further ones are dropped and counted.
        privacy: plain: names as they are; hashed: keyed hashes of user, client id and address.
        salt_file: the key of the hashes, made when it is not there; in `directory` if not given.
    """

    kind: Literal["off", "files", "topic"] = "off"
    gateway_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = None
    directory: NonEmpty | None = None
    rotate_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    rotate_bytes: Annotated[int, Field(ge=1024 * 1024, le=_GIB)] = 64 * 1024 * 1024
    keep_hours: Annotated[int, Field(ge=1, le=24 * 3660)] = 168
    keep_bytes: Annotated[int, Field(ge=1024 * 1024, le=2**53)] = _GIB
    topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,249}$")] = "__sluice_usage"
    topic_partitions: Annotated[int, Field(ge=-1, le=10_000)] = 1
    topic_replication_factor: Annotated[int, Field(ge=-1, le=1_000)] = -1
    max_rows: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    max_events: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    max_queued_bytes: Annotated[int, Field(ge=1024 * 1024, le=_GIB)] = 16 * 1024 * 1024
    privacy: Literal["plain", "hashed"] = "plain"
    salt_file: NonEmpty | None = None

    @model_validator(mode="after")
    def _check(self) -> UsageSettings:
        faults: list[tuple[Key, str]] = []
        if self.kind == "files" and self.directory is None:
            faults.append((("directory",), "required, since kind is files"))
        if self.kind == "topic" and self.privacy == "hashed" and self.salt_file is None:
            faults.append((("salt_file",), "required, since names are hashed and there is no directory"))
        if self.topic_partitions == 0:
            faults.append((("topic_partitions",), "0 is no number of partitions; -1 is the brokers' default"))
        if self.topic_replication_factor == 0:
            faults.append((("topic_replication_factor",), "0 is no number of replicas; -1 is the default"))
        if faults:
            raise faults_error(faults)
        return self
