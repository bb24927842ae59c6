"""Reads a configuration file. No socket, no name lookup, no log."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from config.environment import Substitution
from config.faults import lines, path_text, value_text
from config.host_port import HostPort, parse_host_port
from config.model import Config
from config.sections.listeners import ListenerSettings
from config.sections.quota_admin import QuotaAdminSettings
from config.sections.quotas import QuotaRule
from config.sections.upstream import UpstreamSettings
from config.value_hints import toml_hint

DEFAULT_BIND: Final = HostPort("127.0.0.1", 19_092)  # Kafka's port and 10,000, so that both fit one machine


class ConfigError(Exception):
    """The configuration can't be used.

    Attributes:
        lines: one per fault, each complete: file, key path, value, what is allowed.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def load(path: str | Path) -> Config:
    """The configuration in a TOML file, with values from this process's environment.

    Raises:
        ConfigError: the file can't be read, is not TOML, or breaks a rule. All broken rules are reported at once,
            except those between sections, which are only looked at once every section is right.
    """
    return parse(_text(path), name=str(path))


def parse(text: str, *, name: str, environment: Mapping[str, str] = os.environ) -> Config:
    """The configuration in a TOML text.

    Args:
        text: the whole file.
        name: of the file, for error texts.
        environment: of which the text may name variables.

    Raises:
        ConfigError: as `load`.
    """
    tables = _substitution(text, name, environment).tables
    try:
        return Config.model_validate(tables)
    except ValidationError as exc:
        raise ConfigError([f"{name}: {line}" for line in lines(exc, Config, tables)]) from exc


def variables(path: str | Path) -> list[tuple[str, str]]:
    """The variables of the environment that a file uses: each key that has one, and its name.

    Raises:
        ConfigError: as `load`, except for rules.
    """
    found = _substitution(_text(path), str(path), os.environ)
    return [(path_text(key, found.tables), name) for key, names in found.variables.items() for name in names]


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
    except (ValueError, RecursionError) as exc:  # a plain ValueError is a number with thousands of digits
        raise ConfigError([f"{name}: not TOML: {exc}{toml_hint(text, str(exc))}"]) from exc
    if found.faults:
        raise ConfigError([f"{name}: {path_text(key, found.tables)}: {fault}" for key, fault in found.faults])
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
    """The brokers in a text such as ``kafka-1:9092,kafka-2:9092``, the form Kafka's own tools take.

    Raises:
        ConfigError: a part of it is not host:port.
    """
    found = []
    for part in text.split(","):
        try:
            found.append(parse_host_port(part.strip()))
        except ValueError as exc:
            raise ConfigError([f"{value_text(part.strip())} {exc}"]) from exc
    return tuple(found)
