"""Findings in a valid configuration: a gateway that would never be ready, settings without effect.

An error: the gateway would never be ready, or would do something else than the file says. A note: the setting may be
intended. Settings that break a rule of the file are refused when it is read (`config.loader`) and are not findings.
`CHECKS` is the list. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from config.faults import path_text
from config.host_port import HostPort, is_loopback
from config.model import Config
from config.section_base import Section
from config.sections.listeners import ListenerSettings
from config.sections.quota_admin import Authorize
from quotas.entities import BURST_KEYS, DEFAULT, GUARANTEE_KEYS, Name, QuotaKey
from quotas.name_prefixes import is_prefix

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_ANONYMOUS: Final = "ANONYMOUS"
_NO_LOGIN: Final = (
    f"no listener has SASL or client certificates, so all clients are {_ANONYMOUS} and none has this name"
)
NO_SUCH_GROUP: Final = "no [[groups]] entry has this name"
WITHOUT_BYTE_RATE: Final = f"has no effect: this entity has neither {' nor '.join(GUARANTEE_KEYS)}"
_PERCENT_OF_A_CORE: Final = 100.0
_CIPHERS: Final = 'they are those of TLS 1.2 and minimum_version is "TLSv1.3"'


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line for an operator.

    Attributes:
        severity: see the module.
        key: the path of a key in the file.
        text: the fault, and what to do.
    """

    severity: Severity
    key: str
    text: str

    def __str__(self) -> str:
        """The finding in the form of all faults of a configuration."""
        return f"{self.key}: {self.text}"


def findings(config: Config) -> list[Finding]:
    """All findings, errors first."""
    found = [each for check in CHECKS for each in check(config)]
    return sorted(found, key=lambda each: each.severity is Severity.NOTE)


def _error(key: str, text: str) -> Finding:
    return Finding(Severity.ERROR, key, text)


def _note(key: str, text: str) -> Finding:
    return Finding(Severity.NOTE, key, text)


# -- a gateway that would never be ready, or would do something else ------------------------------------------


def _no_login(config: Config) -> Iterator[Finding]:
    for upstream in config.all_upstreams:
        if upstream.security_protocol.sasl and upstream.sasl is None:
            yield _error(
                f"{upstream.path}.sasl",
                "missing, so the gateway cannot log in to these brokers and will never be ready; give "
                f"[{upstream.path.split('.')[0]}.sasl] with mechanism, username and password_file, or with "
                'mechanism = "OAUTHBEARER" and what it needs',
            )


def _fleet_without_shared_store(config: Config) -> Iterator[Finding]:
    if config.client_quota.scope == "fleet" and config.quota_store.kind != "topic":
        yield _error(
            "quota_store.kind",
            'gateways with client_quota.scope = "fleet" share usage, but a changed quota would apply to only one of '
            'them; set quota_store.kind = "topic"',
        )


def _named_like_the_default(config: Config) -> Iterator[Finding]:
    for at, rule in enumerate(config.quotas):
        for name in ("user", "client_id"):
            if getattr(rule, name) == DEFAULT.value:
                yield _error(
                    path_text(("quotas", at, name), config),
                    f'"{DEFAULT.value}" is read as a name, and no client has it; for the default, set '
                    f"default_{name} = true",
                )


# -- quotas and rights that no client can have ----------------------------------------------------------------


def name_notes(user: Name | None, client_id: Name | None, *, prefixes: bool, logins: bool) -> list[str]:
    """Why no client can match these names of a quota; empty: a client can.

    Args:
        user, client_id: the names in the quota.
        prefixes: client_ids.prefixes.
        logins: whether clients can log in; see `any_authenticates`.
    """
    notes = []
    if not prefixes:
        notes += [_star_text(name) for name in (user, client_id) if isinstance(name, str) and is_prefix(name)]
    if isinstance(user, str) and user != _ANONYMOUS and not logins:
        notes.append(_NO_LOGIN)
    return notes


def _star_text(name: str) -> str:
    return (
        f'the star in "{name}" is part of the name; to match all names with this prefix, set client_ids.prefixes '
        "= true"
    )


def any_authenticates(config: Config) -> bool:
    """Whether a listener gives clients a name, by SASL or by their certificates."""
    return any(_authenticates(listener) for listener in config.listeners)


def _star_without_prefixes(config: Config) -> Iterator[Finding]:
    if config.client_ids.prefixes:
        return
    for at, rule in enumerate(config.quotas):
        for name in ("user", "client_id"):
            if is_prefix(given := getattr(rule, name)):
                yield _note(path_text(("quotas", at, name), config), _star_text(given))


def _groups_without_members(config: Config) -> Iterator[Finding]:
    defined = {rule.name for rule in config.groups}
    for at, rule in enumerate(config.quotas):
        if rule.group is not None and rule.group not in defined:
            yield _note(path_text(("quotas", at, "group"), config), NO_SUCH_GROUP)


def _groups_without_quotas(config: Config) -> Iterator[Finding]:
    limited = {rule.group for rule in config.quotas}
    for at, rule in enumerate(config.groups):
        if rule.name not in limited:
            text = "limits nothing: no [[quotas]] entry has this group; a quota may be in the quota store"
            yield _note(path_text(("groups", at, "name"), config), text)


def _guarantees_without_capacity(config: Config) -> Iterator[Finding]:
    capacity = config.capacity.by_quota()
    for at, rule in enumerate(config.quotas):
        values = rule.values()
        for rate, guarantee in GUARANTEE_KEYS.items():
            if guarantee in values and rate not in capacity:
                text = f"without effect: [capacity] has no {rate}"
                yield _note(path_text(("quotas", at, str(guarantee)), config), text)
        if QuotaKey.WEIGHT in values and not capacity:
            yield _note(path_text(("quotas", at, "weight"), config), "without effect: there is no [capacity]")


def _guarantees_above_capacity(config: Config) -> Iterator[Finding]:
    for rate, capacity in config.capacity.by_quota().items():
        key = GUARANTEE_KEYS[rate]
        # A default gives its guarantee to each of its clients, so it has no sum.
        named = (rule for rule in config.quotas if DEFAULT not in (rule.entity.user, rule.entity.client_id))
        together = sum(rule.values().get(key, 0.0) for rule in named)
        if together > capacity:
            text = (
                f"{capacity:.0f} B/s are less than all guarantees of {rate} together, {together:.0f} B/s; when all "
                "are used, each is cut by the same factor"
            )
            yield _note(path_text(("capacity", str(rate)), config), text)


def _attributes_without_rate(config: Config) -> Iterator[Finding]:
    for at, rule in enumerate(config.quotas):
        values = rule.values()
        for key in (QuotaKey.WEIGHT, QuotaKey.TIER):
            if key in values and config.capacity.by_quota() and not values.keys() & GUARANTEE_KEYS.keys():
                text = f"{WITHOUT_BYTE_RATE} here; one may be in the quota store"
                yield _note(path_text(("quotas", at, str(key)), config), text)


def _bursts_without_rate(config: Config) -> Iterator[Finding]:
    for at, rule in enumerate(config.quotas):
        values = rule.values()
        for rate, burst in BURST_KEYS.items():
            if burst in values and rate not in values:
                text = f"without effect: this entity has no {rate} here; one may be in the quota store"
                yield _note(path_text(("quotas", at, str(burst)), config), text)


def _users_without_a_login(config: Config) -> Iterator[Finding]:
    if any_authenticates(config):
        return
    for at, rule in enumerate(config.quotas):
        if rule.user not in (None, _ANONYMOUS, DEFAULT.value):
            yield _note(path_text(("quotas", at, "user"), config), _NO_LOGIN)
    for at, admin in enumerate(config.quota_admin.admins):
        if admin != f"User:{_ANONYMOUS}":
            yield _note(f"quota_admin.admins.{at}", _NO_LOGIN)


def _anonymous_behind_sasl(config: Config) -> Iterator[Finding]:
    for listener in config.listeners:
        if config.upstream_of(listener).security_protocol.sasl and not listener.security_protocol.sasl:
            yield _note(
                f"{listener.path}.security_protocol",
                f"clients can authenticate, but quotas see all of them as {_ANONYMOUS}; give the listener SASL too",
            )


# -- limits that are never reached ----------------------------------------------------------------------------


def _connection_limits(config: Config) -> Iterator[Finding]:
    section = config.connections
    most = section.max_connections
    if most is not None:
        text = f"is never reached, since connections.max_connections is {most}"
        if (section.max_connections_per_ip or 0) > most:
            yield _note("connections.max_connections_per_ip", f"{section.max_connections_per_ip} {text}")
        for address, own in section.max_connections_per_ip_overrides.items():
            if own > most:
                yield _note(f'connections.max_connections_per_ip_overrides."{address}"', f"{own} {text}")
    for listener in config.listeners:
        # The protected listener may exceed the limits of all listeners together.
        if listener.protected and len(config.listeners) > 1:
            continue
        for name in ("max_connections", "max_connection_creation_rate"):
            of_all, own = getattr(section, name), getattr(listener, name)
            if of_all is not None and (own or 0) > of_all:
                yield _note(
                    f"{listener.path}.{name}", f"{own} is never reached, since connections.{name} is {of_all}"
                )
    rate = section.max_connection_creation_rate
    if rate is not None and not any(listener.protected for listener in config.listeners):
        for at, rule in enumerate(config.quotas):
            if (rule.connection_creation_rate or 0) > rate:
                yield _note(
                    path_text(("quotas", at, "connection_creation_rate"), config),
                    f"{rule.connection_creation_rate} is never reached, since "
                    f"connections.max_connection_creation_rate is {rate}",
                )


def _request_time(config: Config) -> Iterator[Finding]:
    if config.client_quota.request_time != "gateway" or config.server.workers == "auto":
        return
    most = config.server.workers * _PERCENT_OF_A_CORE
    for at, rule in enumerate(config.quotas):
        if (rule.request_percentage or 0) > most:
            yield _note(
                path_text(("quotas", at, str(QuotaKey.REQUEST_PERCENTAGE)), config),
                f"{rule.request_percentage:g} is never reached, since server.workers is {config.server.workers} and "
                f"a process uses {_PERCENT_OF_A_CORE:g} at most",
            )


# -- where clients and brokers are ----------------------------------------------------------------------------


def _advertised_elsewhere(config: Config) -> Iterator[Finding]:
    for listener in config.listeners:
        if listener.sni is not None:
            continue
        bound_here, advertised_here = is_loopback(listener.bind.host), is_loopback(listener.advertised_host)
        if advertised_here and not bound_here:
            yield _note(
                f"{listener.path}.advertised_host",
                f'"{listener.advertised_host}" makes clients on other machines connect to themselves; give a name '
                "or address of this machine",
            )
        elif bound_here and not advertised_here:
            yield _note(
                f"{listener.path}.advertised_host",
                f'"{listener.advertised_host}" is not where the listener is: bind is {listener.bind}, which only '
                "this machine reaches",
            )


def _upstream_is_advertised(config: Config) -> Iterator[Finding]:
    for upstream in config.all_upstreams:
        for number, broker in enumerate(upstream.bootstrap):
            for listener in config.listeners:
                key = _advertises(listener, broker)
                if key is not None:
                    yield _note(
                        f"{upstream.path}.bootstrap.{number}",
                        f'"{broker}" is an address that the gateway advertises for itself '
                        f"({listener.path}.{key}); unless it leads to brokers from here, the gateway will "
                        "never be ready",
                    )
                    break


def _advertises(listener: ListenerSettings, broker: HostPort) -> str | None:
    """The key by which a listener advertises this address; None: it does not."""
    if listener.sni is not None:
        port = listener.sni.advertised_port or listener.bind.port
        named = listener.sni.names.node_of(broker.host.lower()) is not None
        return "sni" if named and broker.port == port else None
    ports = (listener.bind.port, *listener.ports_of_brokers)
    return "advertised_host" if broker.host == listener.advertised_host and broker.port in ports else None


def _unused_upstream(config: Config) -> Iterator[Finding]:
    used = {listener.upstream for listener in config.listeners}
    for upstream in config.upstreams:
        if upstream.name not in used:
            yield _note(
                f"{upstream.path}.name",
                f'no listener uses "{upstream.name}", yet the gateway is not ready while it cannot be reached',
            )


def _trusted_twice(config: Config) -> Iterator[Finding]:
    for listener in config.listeners:
        if listener.proxy_protocol is None:
            continue
        trusted = [(text, ipaddress.ip_network(text)) for text in listener.proxy_protocol.trusted]
        for number, (text, block) in enumerate(trusted):
            others = (trusted[:number], [each for each in trusted[number + 1 :] if each[1] != block])
            for other_text, other in (each for some in others for each in some):
                if _within(block, other):
                    key = f"{listener.path}.proxy_protocol.trusted.{number}"
                    yield _note(key, f'"{text}" is within "{other_text}"; give one of them')
                    break


# -- access that may be unintended ----------------------------------------------------------------------------


def _anyone_may_change_quotas(config: Config) -> Iterator[Finding]:
    if config.quota_admin.authorize is Authorize.ANYONE:
        yield _note("quota_admin.authorize", "every client may change quotas; for development only")


def _trusts_everybody(config: Config) -> Iterator[Finding]:
    for listener in config.listeners:
        if listener.proxy_protocol is not None and listener.proxy_protocol.trusts_all:
            yield _note(
                f"{listener.path}.proxy_protocol.trusted",
                "trusts every peer, so any peer can claim any address",
            )


def _anonymous_admins(config: Config) -> Iterator[Finding]:
    for at, admin in enumerate(config.quota_admin.admins):
        for listener in config.listeners if admin == f"User:{_ANONYMOUS}" else ():
            if not is_loopback(listener.bind.host) and not _all_authenticate(listener):
                yield _note(
                    f"quota_admin.admins.{at}",
                    f"clients of {listener.path} need no login, so each machine that reaches {listener.bind} may "
                    "change quotas",
                )


def _open_admin_port(config: Config) -> Iterator[Finding]:
    admin = config.admin
    if admin.open_to_others:
        key, what = (
            ("remote_changes", "change quotas") if admin.remote_changes else ("bind", "read all of it")
        )
        yield _note(
            f"admin.{key}",
            f"the admin port has no keys: each machine that reaches {admin.bind} may {what}; give [[admin.keys]]",
        )
    elif admin.keys and admin.tls is None and not is_loopback(admin.bind.host):
        yield _note("admin.tls", f"missing, so tokens for {admin.bind} cross the network unencrypted")
    if admin.tls is not None and admin.tls.client_auth == "required":
        yield _note(
            "admin.tls.client_auth",
            '"required": probes of /healthz and /readyz need a certificate too; "requested" lets them in without one',
        )


def _unverified_brokers(config: Config) -> Iterator[Finding]:
    for upstream in config.all_upstreams:
        if upstream.tls is not None and not upstream.tls.verify:
            yield _note(f"{upstream.path}.tls.verify", "false: any host can pose as the cluster")


# -- settings without effect ----------------------------------------------------------------------------------


def _own_clients(config: Config) -> Iterator[Finding]:
    tls = config.upstream.tls
    if tls is not None and tls.server_name is not None and config.own_topics():
        yield _note(
            "upstream.tls.server_name",
            f"does not apply to the gateway's own topics ({', '.join(config.own_topics())}): there the brokers' "
            "certificates must name the host that the gateway connects to",
        )


def _without_effect(config: Config) -> Iterator[Finding]:
    for key, section, names, reason in _useless(config):
        for name in names or type(section).model_fields:
            if getattr(section, name) != _default(section, name):
                yield _note(f"{key}.{name}", f"without effect, since {reason}; remove it, or change that")


def _useless(config: Config) -> Iterator[tuple[str, Section, tuple[str, ...], str]]:
    """(path, section, its keys without effect, why); no keys: all of them."""
    store, usage = config.quota_store, config.usage
    fleet = config.client_quota.scope == "fleet"
    if store.kind != "sqlite":
        yield "quota_store", store, ("data_dir",), f'quota_store.kind is "{store.kind}"'
    if store.kind != "topic":
        secrets = () if fleet else ("secret_file", "previous_secret_file", "accept_unsigned")
        yield (
            "quota_store",
            store,
            ("topic", "replication_factor", *secrets),
            f'quota_store.kind is "{store.kind}"',
        )
    topic = ("topic", "secret_file", "topic_partitions", "topic_replication_factor")
    files = ("directory", "rotate_seconds", "rotate_bytes", "keep_bytes")
    if usage.kind == "off":
        kept = tuple(name for name in type(usage).model_fields if name not in ("kind", "gateway_id"))
        yield "usage", usage, kept, 'usage.kind is "off"'
    else:
        yield "usage", usage, files if usage.kind == "topic" else topic, f'usage.kind is "{usage.kind}"'
        if usage.privacy == "plain":
            yield "usage", usage, ("salt_file",), 'usage.privacy is "plain"'
        if not usage.topics:
            yield "usage", usage, ("max_topics_per_client", "max_topics"), "usage.topics is false"
    if not fleet:
        yield "fleet", config.fleet, (), f'client_quota.scope is "{config.client_quota.scope}"'
    for name, section in (("traces", config.traces), ("metrics", config.metrics)):
        if section.endpoint is None:
            yield name, section, (), f"{name}.endpoint is not given"
        elif not section.endpoint.startswith("https"):
            yield name, section, ("ca",), f"{name}.endpoint is not an https address"
    if config.admin.keys:
        yield "admin", config.admin, ("remote_changes",), "the roles of admin.keys decide"
    elif is_loopback(config.admin.bind.host):
        yield "admin", config.admin, ("remote_changes",), f"admin.bind is {config.admin.bind}"
    if config.quota_admin.authorize is Authorize.ANYONE:
        yield "quota_admin", config.quota_admin, ("admins",), 'quota_admin.authorize is "anyone"'
    if len(config.listeners) == 1:
        yield config.listeners[0].path, config.listeners[0], ("protected",), "there is no other listener"
    if not any(listener.protected for listener in config.listeners):
        yield "connections", config.connections, ("protected_slots",), "no listener is protected"
    for listener in config.listeners:
        if listener.tls is None:
            continue
        if listener.security_protocol.sasl or listener.tls.client_auth == "none":
            names = ("principal_mapping_rules", "certificate_texts")
            yield (
                f"{listener.path}.tls",
                listener.tls,
                names,
                f"security_protocol is {listener.security_protocol} and client_auth is "
                f'"{listener.tls.client_auth}", so no client gets its name from a certificate',
            )
        if listener.tls.minimum_version == "TLSv1.3":
            yield (
                f"{listener.path}.tls",
                listener.tls,
                ("ciphers",),
                'they are those of TLS 1.2 and minimum_version is "TLSv1.3"',
            )
    for upstream in config.all_upstreams:
        if upstream.tls is not None and upstream.tls.minimum_version == "TLSv1.3":
            yield (
                f"{upstream.path}.tls",
                upstream.tls,
                ("ciphers",),
                'they are those of TLS 1.2 and minimum_version is "TLSv1.3"',
            )


CHECKS: Final[tuple[Callable[[Config], Iterator[Finding]], ...]] = (
    _no_login,
    _fleet_without_shared_store,
    _named_like_the_default,
    _star_without_prefixes,
    _groups_without_members,
    _groups_without_quotas,
    _guarantees_without_capacity,
    _guarantees_above_capacity,
    _attributes_without_rate,
    _bursts_without_rate,
    _users_without_a_login,
    _anonymous_behind_sasl,
    _connection_limits,
    _request_time,
    _advertised_elsewhere,
    _upstream_is_advertised,
    _unused_upstream,
    _trusted_twice,
    _anyone_may_change_quotas,
    _trusts_everybody,
    _anonymous_admins,
    _open_admin_port,
    _unverified_brokers,
    _own_clients,
    _without_effect,
)


def _authenticates(listener: ListenerSettings) -> bool:
    """Whether clients of this listener can have a name."""
    by_certificate = listener.tls is not None and listener.tls.client_auth != "none"
    return listener.security_protocol.sasl or by_certificate


def _all_authenticate(listener: ListenerSettings) -> bool:
    """Whether every client of this listener has a name."""
    by_certificate = listener.tls is not None and listener.tls.client_auth == "required"
    return listener.security_protocol.sasl or by_certificate


def _within(block: _Network, other: _Network) -> bool:
    if isinstance(block, ipaddress.IPv4Network):
        return isinstance(other, ipaddress.IPv4Network) and block.subnet_of(other)
    return isinstance(other, ipaddress.IPv6Network) and block.subnet_of(other)


def _default(section: Section, name: str) -> object:
    return type(section).model_fields[name].get_default(call_default_factory=True)
