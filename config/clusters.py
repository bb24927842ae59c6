"""[[clusters]]: several configurations in one file, and the settings that two of them must not share.

Each cluster is checked like a file of its own. [admin], [log], [traces] and [metrics] are at the top level and apply
to all clusters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from config.faults import lines, path_text, unknown_key, value_text
from config.findings import Finding, Severity, findings
from config.host_port import HostPort
from config.model import Config, PortClaim
from config.section_base import Key, Section
from config.sections.admin import AdminSettings
from config.sections.log import LogSettings
from config.sections.metrics import MetricSettings
from config.sections.traces import TraceSettings

SECTION: Final = "clusters"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
"""The name of a cluster. It is a label of metrics, and a part of paths and file names."""

_ANY_PORT: Final = AdminSettings(bind=HostPort("127.0.0.1", 0))


class SharedSettings(Section, frozen=True):
    """The sections that apply to all clusters of a file."""

    admin: AdminSettings = AdminSettings()
    log: LogSettings = LogSettings()
    traces: TraceSettings = TraceSettings()
    metrics: MetricSettings = MetricSettings()


@dataclass(frozen=True, slots=True)
class Clusters:
    """A valid file with [[clusters]].

    Attributes:
        shared: the sections for all clusters.
        by_name: the whole configuration of each cluster, in the order of the file.
    """

    shared: SharedSettings
    by_name: Mapping[str, Config]

    @property
    def names(self) -> str:
        """The names of all clusters, for people."""
        return ", ".join(self.by_name)


class ClusterFaults(Exception):
    """The clusters of a file are not valid.

    Attributes:
        lines: one per fault, without the file's name.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def read_clusters(tables: Mapping[str, Any], *, hidden: Collection[Key] = ()) -> Clusters:
    """The clusters of a file.

    Args:
        tables: the file; has [[clusters]].
        hidden: keys whose values are not to be shown.

    Raises:
        ClusterFaults: a rule is broken. Rules between clusters are only checked once each cluster is valid.
    """
    faults = list(_top_level_faults(tables))
    given = {key: value for key, value in tables.items() if key in SharedSettings.model_fields}
    shared = SharedSettings()
    try:
        shared = SharedSettings.model_validate(given)
    except ValidationError as exc:
        faults += lines(exc, SharedSettings, given, hidden=hidden)
    found = tables[SECTION]
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ClusterFaults(
            [*faults, f"{SECTION}: {value_text(found)} is not an array of tables: [[{SECTION}]]"]
        )
    if not found:
        faults.append(f"{SECTION}: an empty array is not an array with at least one item")
    names = [each.get("name") for each in found]
    by_name: dict[str, Config] = {}
    for at, table in enumerate(found):
        path, name_faults = _named(names, at)
        faults += name_faults
        rest = {key: value for key, value in table.items() if key != "name"}
        for key in sorted(rest.keys() & SharedSettings.model_fields.keys()):
            del rest[key]
            faults.append(f"{path}.{key}: is for all clusters; write it at the top of the file, as [{key}]")
        try:
            config = Config.model_validate({**rest, "admin": _ANY_PORT})
        except ValidationError as exc:
            below = [key[2:] for key in hidden if key[:2] == (SECTION, at)]
            faults += [f"{path}.{line}" for line in lines(exc, Config, rest, hidden=below)]
            continue
        if not name_faults:
            by_name[names[at]] = _completed(names[at], config, shared)
    clusters = Clusters(shared, by_name)
    faults = faults or list(_faults_between(clusters))
    if faults:
        raise ClusterFaults(faults)
    return clusters


def cluster_findings(clusters: Clusters) -> list[Finding]:
    """The `findings` of each cluster, errors first. Findings about shared sections are listed once."""
    found: dict[Finding, None] = {}
    for name, config in clusters.by_name.items():
        for each in findings(config):
            shared = each.key.partition(".")[0] in SharedSettings.model_fields
            key = each.key if shared else f"{SECTION}.{name}.{each.key}"
            found[Finding(each.severity, key, each.text)] = None
    return sorted(found, key=lambda each: each.severity is Severity.NOTE)


def _top_level_faults(tables: Mapping[str, Any]) -> Iterator[str]:
    for key in tables:
        if key == SECTION or key in SharedSettings.model_fields:
            continue
        if key in Config.model_fields:
            of = f"[[{SECTION}.{key}]]" if isinstance(tables[key], list) else f"[{SECTION}.{key}]"
            yield f"{key}: cannot stand beside [[{SECTION}]]; move it into a cluster, as {of}"
        else:
            yield f"{path_text((key,), tables)}: {unknown_key(key, [SECTION, *SharedSettings.model_fields])}"


def _named(names: Sequence[Any], at: int) -> tuple[str, list[str]]:
    """The path of a cluster in a form that may be shown, and the faults of its name."""
    name = names[at]
    path = f"{SECTION}.{at}"
    if name is None:
        return path, [f"{path}.name: required, but missing"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return path, [f"{path}.name: {value_text(name)} is not a string that matches ^{NAME.pattern}$"]
    if (first := names.index(name)) != at:
        return path, [f'{path}.name: "{name}" is the name of {SECTION}.{first} too']
    return (f"{SECTION}.{name}" if names.count(name) == 1 else path), []


def _completed(name: str, config: Config, shared: SharedSettings) -> Config:
    """The configuration with the shared sections, and with a directory of its own if the file names none."""
    store = config.quota_store
    if store.kind == "sqlite" and "data_dir" not in store.model_fields_set:
        store = store.model_copy(update={"data_dir": f"{store.data_dir}/{name}"})
    sections = {key: getattr(shared, key) for key in SharedSettings.model_fields}
    return config.model_copy(update={**sections, "quota_store": store})


def _faults_between(clusters: Clusters) -> Iterator[str]:
    yield from _port_faults(clusters)
    stores, records, ids = {}, {}, {}
    for name, config in clusters.by_name.items():
        if config.quota_store.kind == "sqlite":
            stores[f"{SECTION}.{name}.quota_store.data_dir"] = os.path.realpath(config.quota_store.data_dir)
        if config.usage.kind == "files" and config.usage.directory is not None:
            records[f"{SECTION}.{name}.usage.directory"] = os.path.realpath(config.usage.directory)
        if config.usage.gateway_id is not None:
            ids[f"{SECTION}.{name}.usage.gateway_id"] = config.usage.gateway_id
    for kept in (stores, records, ids):
        seen: dict[str, str] = {}
        for key, value in kept.items():
            if (first := seen.setdefault(value, key)) != key:
                yield f"{key}: {value_text(value)} is that of {first} too"


def _port_faults(clusters: Clusters) -> Iterator[str]:
    """Ports that two clusters, or a cluster and the admin port, both use; brokers that are the gateway itself."""
    admin = clusters.shared.admin.bind
    claims: list[tuple[str, str, PortClaim]] = [
        ("", "admin.bind", PortClaim(("admin", "bind"), admin, admin.port))
    ]
    for name, config in clusters.by_name.items():
        for claim in config.port_claims():
            if claim.key[0] == "admin":
                continue
            path = f"{SECTION}.{name}.{path_text(claim.key, config)}"
            for of, other_path, other in claims:
                if of != name and claim.collides(other):  # claims of one cluster were compared before
                    yield f"{path}: {claim} overlaps {other_path} {other}"
            claims.append((name, path, claim))
    for name, config in clusters.by_name.items():
        for upstream in config.all_upstreams:
            for at, broker in enumerate(upstream.bootstrap):
                taken = next(
                    (path for of, path, claim in claims if of != name and claim.answers(broker)), None
                )
                if taken is not None:
                    key = f"{SECTION}.{name}.{upstream.path}.bootstrap.{at}"
                    yield f'{key}: "{broker}" is the gateway itself ({taken})'
