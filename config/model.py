"""The whole configuration: its sections, the rules between them, and the quota objects made from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, model_validator

from config.faults import path_text
from config.host_port import HostPort, is_loopback
from config.section_base import Key, Section, faults_error
from config.sections.admin import AdminSettings
from config.sections.capacity import CapacitySettings
from config.sections.client_ids import ClientIdSettings
from config.sections.client_quota import ClientQuotaSettings
from config.sections.connections import ConnectionSettings
from config.sections.drain import DrainSettings
from config.sections.enforcement import EnforcementSettings
from config.sections.fleet import FleetSettings
from config.sections.groups import GroupRule
from config.sections.groups_file import GroupsFileSettings
from config.sections.limits import LimitSettings
from config.sections.listeners import ListenerSettings, ListenerTls
from config.sections.log import LogSettings
from config.sections.metrics import MetricSettings
from config.sections.mutation_quota import MutationQuotaSettings
from config.sections.overload import OverloadSettings
from config.sections.quota_admin import QuotaAdminSettings
from config.sections.quota_store import QuotaStoreSettings
from config.sections.quotas import QuotaRule
from config.sections.server import ServerSettings
from config.sections.traces import TraceSettings
from config.sections.upstream import NamedUpstreamSettings, SendProxyProtocol, UpstreamSettings, UpstreamTls
from config.sections.usage import UsageSettings
from quotas.entities import QuotaEntity, QuotaKey
from quotas.groups import MOST_GROUPS, Groups
from quotas.limits import Enforcement, Limits
from quotas.mutations import MutationSettings
from quotas.rate_quotas import RateSettings


class Config(Section, frozen=True):
    """A configuration without contradictions; the attributes are the sections of the file."""

    server: ServerSettings = ServerSettings()
    upstream: UpstreamSettings
    upstreams: Annotated[tuple[NamedUpstreamSettings, ...], Field(strict=False)] = ()
    listeners: Annotated[tuple[ListenerSettings, ...], Field(strict=False, min_length=1)]
    admin: AdminSettings = AdminSettings()
    limits: LimitSettings = LimitSettings()
    connections: ConnectionSettings = ConnectionSettings()
    drain: DrainSettings = DrainSettings()
    log: LogSettings = LogSettings()
    enforcement: EnforcementSettings = EnforcementSettings()
    client_quota: ClientQuotaSettings = ClientQuotaSettings()
    capacity: CapacitySettings = CapacitySettings()
    overload: OverloadSettings = OverloadSettings()
    mutation_quota: MutationQuotaSettings = MutationQuotaSettings()
    client_ids: ClientIdSettings = ClientIdSettings()
    quota_store: QuotaStoreSettings = QuotaStoreSettings()
    usage: UsageSettings = UsageSettings()
    traces: TraceSettings = TraceSettings()
    metrics: MetricSettings = MetricSettings()
    fleet: FleetSettings = FleetSettings()
    quota_admin: QuotaAdminSettings = QuotaAdminSettings()
    groups_file: GroupsFileSettings = GroupsFileSettings()
    groups: Annotated[tuple[GroupRule, ...], Field(strict=False, max_length=MOST_GROUPS)] = ()
    quotas: Annotated[tuple[QuotaRule, ...], Field(strict=False)] = ()

    def with_upstream(self, bootstrap: tuple[HostPort, ...]) -> Config:
        """The same configuration in front of another cluster.

        Raises:
            pydantic.ValidationError: the gateway would be its own upstream.
        """
        upstream = self.upstream.model_copy(update={"bootstrap": bootstrap})
        sections = {name: getattr(self, name) for name in type(self).model_fields}
        return Config(**{**sections, "upstream": upstream})

    def quota_items(self) -> list[tuple[QuotaEntity, QuotaKey, float]]:
        """Every configured quota, in the order of the file; for `Limits.replace_all`."""
        return [(rule.entity, key, value) for rule in self.quotas for key, value in rule.values().items()]

    def observed_entities(self) -> frozenset[QuotaEntity]:
        """Entities with quotas that are only observed; for `Limits.set_observed`."""
        return frozenset(rule.entity for rule in self.quotas if rule.observe)

    def member_groups(self) -> Groups:
        """The groups of clients; for `Limits.set_groups`."""
        return Groups(rule.group for rule in self.groups)

    def divided_rates(self) -> frozenset[QuotaKey]:
        """The byte rates of which clients get a share of the capacity."""
        return frozenset() if self.capacity.observe else frozenset(self.capacity.by_quota())

    def quota_limits(self) -> Limits:
        """A new set of limits with the configured quotas."""
        limits = Limits(empty_client_id=self.client_ids.empty, prefixes=self.client_ids.prefixes)
        limits.replace_all(self.quota_items())
        limits.set_observed(self.observed_entities())
        limits.set_groups(self.member_groups())
        limits.set_mode(self.enforcement.mode)
        return limits

    def rate_settings(self) -> RateSettings:
        """How byte rates and request time are measured."""
        section = self.client_quota
        return RateSettings(
            window_num=section.window_num,
            window_ms=section.window_size_seconds * 1000,
            max_trackers=section.max_trackers,
            idle_expiry_ms=section.idle_expiry_ms,
        )

    def mutation_settings(self) -> MutationSettings:
        """How controller mutations are measured."""
        section = self.mutation_quota
        return MutationSettings(
            window_num=section.window_num,
            window_ms=section.window_size_seconds * 1000,
            algorithm=section.algorithm,
            validate_only=section.validate_only,
            max_trackers=section.max_trackers,
            idle_expiry_ms=section.idle_expiry_ms,
        )

    @property
    def all_upstreams(self) -> tuple[UpstreamSettings, ...]:
        """[upstream], then [[upstreams]]."""
        return (self.upstream, *self.upstreams)

    def upstream_of(self, listener: ListenerSettings) -> UpstreamSettings:
        """The upstream of a listener."""
        return next((each for each in self.upstreams if each.name == listener.upstream), self.upstream)

    @model_validator(mode="after")
    def _check(self) -> Config:
        faults = [
            *self._name_faults(),
            *self._upstream_faults(),
            *self._own_topic_faults(),
            *self._port_faults(),
            *self._loop_faults(),
            *self._quota_faults(),
            *self._group_faults(),
        ]
        if faults:
            raise faults_error(faults)
        return self

    def _name_faults(self) -> Iterator[tuple[Key, str]]:
        seen: dict[str, int] = {}
        for at, listener in enumerate(self.listeners):
            first = seen.setdefault(listener.name, at)
            if first != at:
                yield ("listeners", at, "name"), f'"{listener.name}" is the name of listeners.{first} too'
        protected = [at for at, listener in enumerate(self.listeners) if listener.protected]
        for at in protected[1:]:
            yield ("listeners", at, "protected"), f"{self.listeners[protected[0]].path} is; only one can be"

    def _port_faults(self) -> Iterator[tuple[Key, str]]:
        claims = list(self.port_claims())
        for at, claim in enumerate(claims):
            for other in claims[:at]:
                if claim.collides(other):
                    yield claim.key, f"{claim} overlaps {path_text(other.key, self)} {other}"

    def _loop_faults(self) -> Iterator[tuple[Key, str]]:
        upstreams: list[tuple[Key, UpstreamSettings]] = [(("upstream",), self.upstream)]
        upstreams += [(("upstreams", at), each) for at, each in enumerate(self.upstreams)]
        for key, upstream in upstreams:
            for at, broker in enumerate(upstream.bootstrap):
                for claim in self.port_claims():
                    if claim.answers(broker):
                        text = f'"{broker}" is the gateway itself ({path_text(claim.key, self)})'
                        yield (*key, "bootstrap", at), text
                        break

    def _upstream_faults(self) -> Iterator[tuple[Key, str]]:
        seen = {"upstream": "upstream"}  # the name that [upstream] has in metrics
        for at, each in enumerate(self.upstreams):
            first = seen.setdefault(each.name, f"upstreams.{at}")
            if first != f"upstreams.{at}":
                yield ("upstreams", at, "name"), f'"{each.name}" is the name of {first} too'
        known = {each.name for each in self.upstreams}
        for at, listener in enumerate(self.listeners):
            if listener.upstream is not None and listener.upstream not in known:
                names = ", ".join(sorted(known)) or "none"
                yield (
                    ("listeners", at, "upstream"),
                    f'"{listener.upstream}" is not in [[upstreams]], which has {names}',
                )
            elif listener.security_protocol.sasl and not self.upstream_of(listener).security_protocol.sasl:
                text = (
                    f"{listener.security_protocol} leads to brokers that do not authenticate clients; see its "
                    "upstream"
                )
                yield ("listeners", at, "security_protocol"), text

    def secret_files(self) -> dict[str, str]:
        """The files with the gateway's own secrets, which it reads when it starts, by key."""
        topics = self.own_topics()
        store, fleet = self.quota_store, self.fleet
        found = {}
        if "quota_store" in topics or ("fleet" in topics and fleet.secret_file is None):
            found["quota_store.secret_file"] = store.secret_file
            found["quota_store.previous_secret_file"] = store.previous_secret_file
        if "usage" in topics:
            found["usage.secret_file"] = self.usage.secret_file
        if "fleet" in topics:
            found["fleet.secret_file"] = fleet.secret_file
            found["fleet.previous_secret_file"] = fleet.previous_secret_file
        return {key: file for key, file in found.items() if file is not None}

    def private_files(self) -> list[tuple[str, str]]:
        """All files with secrets that the gateway uses, including private keys; each with its key."""
        found = [*self.secret_files().items()]
        if self.usage.kind != "off" and self.usage.salt_file is not None:
            found.append(("usage.salt_file", self.usage.salt_file))
        for at, admin_key in enumerate(self.admin.keys):
            if admin_key.token_file is not None:
                found.append((f"admin.keys.{at}.token_file", admin_key.token_file))
        owners: list[tuple[str, ListenerTls | UpstreamTls | None]] = [("admin", self.admin.tls)]
        owners += [(each.path, each.tls) for each in self.listeners]
        owners += [(each.path, each.tls) for each in self.all_upstreams]
        for path, tls in owners:
            if tls is not None:
                files = {"tls.key": tls.key, "tls.key_password_file": tls.key_password_file}
                for at, each in enumerate(tls.certificates if isinstance(tls, ListenerTls) else ()):
                    own = f"tls.certificates.{at}"
                    files |= {f"{own}.key": each.key, f"{own}.key_password_file": each.key_password_file}
                found += [(f"{path}.{key}", file) for key, file in files.items() if file is not None]
        for upstream in self.all_upstreams:
            if upstream.sasl is not None:
                secrets = upstream.sasl.secret_files
                found += [(f"{upstream.path}.sasl.{key}", file) for key, file in secrets.items()]
        return found

    def own_topics(self) -> dict[str, str]:
        """The topics with this gateway's own records, by section."""
        kept = {
            "quota_store": (self.quota_store.topic, self.quota_store.kind == "topic"),
            "usage": (self.usage.topic, self.usage.kind == "topic"),
            "fleet": (self.fleet.topic, self.client_quota.scope == "fleet"),
        }
        return {section: topic for section, (topic, used) in kept.items() if used}

    def _own_topic_faults(self) -> Iterator[tuple[Key, str]]:
        seen: dict[str, str] = {}
        for section, topic in self.own_topics().items():
            first = seen.setdefault(topic, section)
            if first != section:
                yield (section, "topic"), f'"{topic}" is that of {first} too'
        if self.upstream.send_proxy_protocol is SendProxyProtocol.NONE:
            return
        for name, kind in (("quota_store", self.quota_store.kind), ("usage", self.usage.kind)):
            if kind == "topic":
                yield (
                    ("upstream", "send_proxy_protocol"),
                    f'{name}.kind = "topic" needs a client that sends no headers; give another kind',
                )
        if self.client_quota.scope == "fleet":
            yield (
                ("upstream", "send_proxy_protocol"),
                'client_quota.scope = "fleet" needs a client that sends no headers; give another scope',
            )

    def _quota_faults(self) -> Iterator[tuple[Key, str]]:
        if self.capacity.by_quota() and self.client_quota.scope == "broker":
            yield (
                ("capacity",),
                'is divided over all brokers; client_quota.scope = "broker" counts each by itself',
            )
        if self.overload.mode is not Enforcement.OFF and not self.capacity.by_quota():
            yield ("overload", "mode"), "needs [capacity]: it is a part of that which slow brokers can take"
        seen: dict[tuple[QuotaEntity, QuotaKey], int] = {}
        entities: dict[QuotaEntity, int] = {}
        for at, rule in enumerate(self.quotas):
            entity_first = entities.setdefault(rule.entity, at)
            if self.quotas[entity_first].observe is not rule.observe:
                yield ("quotas", at, "observe"), f"{rule.entity} says otherwise in quotas.{entity_first}"
            for key in rule.values():
                first = seen.setdefault((rule.entity, key), at)
                if first != at:
                    yield (
                        ("quotas", at, str(key)),
                        f"{rule.entity} has this quota from quotas.{first} already",
                    )

    def _group_faults(self) -> Iterator[tuple[Key, str]]:
        seen: dict[str, int] = {}
        for at, rule in enumerate(self.groups):
            first = seen.setdefault(rule.name, at)
            if first != at:
                yield ("groups", at, "name"), f"is the name of groups.{first} already"

    def port_claims(self) -> Iterator[PortClaim]:
        for at, listener in enumerate(self.listeners):
            bind = listener.bind
            yield PortClaim(("listeners", at, "bind"), bind, bind.port)
            if listener.ports_of_brokers:
                brokers = HostPort(bind.host, listener.first_broker_port)
                yield PortClaim(("listeners", at, "first_broker_port"), brokers, listener.last_broker_port)
        yield PortClaim(("admin", "bind"), self.admin.bind, self.admin.bind.port)


@dataclass(frozen=True, slots=True)
class PortClaim:
    """The ports that one key of the file listens on."""

    key: Key
    first: HostPort
    last_port: int

    def __str__(self) -> str:
        more = f"..{self.last_port}" if self.last_port > self.first.port else ""
        return f"{self.first}{more}"

    def collides(self, other: PortClaim) -> bool:
        # Two names for one address are not found here. They cause an error about a busy port at the start.
        same_host = self.first.wildcard or other.first.wildcard or self.first.host == other.first.host
        some_port = self.first.port != 0 and other.first.port != 0
        return (
            same_host
            and some_port
            and self.first.port <= other.last_port
            and other.first.port <= self.last_port
        )

    def answers(self, peer: HostPort) -> bool:
        # A wildcard includes the machine's other addresses, but these are not known here.
        same_host = (
            self.first.host == peer.host
            or (self.first.wildcard and is_loopback(peer.host))
            or (peer.host == "localhost" and is_loopback(self.first.host))
        )
        return same_host and self.first.port <= peer.port <= self.last_port
