"""Detects what other writers did to a table since the pipeline's last commit.

Each commit of the pipeline adds a state file whose name contains the commit's version. This distinguishes the commits
of other writers. The Delta protocol says what such a commit does to rows. If `dataChange` is false in all its
actions, it only moved rows to other files (OPTIMIZE, Z-ORDER). A DELETE, or a MERGE that only deletes, removes rows.
Any other commit that adds or removes files may add or change rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from pipeline.storage.files import read_bytes

STATE: Final = "state"
_RULES_OF_MERGE: Final = ("matchedPredicates", "notMatchedPredicates", "notMatchedBySourcePredicates")
_DATE: Final = "date"
"""The column by which all tables are partitioned."""

Paths: TypeAlias = frozenset[str]
"""Paths of a table's files in one version."""


class Effect(Enum):
    """What a commit does to the rows of a table."""

    NONE = "touches no file"
    KEEPS = "keeps all rows"
    DELETES = "deletes rows"
    CHANGES = "adds or changes rows"
    UNKNOWN = "is not in the log any more"


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A commit of another writer."""

    version: int
    effect: Effect
    operation: str = ""
    dates: frozenset[str | None] | None = None
    """The partitions that it changed; None: not known."""

    def __str__(self) -> str:
        """The commit as text for the operator."""
        # Without the predicate, which may name the client that was to be erased.
        return f"version {self.version}, {self.operation or 'an operation without a name'}"


@dataclass(frozen=True, slots=True)
class Foreign:
    """What other writers did since the pipeline's last commit.

    Attributes:
        since: the version of the pipeline's last commit; -1: it is no longer in the log.
        commits: commits of other writers that change files, the oldest first.
    """

    since: int
    commits: tuple[ForeignCommit, ...]

    @property
    def deletions(self) -> tuple[ForeignCommit, ...]:
        """Commits that delete rows."""
        return tuple(each for each in self.commits if each.effect is Effect.DELETES)

    def touched(self, date: str | None) -> bool:
        """Whether files of a day have changed, or may have changed."""
        return any(each.dates is None or date in each.dates for each in self.commits)

    @property
    def changed(self) -> ForeignCommit | None:
        """The first commit that adds or changes rows."""
        return next((each for each in self.commits if each.effect is Effect.CHANGES), None)


def foreign_since(folder: str, version: int, files_at: Callable[[int], Paths | None]) -> Foreign:
    """Finds what other writers did up to a version.

    Args:
        folder: the table's folder.
        version: the newest version.
        files_at: returns the files of a version, or None if the log does not reach back to it.
    """
    found: list[ForeignCommit] = []
    while version >= 0:
        content = read_bytes(f"{folder}/_delta_log/{version:020d}.json")
        if content is None:
            found.append(ForeignCommit(version, Effect.UNKNOWN))
            return Foreign(-1, tuple(reversed(found)))
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]
        if _is_ours(actions, version):
            break
        commit = _commit(actions, version)
        restored = _restored(actions, version, files_at) if commit.operation == "RESTORE" else None
        if restored is not None:
            version = restored
            continue
        if commit.effect is not Effect.NONE:
            found.append(commit)
        version -= 1
    return Foreign(version, tuple(reversed(found)))


def _is_ours(actions: Collection[Mapping[str, Any]], version: int) -> bool:
    start = f"{STATE}/{version:020d}-"
    return any("add" in action and action["add"]["path"].startswith(start) for action in actions)


def _restored(
    actions: Collection[Mapping[str, Any]], version: int, files_at: Callable[[int], Paths | None]
) -> int | None:
    """The earlier version that has the same files as this one."""
    there = files_at(version)
    told = str(_about(actions).get("operationParameters", {}).get("version"))
    earlier = [int(told)] if told.isdigit() else range(version - 1, -1, -1)
    return next((each for each in earlier if there is not None and there == files_at(each)), None)


def _about(actions: Collection[Mapping[str, Any]]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((each["commitInfo"] for each in actions if "commitInfo" in each), {})
    return found


def _commit(actions: Collection[Mapping[str, Any]], version: int) -> ForeignCommit:
    about = _about(actions)
    operation = str(about.get("operation", ""))
    parameters = about.get("operationParameters") or {}
    moved = [action[kind] for action in actions for kind in ("add", "remove") if action.get(kind) is not None]
    if not moved:
        effect = Effect.NONE
    elif not any(action.get("dataChange", True) for action in moved):
        effect = Effect.KEEPS
    elif operation == "DELETE" or (operation == "MERGE" and _only_deletes(parameters)):
        effect = Effect.DELETES
    else:
        effect = Effect.CHANGES
    partitions = [action.get("partitionValues") for action in moved]
    dates = None if None in partitions else frozenset(each.get(_DATE) or None for each in partitions)
    return ForeignCommit(version, effect, operation, dates)


def _only_deletes(parameters: Mapping[str, Any]) -> bool:
    try:
        rules = [rule for name in _RULES_OF_MERGE for rule in json.loads(parameters.get(name) or "[]")]
        return bool(rules) and all(rule["actionType"] == "delete" for rule in rules)
    except (ValueError, TypeError, KeyError):
        return False
