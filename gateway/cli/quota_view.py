"""The quotas that `sluice quotas` shows: of a configuration file, or of a running gateway."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

import config
from config.sections.client_ids import ClientIdSettings
from config.sections.client_quota import ClientQuotaSettings
from config.sections.connections import ConnectionSettings
from config.sections.enforcement import EnforcementSettings
from config.sections.mutation_quota import MutationQuotaSettings
from gateway.cli import admin_port
from gateway.quota_admin.store.quota_json import entity_of, quotas_of
from quotas.entities import QuotaEntity, QuotaKey
from quotas.groups import Group, Groups
from quotas.limits import Limits
from quotas.mutations import MutationSettings
from quotas.rate_quotas import RateSettings

MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024

_SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "client_quota": ClientQuotaSettings,
    "mutation_quota": MutationQuotaSettings,
    "client_ids": ClientIdSettings,
    "connections": ConnectionSettings,
}


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a quota.

    Attributes:
        source: file or store.
        file: the configuration file's value, also if an override replaces it; None: it has none.
        owner: how it was written to the store: apply, set or api; empty: not known, or it is not in the store.
    """

    source: str
    file: float | None
    owner: str = ""

    def __str__(self) -> str:
        """For people."""
        source = f"{self.source}: {self.owner}" if self.owner else self.source
        return (
            f"{source} (file: {self.file:g})" if self.source == "store" and self.file is not None else source
        )


@dataclass(frozen=True, slots=True)
class QuotaView:
    """The quotas to show, and the settings that they depend on.

    Attributes:
        limits: the quotas.
        mutation, rate: how use is measured.
        ipv6_prefix_bits: the setting of [connections].
        origins: the origin of each quota; None: all come from the file.
        store: the store of a running gateway, in words.
        divided: the byte rates with a divided capacity.
    """

    limits: Limits
    mutation: MutationSettings
    rate: RateSettings
    ipv6_prefix_bits: int
    origins: Mapping[tuple[QuotaEntity, QuotaKey], Origin] | None = None
    store: str = ""
    divided: frozenset[QuotaKey] = frozenset()


def add_config_argument(parser: argparse.ArgumentParser, *, below: bool = False) -> None:
    """Adds ``--config``.

    Args:
        parser: the command's parser.
        below: see `gateway.cli.admin_port.add_argument`.
    """
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS if below else None,
        help="show the quotas of this file instead of a running gateway",
    )


def refuse_config(arguments: argparse.Namespace) -> None:
    """For commands that only a running gateway can carry out.

    Raises:
        config.ConfigError: ``--config`` was given.
    """
    if arguments.config is not None:
        raise config.ConfigError(
            [f"--config: no quota store is in {arguments.config}; --admin names the gateway that has it"]
        )


def of_file(path: str, cluster: str | None = None) -> QuotaView:
    """The quotas of a configuration file.

    Args:
        path: the file's path.
        cluster: the name of one of [[clusters]]; None: the file has none.

    Raises:
        config.ConfigError: the file is not valid, or has other clusters.
    """
    found = config.load(path, cluster=cluster)
    return QuotaView(
        found.quota_limits(),
        found.mutation_settings(),
        found.rate_settings(),
        found.connections.ipv6_prefix_bits,
        divided=found.divided_rates(),
    )


def of_gateway(url: str) -> QuotaView:
    """The quotas in force in a running gateway.

    Raises:
        admin_port.AdminPortError: the gateway can't be reached.
    """
    return admin_port.read(url, "/quotas", _view, what="quotas", max_bytes=MAX_ANSWER_BYTES)


def _view(answer: Mapping[str, Any]) -> QuotaView:
    sections = {
        name: model.model_validate_json(json.dumps(answer[name])) for name, model in _SECTIONS.items()
    }
    # Only the sections that quotas depend on; the response has no others.
    settings = config.Config.model_construct(
        None, **sections, enforcement=EnforcementSettings(mode=answer["mode"]), quotas=()
    )
    values, faults = quotas_of(answer["quotas"])
    if faults:
        raise ValueError(faults[0])
    limits = settings.quota_limits()
    for (entity, key), value in values.items():
        limits.put(entity, key, value)
    # A gateway of an earlier version does not report groups.
    groups = answer.get("groups", ())
    limits.set_groups(
        Groups(Group(**{name: _texts(value) for name, value in each.items()}) for each in groups)
    )
    limits.set_observed(entity_of(each) for each in answer["observed"])
    rows = answer["quotas"]
    origins = {
        at: Origin(str(row["source"]), row["file"], str(row.get("owner", "")))
        for at, row in zip(values, rows, strict=True)
    }
    store = f"{answer['kind']}, version {answer['version']}"
    if answer["read_only"]:
        store += f", read-only: {answer['read_only']}"
    return QuotaView(
        limits,
        settings.mutation_settings(),
        settings.rate_settings(),
        settings.connections.ipv6_prefix_bits,
        origins,
        store,
        frozenset(map(QuotaKey, answer.get("divided", ()))),  # an earlier version does not report it
    )


def _texts(value: Any) -> Any:
    return tuple(map(str, value)) if isinstance(value, list) else str(value)
