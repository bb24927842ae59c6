"""[fleet]: how gateways share usage, with client_quota.scope = "fleet"."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from config.section_base import WITHOUT_SECRET, Key, NonEmpty, Section, ShortName, faults_error

_TOPIC = r"^[A-Za-z0-9._-]{1,249}$"  # Kafka's rule for names of topics


class FleetSettings(Section, frozen=True):
    """How the gateways of a fleet share usage, so that a quota holds for all of them together.

    Needs `client_quota.scope = "fleet"`. All members need the same values, except for `member`.

    Attributes:
        member: name of this gateway, unique in the fleet. Not set: `usage.gateway_id`, or the host's name.
        topic: the topic for the messages, in the cluster behind the gateways. The gateway creates it if it
            does not exist.
        replication_factor: used when the gateway creates the topic. Not set: 3, or the number of brokers if
            that is smaller, but not less than the cluster's `default.replication.factor`.
        interval_ms: time between two messages about a counter near its limit.
        heartbeat_ms: time between two messages when nothing has changed.
        timeout_ms: a member that sends nothing for this time counts as gone. A member whose own messages do
            not come back for this time counts as isolated.
        max_counters_per_s: how many counters may be sent and received per second. Beyond it, the interval
            grows.
        on_isolation: which limits an isolated member enforces. share: the limits divided by the last known
            number of members. local: the full limits. last: the limits minus the last known use of the other
            members.
        connection_rates: whether connection rates of addresses, of listeners (by name) and of the gateway hold for
            all members together. false: for each gateway, as Kafka's hold for each broker. Rates of users hold for
            all members in any case.
        members: minimum number of members, for a member that has not seen any yet.
        secret_file: members sign their messages with the secret in this file and ignore messages without a
            valid signature. All members need the same secret. Not set: `quota_store.secret_file`.
        previous_secret_file: messages signed with this secret are accepted too.
    """

    member: ShortName | None = None
    topic: Annotated[str, Field(pattern=_TOPIC)] = "__sluice_usage_shares"
    replication_factor: Annotated[int, Field(ge=1, le=32_767)] | None = None
    interval_ms: Annotated[int, Field(ge=10, le=10_000)] = 100
    heartbeat_ms: Annotated[int, Field(ge=100, le=60_000)] = 1_000
    timeout_ms: Annotated[int, Field(ge=500, le=300_000)] = 3_000
    max_counters_per_s: Annotated[int, Field(ge=100, le=10_000_000)] = 20_000
    on_isolation: Literal["share", "local", "last"] = "share"
    connection_rates: bool = False
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
            faults.append((("previous_secret_file",), WITHOUT_SECRET))
        if faults:
            raise faults_error(faults)
        return self
