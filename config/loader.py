"""Reads a configuration file, and the files with values for it. No socket, no name lookup, no log."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from config.clusters import SECTION, ClusterFaults, Clusters, read_clusters
from config.environment import Substitution
from config.faults import lines, path_text, value_text
from config.groups_files import GroupsFiles
from config.host_port import HostPort, parse_host_port
from config.model import Config
from config.places import Places
from config.section_base import Key
from config.sections.listeners import ListenerSettings
from config.sections.quota_admin import QuotaAdminSettings
from config.sections.quotas import QuotaRule
from config.sections.upstream import UpstreamSettings
from config.value_hints import toml_hint

DEFAULT_BIND: Final = HostPort("127.0.0.1", 19_092)  # Kafka's port and 10,000, so that both fit one machine


class ConfigError(Exception):
    """The configuration can't be used.

    Attributes:
        lines: one per fault, each complete: file and line, key path, value, allowed values.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def load(path: str | Path, *, cluster: str | None = None) -> Config:
    """The configuration in a TOML file, with values from this process's environment and from files.

    Args:
        path: the file.
        cluster: the name of one of [[clusters]]; None: the file has none.

    Raises:
        ConfigError: as `load_file`; or the file has no such cluster, or has clusters and none is named.
    """
    return one_of(load_file(path), str(path), cluster)


def load_file(path: str | Path) -> Config | Clusters:
    """The content of a TOML file: one configuration, or several clusters.

    Raises:
        ConfigError: the file can't be read, is not TOML, or breaks a rule. All broken rules are reported at once.
            Rules between sections are only checked once every section is valid.
    """
    return parse_file(_text(path), name=str(path))


def parse(text: str, *, name: str, environment: Mapping[str, str] = os.environ) -> Config:
    """The configuration in a TOML text without [[clusters]].

    Args:
        text: the whole file.
        name: the file's name, for error texts.
        environment: the variables that the text may use.

    Raises:
        ConfigError: as `load`.
    """
    return one_of(parse_file(text, name=name, environment=environment), name, None)


def parse_file(text: str, *, name: str, environment: Mapping[str, str] = os.environ) -> Config | Clusters:
    """The content of a TOML text: one configuration, or several clusters.

    Args:
        text: the whole file.
        name: the file's name, for error texts.
        environment: the variables that the text may use.

    Raises:
        ConfigError: as `load_file`.
    """
    found = _substitution(text, name, environment)
    groups = GroupsFiles(found.tables, name)
    tables = groups.tables
    faults = list(groups.faults)
    try:
        valid = (
            read_clusters(tables, hidden=found.files) if SECTION in tables else Config.model_validate(tables)
        )
    except ValidationError as exc:
        faults += lines(exc, Config, tables, hidden=found.files)
    except ClusterFaults as exc:
        faults += exc.lines
    else:
        if not faults and not groups.faults_of_files:
            return valid
    raise ConfigError([*_located(faults, text, name, found), *groups.faults_of_files])


def one_of(found: Config | Clusters, name: str, cluster: str | None) -> Config:
    """One configuration of a file.

    Args:
        found: the content of the file.
        name: the file's name, for error texts.
        cluster: the cluster's name; None: there are no clusters.

    Raises:
        ConfigError: there is no such cluster, or there are clusters and none is named.
    """
    if isinstance(found, Config):
        if cluster is None:
            return found
        raise ConfigError([f"{name}: has no [[{SECTION}]]; leave --cluster out"])
    if cluster is None:
        raise ConfigError([f"{name}: has several clusters: {found.names}; choose one with --cluster NAME"])
    if cluster not in found.by_name:
        raise ConfigError([f"{name}: has no cluster {value_text(cluster)}; it has {found.names}"])
    return found.by_name[cluster]


class Source:
    """A configuration file as text: the lines of its keys, and its values from variables and files.

    Attributes:
        variables: each key with a variable of the environment, and the variable's name.
        files: each key with the text of a file, and the file's path.
    """

    def __init__(self, path: str | Path) -> None:
        """Read the file.

        Raises:
            ConfigError: as `load`; rules are not checked.
        """
        self._text, self._name = _text(path), str(path)
        self._found = _substitution(self._text, self._name, os.environ)
        self.hide = self._found.hide
        self.variables = self._shown(self._found.variables)
        self.files = self._shown(self._found.files)

    def located(self, lines: Sequence[str], *, kind: str = "") -> list[str]:
        """Messages with the file and the line, and without texts from files.

        Args:
            lines: the messages; each begins with a key.
            kind: a word before the key.
        """
        return _located(lines, self._text, self._name, self._found, kind=kind)

    def _shown(self, names: Mapping[Key, list[str]]) -> list[tuple[str, str]]:
        return [(self.hide(path_text(key, self._found.tables)), name) for key in names for name in names[key]]


def _located(lines: Sequence[str], text: str, name: str, found: Substitution, *, kind: str = "") -> list[str]:
    places = Places(text, found.tables) if lines else None
    shown = []
    for each in lines:
        line = None if places is None else places.line_of(each)
        shown.append(f"{name}{'' if line is None else f':{line}'}: {kind}{found.hide(each)}")
    return shown


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError([f"{path}: cannot be read: {exc.strerror}"]) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError([f"{path}: is not UTF-8 text (byte {exc.start})"]) from exc


def _substitution(text: str, name: str, environment: Mapping[str, str]) -> Substitution:
    try:
        found = Substitution(tomllib.loads(text), environment)
    except (ValueError, RecursionError) as exc:  # plain ValueError: a number with thousands of digits
        raise ConfigError([f"{name}: not TOML: {exc}{toml_hint(text, str(exc))}"]) from exc
    if found.faults:
        faults = [f"{path_text(key, found.tables)}: {fault}" for key, fault in found.faults]
        raise ConfigError(_located(faults, text, name, found))
    return found


def default_config(
    bootstrap: tuple[HostPort, ...],
    *,
    bind: HostPort = DEFAULT_BIND,
    quotas: tuple[QuotaRule, ...] = (),
    quota_admin: QuotaAdminSettings | None = None,
) -> Config:
    """A configuration for running without a file: one listener on loopback, everything else by default.

    Args:
        bootstrap: brokers of the cluster.
        bind: the bootstrap port for clients; broker ports begin after it.
        quotas: none by default.
        quota_admin: no client may change quotas by default.

    Raises:
        ConfigError: the gateway would be its own upstream.
    """
    listeners = (ListenerSettings(name="default", bind=bind),)
    try:
        return Config(
            upstream=UpstreamSettings(bootstrap=bootstrap),
            listeners=listeners,
            quotas=quotas,
            quota_admin=quota_admin or QuotaAdminSettings(),
        )
    except ValidationError as exc:
        raise ConfigError(lines(exc, Config, {"listeners": listeners})) from exc


def replace_upstream(config: Config, bootstrap: tuple[HostPort, ...]) -> Config:
    """The same configuration in front of another cluster.

    Raises:
        ConfigError: the gateway would be its own upstream.
    """
    try:
        return config.with_upstream(bootstrap)
    except ValidationError as exc:
        raise ConfigError(lines(exc, Config, config)) from exc


def parse_bootstrap(text: str) -> tuple[HostPort, ...]:
    """The brokers in a text such as ``kafka-1:9092,kafka-2:9092``, the form of Kafka's own tools.

    Raises:
        ConfigError: a part of the text is not host:port.
    """
    found = []
    for part in text.split(","):
        try:
            found.append(parse_host_port(part.strip()))
        except ValueError as exc:
            raise ConfigError([f"{value_text(part.strip())} {exc}"]) from exc
    return tuple(found)
