"""Operations on a running gateway: the kill switch, brakes of tiers, and reloads of the configuration file.

They never close connections. A mute that has begun keeps its duration, since its client knows it; a change applies to
the next request. Every change is logged with its author.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog

from config import Config, ConfigError, Finding, Severity, findings
from config.groups_files import MOST_BYTES
from config.regular_file import read_at_once
from config.sections.log import LogSettings
from gateway.observability.events import ReloadResult
from gateway.runtime.durable import replace_file
from gateway.server.reload import ReloadPlan, plan
from quotas.entities import QuotaKey
from quotas.groups_file import GroupsFileError, Team, read_teams
from quotas.groups_text import NoSuchMember
from quotas.layered_quotas import LayeredQuotas
from quotas.lending import Brake
from quotas.limits import Enforcement

_MOST_CONTRADICTIONS: Final = 100

_log = structlog.get_logger("gateway.operations")


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The source of the configuration.

    Attributes:
        read: reads the present file; may block, raises `config.ConfigError`.
        set_log: puts new log settings in force.
    """

    read: Callable[[], Config]
    set_log: Callable[[LogSettings], None]


class GroupsNotChanged(Exception):
    """The file of groups is unchanged; the text is one line for people.

    Attributes:
        invalid: the change is not valid; otherwise the gateway cannot carry it out.
    """

    def __init__(self, text: str, *, invalid: bool) -> None:
        super().__init__(text)
        self.invalid = invalid


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The outcome of a reload.

    Attributes:
        result: see `ReloadResult`.
        applied: settings that have changed.
        needs_restart: settings that differ in the file, but only change at a restart.
        faults: why nothing has changed, one line each.
    """

    result: ReloadResult
    applied: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def log_findings(found: Iterable[Finding]) -> None:
    """Log each finding: as an error if the gateway would not be ready or not do what the file says."""
    for each in found:
        log = _log.error if each.severity is Severity.ERROR else _log.warning
        log("config_suspicious", detail=str(each))


def log_contradictions(quotas: LayeredQuotas) -> None:
    """Log the first guarantees for which the configuration file and the store contradict each other."""
    for text in islice(quotas.contradictions(), _MOST_CONTRADICTIONS):
        _log.warning("config_suspicious", detail=text)


Spread: TypeAlias = Callable[..., Awaitable[Any]]
"""Takes the kind of a change, the change and its author."""


TierUse: TypeAlias = Callable[[int], Awaitable[Mapping[QuotaKey, float]]]


async def _spread_nowhere(*_: Any) -> None:
    """There is no other process."""


class Operations:
    """The configuration in force and its changes.

    Attributes:
        config: what is in force.
        on_change: called with "mode" or "reload" after such a change; None: no callback.
    """

    def __init__(
        self,
        config: Config,
        quotas: LayeredQuotas,
        source: ConfigSource | None,
        *,
        check: Callable[[Config], None] = lambda _config: None,
        read_files: Callable[[Config], None] = lambda _config: None,
        apply: Callable[[ReloadPlan], None],
        on_reload: Callable[[ReloadReport], None],
        tier_use: TierUse,
        spread: Spread = _spread_nowhere,
    ) -> None:
        """Nothing happens yet.

        Args:
            config: what the gateway started with.
            quotas: the quotas in force; those of the file are their base.
            source: None for a gateway without a configuration file.
            check: raises `config.ConfigError` if this machine cannot carry out a configuration.
            read_files: reads files that the configuration names, for `apply`; may block. Raises
                `config.ConfigError` when one is unusable.
            apply: puts the rest of a plan in force: all but quotas, their enforcement and the log.
            on_reload: called with the report of every attempt.
            tier_use: the recent usage of a tier; see `ClientQuotas.tier_use`.
            spread: sends a change to the gateway's other processes; returns when it is in force there too.
        """
        self.config = config
        self.on_change: Callable[[str], None] | None = None
        self._quotas = quotas
        self._limits = quotas.limits
        self._source = source
        self._check = check
        self._read_files = read_files
        self._apply = apply
        self._on_reload = on_reload
        self._tier_use = tier_use
        self._spread = spread
        self._one_at_a_time = asyncio.Lock()

    @property
    def mode(self) -> Enforcement:
        """The mode of all quotas."""
        return self._limits.mode

    def set_mode(self, mode: Enforcement, *, by: str) -> None:
        """Set the mode of all quotas; it stays until it is set again or the file's own mode changes.

        Args:
            mode: applies to the next request.
            by: the author, for the log.
        """
        before = self._limits.mode
        self._limits.set_mode(mode)
        _log.warning("enforcement_set", mode=mode.value, before=before.value, by=by)
        if self.on_change is not None:
            self.on_change("mode")

    async def switch(self, mode: Enforcement, *, by: str) -> None:
        """As `set_mode`, in all processes of the gateway."""
        self.set_mode(mode, by=by)
        await self._spread("mode", mode, by)

    @property
    def brakes(self) -> Mapping[int, Brake]:
        """The brakes that are set, by tier, including expired ones."""
        return self._limits.brakes

    @property
    def cannot_brake(self) -> str | None:
        """Why a brake would have no effect; None: it would have one."""
        capacity = self.config.capacity
        if not capacity.by_quota():
            return "a brake needs [capacity] in the configuration: it divides what a tier has left"
        if capacity.observe:
            return "[capacity] only observes; remove capacity.observe from the configuration"
        return None

    def set_brakes(self, brakes: Mapping[int, Brake], *, by: str) -> None:
        """Replace all brakes. A brake ends when it expires, or with the process.

        Args:
            brakes: by tier.
            by: the author, for the log.
        """
        before = self._limits.brakes
        self._limits.brakes = dict(brakes)
        for tier in sorted(before.keys() | brakes.keys()):
            if before.get(tier) != (brake := brakes.get(tier)):
                if brake is None:
                    _log.warning("tier_no_longer_shed", tier=tier, by=by)
                else:
                    _log.warning("tier_shed", tier=tier, percent=round(100 * brake.part, 3), by=by)

    async def brake(self, tier: int, brake: Brake | None, *, by: str, now_ms: int) -> str | None:
        """Set the brake of a tier in all processes of the gateway, or end it.

        Args:
            tier: which.
            brake: its `used` is filled in here; None: end the brake.
            by: the author, for the log.
            now_ms: the present.

        Returns:
            Why the brake was not set; None: it was.
        """
        brakes = {}
        if brake is not None:
            before = self.brakes.get(tier)
            # A brake that replaces an active one is a part of the same usage.
            used = (
                before.used if before is not None and before.until_ms > now_ms else await self._tier_use(tier)
            )
            if not used:
                return "it is not known yet what the tier uses; try again in a few seconds"
            brakes[tier] = replace(brake, used=used)
        brakes |= {each: other for each, other in self.brakes.items() if each != tier}
        self.set_brakes(brakes, by=by)
        await self._spread("brakes", brakes, by)
        return None

    async def reload(self, *, by: str) -> ReloadReport:
        """Read the file again; an invalid file changes nothing.

        Args:
            by: the author, for the log.
        """
        async with self._one_at_a_time:
            report = await self._reload(by)
        self._on_reload(report)
        return report

    async def groups(self) -> tuple[Team, ...]:
        """The groups of `[groups_file]`, as written in the file.

        Raises:
            GroupsNotChanged: there is no such file, or it cannot be read.
        """
        try:
            # In a thread: a file may have hundreds of thousands of members.
            return await asyncio.to_thread(_read_teams, self._groups_file())
        except GroupsFileError as exc:
            raise GroupsNotChanged(_one_line(exc), invalid=True) from None

    async def change_groups(self, change: Callable[[str], str], *, by: str) -> ReloadReport:
        """Write a new version of the file of groups, and reload the configuration, which reads the file.

        Args:
            change: makes the new text of the file from the old one.
            by: the author, for the log.

        Raises:
            GroupsNotChanged: the file is unchanged, or could not be restored, as the text then says.
        """
        path = self._groups_file()
        async with self._one_at_a_time:
            try:
                before = await asyncio.to_thread(_read_groups, path)
                after = await asyncio.to_thread(change, before)
                await asyncio.to_thread(_write_groups, path, before, after)
            except (GroupsFileError, NoSuchMember) as exc:
                raise GroupsNotChanged(_one_line(exc), invalid=True) from None
            report = await self._reload(by)
            faults = list(report.faults)
            if faults:  # for example a name that the configuration has too
                try:
                    await asyncio.to_thread(_write_groups, path, after, before)
                except GroupsNotChanged as exc:
                    faults.append(f"the file could not be put back: {exc}")
        self._on_reload(report)
        if faults:
            raise GroupsNotChanged("; ".join(faults), invalid=True)
        return report

    def _groups_file(self) -> Path:
        path = self.config.groups_file.path
        if path is None:
            raise GroupsNotChanged(
                "there is no file of groups; set [groups_file] path in the configuration", invalid=False
            )
        if self._source is None:
            raise GroupsNotChanged("this gateway was started without --config", invalid=False)
        return Path(path)

    async def _reload(self, by: str) -> ReloadReport:
        if self._source is None:
            fault = "this gateway was started without --config, so there is no file to read again"
            _log.error("config_not_reloaded", by=by, fault=fault)
            return ReloadReport(ReloadResult.NO_FILE, faults=(fault,))
        try:
            # In a thread: the file system may be slow, and thousands of quotas take time.
            wanted = await asyncio.to_thread(self._source.read)
            decided = plan(self.config, wanted)
            self._check(decided.config)
            await asyncio.to_thread(self._read_files, decided.config)
            found = await asyncio.to_thread(findings, wanted)
        except ConfigError as exc:
            for line in exc.lines:
                _log.error("config_not_reloaded", by=by, fault=line)
            return ReloadReport(ReloadResult.INVALID, faults=tuple(exc.lines))
        log_findings(found)
        self.put_in_force(decided, by=by)
        log_contradictions(self._quotas)
        await self._spread("reload", decided, by)
        if self.on_change is not None:
            self.on_change("reload")
        for key in decided.needs_restart:
            _log.warning("config_needs_restart", by=by, setting=key)
        _log.info("config_reloaded", by=by, changed=",".join(decided.applies) or "nothing")
        return ReloadReport(decided.result, decided.applies, decided.needs_restart)

    def put_in_force(self, decided: ReloadPlan, *, by: str) -> None:
        """Carry out a reload plan, of this process or of its supervisor."""
        config = decided.config
        if decided.changes("quotas"):
            self._quotas.replace_base(config.quota_items())
            self._limits.set_observed(config.observed_entities())
        if decided.changes("groups"):
            self._limits.set_groups(config.member_groups())
        if decided.changes("enforcement"):
            self.set_mode(config.enforcement.mode, by=by)
        if decided.changes("log"):
            assert self._source is not None
            self._source.set_log(config.log)
        self._apply(decided)
        self.config = config


def _one_line(exc: Exception) -> str:
    return "; ".join(str(exc).splitlines())


def _read_groups(path: Path) -> str:
    try:
        return read_at_once(str(path), MOST_BYTES).decode()
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise GroupsNotChanged(f"{path} cannot be read: {why}", invalid=False) from None


def _read_teams(path: Path) -> tuple[Team, ...]:
    return read_teams(_read_groups(path))


def _write_groups(path: Path, before: str, after: str) -> None:
    """Write the file, unless it has changed since `before` was read."""
    if _read_groups(path) != before:
        raise GroupsNotChanged(f"{path} was changed meanwhile; try again", invalid=False)
    try:
        replace_file(path, after.encode())
    except OSError as exc:
        raise GroupsNotChanged(f"{path} cannot be written: {exc.strerror}", invalid=False) from None
