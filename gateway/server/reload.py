"""The plan of a reload: which changed settings apply now and which need a restart. Pure.

A configuration is valid as a whole before it comes here. Settings that can change while clients are connected apply
at once. Other changed settings are kept for the next start and reported, as in PostgreSQL. So an operator who has
prepared the next restart in the file can still change a quota today.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from config import Config, ListenerSettings
from config.section_base import Section
from config.sections.admin import AdminSettings
from config.sections.capacity import CapacitySettings
from gateway.observability.events import ReloadResult

LIVE: Final = frozenset(
    {
        "quotas",
        "groups",
        "groups_file",
        "enforcement",
        "log",
        "limits",
        "drain",
        "connections",
        "quota_admin",
        "admin",
        "capacity",
        "overload",
    }
)
"""Sections that change in a running gateway; `limits` applies to new connections."""

LIVE_EXCEPT: Final = frozenset(
    {
        "limits.max_frame_bytes",  # the routes, which all connections share, are built from it
        "connections.ipv6_prefix_bits",  # open connections are counted by it
        "connections.max_trackers",
        "quota_admin.broker_limits",
        "admin.bind",
        "admin.tls",
        "admin.max_entity_series",
    }
)
"""Settings of those sections that need a restart."""

LIVE_OF_LISTENERS: Final = ("max_connections", "max_connection_creation_rate", "protected")
"""Settings of a running listener that can change; everything else about listeners needs a restart."""


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """The plan of a reload.

    Attributes:
        config: in force afterwards.
        applies: settings that change now, as ``section.key``.
        needs_restart: settings whose value in the file differs from `config`, each by its whole path.
    """

    config: Config
    applies: tuple[str, ...]
    needs_restart: tuple[str, ...]

    @property
    def result(self) -> ReloadResult:
        """For the metric."""
        return ReloadResult.NEEDS_RESTART if self.needs_restart else ReloadResult.APPLIED

    def changes(self, section: str) -> bool:
        """Whether anything of this section changes now."""
        return any(key.partition(".")[0] == section for key in self.applies)


def plan(running: Config, wanted: Config) -> ReloadPlan:
    """How to get from one configuration to another without ending a connection.

    The mode of [enforcement] is compared with the mode that the file had before, and not with the mode in force. So a
    kill switch set by hand outlives a reload that changes something else.

    Args:
        running: the configuration in force: `ReloadPlan.config` of the last reload, or that of the start.
        wanted: the file as it is now.
    """
    applies: list[str] = []
    needs_restart: list[str] = []
    differences = tuple(_differences(running, wanted))
    waiting = waiting_settings(running.admin, wanted.admin) | _waiting_for_the_scope(running, wanted)
    for key in differences:
        live = key.partition(".")[0] in LIVE and key not in waiting
        (applies if live else needs_restart).append(key)
    sections = {name: getattr(running, name) for name in Config.model_fields}
    for name in LIVE:
        sections[name] = getattr(wanted, name)
        kept = {key.partition(".")[2] for key in waiting if key.startswith(f"{name}.")}
        if kept:
            before = getattr(running, name)
            sections[name] = sections[name].model_copy(update={key: getattr(before, key) for key in kept})
    sections["listeners"] = _listeners(running, wanted)
    for before, after in zip(running.listeners, sections["listeners"], strict=True):
        for key in LIVE_OF_LISTENERS:
            if getattr(before, key) != getattr(after, key):
                applies.append(f"{after.path}.{key}")
    if sections["listeners"] == wanted.listeners and "listeners" in needs_restart:
        needs_restart.remove("listeners")
    in_force = Config.model_construct(**sections)
    waits = [name for key in needs_restart for name in _named(in_force, wanted, key)]
    return ReloadPlan(in_force, tuple(applies), tuple(waits))


def waiting_settings(running: AdminSettings, wanted: AdminSettings) -> frozenset[str]:
    """Settings of the live sections that need a restart nevertheless, given the admin port's present and new ones."""
    waiting = set(LIVE_EXCEPT)
    moves = running.bind != wanted.bind  # what the new address may allow must not be allowed at the old one
    if running.tls != wanted.tls or (moves and not wanted.keys):
        waiting.add("admin.keys")  # with new TLS, clients would send new tokens in plain text meanwhile
    if moves and wanted.remote_changes:
        waiting.add("admin.remote_changes")
    return frozenset(waiting)


def changed_settings(before: Section, after: Section, path: str) -> Iterator[str]:
    """The paths of the settings that differ, including those of nested tables.

    If a default depends on another setting, its change is not reported.

    Args:
        before, after: of one model.
        path: of both.
    """
    for key in type(after).model_fields:
        old, new = getattr(before, key), getattr(after, key)
        if old == new or key not in before.model_fields_set | after.model_fields_set:
            continue
        if isinstance(old, Section) and isinstance(new, Section):
            yield from changed_settings(old, new, f"{path}.{key}")
        else:
            yield f"{path}.{key}"


def _waiting_for_the_scope(running: Config, wanted: Config) -> frozenset[str]:
    """All settings that give a capacity, if `client_quota.scope` still forbids one until the restart."""
    if running.client_quota.scope != "broker" or not wanted.capacity.by_quota():
        return frozenset()
    return frozenset({"overload.mode", *(f"capacity.{key}" for key in CapacitySettings.model_fields)})


def _named(in_force: Config, wanted: Config, key: str) -> Iterator[str]:
    """The paths of the settings behind a difference that needs a restart."""
    section, _, name = key.partition(".")
    before, after = getattr(in_force, section), getattr(wanted, section)
    if name:
        old, new = getattr(before, name), getattr(after, name)
        both = isinstance(old, Section) and isinstance(new, Section)
        yield from changed_settings(old, new, key) if both else [key]
        return
    old_ones, new_ones = ({each.path: each for each in some} for some in (before, after))
    names: list[str] = []
    for path in old_ones | new_ones:
        if path in old_ones and path in new_ones:
            names += changed_settings(old_ones[path], new_ones[path], path)
        else:
            names.append(path)
    yield from names or [key]  # their order alone


def _listeners(running: Config, wanted: Config) -> tuple[ListenerSettings, ...]:
    """The running listeners, with the changeable settings of those that the file still has."""
    named = {listener.name: listener for listener in wanted.listeners}
    listeners = [
        listener.model_copy(
            update={key: getattr(named.get(listener.name, listener), key) for key in LIVE_OF_LISTENERS}
        )
        for listener in running.listeners
    ]
    if len([each for each in listeners if each.protected]) > 1:  # one that is gone from the file still runs
        return tuple(
            after.model_copy(update={"protected": before.protected})
            for before, after in zip(running.listeners, listeners, strict=True)
        )
    return tuple(listeners)


def _differences(running: Config, wanted: Config) -> Iterator[str]:
    for name in Config.model_fields:
        before, after = getattr(running, name), getattr(wanted, name)
        if before == after:
            continue
        if isinstance(after, tuple):
            yield name
        else:
            for key in type(after).model_fields:
                if getattr(before, key) != getattr(after, key):
                    yield f"{name}.{key}"
