"""[usage]: whether and where usage records are written (docs/decisions/0007-usage-records.md)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from config.section_base import Key, NonEmpty, Section, ShortName, SmallCount, faults_error

_MIB: Final = 1024**2
_GIB: Final = 1024**3


class UsageSettings(Section, frozen=True):
    """Usage records: what every client used, in one line per second.

    Attributes:
        kind: off: no records. files: gzip files in `directory`. topic: the Kafka topic `topic` of the cluster
            behind the gateway.
        gateway_id: name of this gateway in its records. Unique among gateways. Not set: the host's name.
        directory: directory of the files. The gateway creates it.
        rotate_seconds: a file is completed after this time. Only complete files are read.
        rotate_bytes: a file is completed at this size.
        keep_hours: older files are deleted. A week lets the pipeline be away for days.
        keep_bytes: when the files are larger in total, the oldest are deleted. 1,000 clients that are always active
            make 2 GB a day.
        topic: name of the topic. The gateway creates it if it does not exist and the gateway may.
        secret_file: lines in a topic are signed with the secret in this file, so that the pipeline can
            recognise them. Not set: they are not signed.
        topic_partitions: used when the gateway creates the topic. -1: the brokers' default.
        topic_replication_factor: used when the gateway creates the topic. -1: the brokers' default.
        max_rows: clients in one line. All others share one row.
        max_events: controller mutations in one line. Further ones are only counted.
        topics: whether to count which topics clients produce to and fetch from.
        max_topics_per_client: topics of one client and API in one line. All others share one row.
        max_topics: the same for all clients together.
        stored: whether to ask each broker once an hour what each topic takes on its disks. One gateway of a fleet
            is enough. The gateway needs the right DESCRIBE on the cluster.
        max_queued_bytes: lines that may wait for a slow disk or cluster. Further ones are dropped and
            counted. 16 MiB last about half an hour with a hundred clients.
        privacy: plain: names as they are. hashed: keyed hashes of user, client id, address and topic.
        salt_file: file with the key of the hashes. The gateway creates it. Not set: `.usage-salt` in `directory`.
    """

    kind: Literal["off", "files", "topic"] = "off"
    gateway_id: ShortName | None = None
    directory: NonEmpty | None = None
    rotate_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    rotate_bytes: Annotated[int, Field(ge=_MIB, le=_GIB)] = 64 * _MIB
    keep_hours: Annotated[int, Field(ge=1, le=24 * 3660)] = 168
    keep_bytes: Annotated[int, Field(ge=_MIB, le=2**53)] = _GIB
    topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,249}$")] = "__sluice_usage"
    secret_file: NonEmpty | None = None
    topic_partitions: Annotated[int, Field(ge=-1, le=10_000)] = 1
    topic_replication_factor: Annotated[int, Field(ge=-1, le=1_000)] = -1
    max_rows: SmallCount = 10_000
    max_events: SmallCount = 10_000
    topics: bool = False
    max_topics_per_client: Annotated[int, Field(ge=1, le=10_000)] = 100
    max_topics: SmallCount = 20_000
    stored: bool = False
    max_queued_bytes: Annotated[int, Field(ge=_MIB, le=_GIB)] = 16 * _MIB
    privacy: Literal["plain", "hashed"] = "plain"
    salt_file: NonEmpty | None = None

    @model_validator(mode="after")
    def _check(self) -> UsageSettings:
        faults: list[tuple[Key, str]] = []
        if self.kind == "files" and self.directory is None:
            faults.append((("directory",), "required, since kind is files"))
        if self.kind == "off" and self.topics:
            faults.append((("topics",), "needs records to be in; set kind"))
        if self.kind == "off" and self.stored:
            faults.append((("stored",), "needs records to be in; set kind"))
        if self.kind == "topic" and self.privacy == "hashed" and self.salt_file is None:
            faults.append((("salt_file",), "required, since names are hashed and there is no directory"))
        if self.topic_partitions == 0:
            faults.append((("topic_partitions",), "0 is no number of partitions; -1 is the brokers' default"))
        if self.topic_replication_factor == 0:
            faults.append((("topic_replication_factor",), "0 is no number of replicas; -1 is the default"))
        if faults:
            raise faults_error(faults)
        return self
