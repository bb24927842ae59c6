"""[fleet]: how gateways share usage, so that a quota is one for all of them; with client_quota.scope = "fleet"."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from config.section_base import Key, NonEmpty, Section, ShortName, faults_error

_TOPIC = r"^[A-Za-z0-9._-]{1,249}$"  # Kafka's rule for names of topics


class FleetSettings(Section, frozen=True):
    """What members tell each other; the same in all of them but for `member`.

    Attributes:
        member: names this gateway, unique in the fleet; None: usage.gateway_id, or the host's name.
        topic: of the cluster behind the gateways. Made if it is not there.
        replication_factor: of one that is made; None: 3, or as many brokers as there are.
        interval_ms: the time between two messages about a counter near its limit.
        heartbeat_ms: the time between two messages when there is nothing to tell.
        timeout_ms: a member that was not heard for so long is not there; one that does not hear itself is isolated.
        max_counters_per_s: told and heard; beyond, the interval grows.
        on_isolation: what an isolated member goes on with. share: the limits divided by the members seen last; local:
            the limits; last: the limits, less what the others used last.
        members: how many there are at least, for a member that has seen none yet.
        secret_file: messages are signed with what is in it, and others do not count; the same in all members. None:
            that of quota_store.
        previous_secret_file: messages signed with this one count as well.
    """

    member: ShortName | None = None
    topic: Annotated[str, Field(pattern=_TOPIC)] = "__sluice_usage_shares"
    replication_factor: Annotated[int, Field(ge=1, le=32_767)] | None = None
    interval_ms: Annotated[int, Field(ge=10, le=10_000)] = 100
    heartbeat_ms: Annotated[int, Field(ge=100, le=60_000)] = 1_000
    timeout_ms: Annotated[int, Field(ge=500, le=300_000)] = 3_000
    max_counters_per_s: Annotated[int, Field(ge=100, le=10_000_000)] = 20_000
    on_isolation: Literal["share", "local", "last"] = "share"
    members: Annotated[int, Field(ge=1, le=1_000)] = 1
    secret_file: NonEmpty | None = None
    previous_secret_file: NonEmpty | None = None

    @model_validator(mode="after")
    def _check(self) -> FleetSettings:
        faults: list[tuple[Key, str]] = []
        if self.heartbeat_ms < self.interval_ms:
            faults.append((("heartbeat_ms",), "shorter than interval_ms"))
        if self.timeout_ms < 2 * self.heartbeat_ms:
            faults.append((("timeout_ms",), "shorter than two heartbeats"))
        if self.secret_file is None and self.previous_secret_file is not None:
            faults.append((("previous_secret_file",), "without effect, since there is no secret_file"))
        if faults:
            raise faults_error(faults)
        return self
