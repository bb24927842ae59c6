"""Kafka's dynamic connection limits of a broker, applied as limits of this gateway (KIP-402, KIP-612).

Brokers behind a gateway see its connections and not the clients', so a limit of theirs would hit the gateway itself.
These settings are therefore the gateway's own unless the configuration says otherwise. The gateway has one set of
them, whichever broker is named: its limits are of all its brokers together. They win over the configuration file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from config import Config, ConfigError
from protocol.broker_configs import ConfigOp, Operation
from protocol.describe_configs import ShownConfig
from protocol.error_codes import ErrorCode
from quotas.addresses import address_spelling
from quotas.connections import ConnectionLimits

MAX_CONNECTIONS: Final = "max.connections"
CREATION_RATE: Final = "max.connection.creation.rate"
PER_IP: Final = "max.connections.per.ip"
PER_IP_OVERRIDES: Final = "max.connections.per.ip.overrides"
UNLIMITED: Final = 2**31 - 1

# What a DescribeConfigs answer of an old version can contain.
_MOST_CHARS: Final = 32_767

# Where a setting came from and of what type it is, by Kafka's numbers.
_DYNAMIC_BROKER, _DYNAMIC_DEFAULT, _STATIC_BROKER, _DEFAULT = 2, 3, 4, 5
_STRING, _INT = 2, 3

_GLOBAL: Final = (MAX_CONNECTIONS, CREATION_RATE, PER_IP, PER_IP_OVERRIDES)
_OF_LISTENER: Final = (MAX_CONNECTIONS, CREATION_RATE)
_LISTENER_KEY: Final = re.compile(
    rf"listener\.name\..+\.({'|'.join(map(re.escape, _OF_LISTENER))})", re.DOTALL
)
_FIELDS: Final = {
    MAX_CONNECTIONS: "max_connections",
    CREATION_RATE: "max_connection_creation_rate",
    PER_IP: "max_connections_per_ip",
    PER_IP_OVERRIDES: "max_connections_per_ip_overrides",
}

Values: TypeAlias = Mapping[str, str]
"""Setting -> its value as text, of what was set over the wire."""

Changes: TypeAlias = Mapping[str, str | None]
"""Setting -> its new value; None: as the configuration file has it."""


class LimitError(ValueError):
    """A setting can't be made; the text is Kafka's where Kafka has the rule.

    Attributes:
        code: as it is answered.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class BrokerLimits:
    """What was set over the wire.

    Attributes:
        values: see `Values`; in force.
        keys: the settings of this gateway, those of its listeners among them.
    """

    def __init__(
        self,
        listeners: Iterable[str],
        *,
        check: Callable[[Values], None],
        apply: Callable[[Values], None],
        in_force: Callable[[], ConnectionLimits],
    ) -> None:
        """Nothing is set.

        Args:
            listeners: names of the gateway's.
            check: raises `config.ConfigError` when this machine can't do what would be in force.
            apply: puts values in force.
            in_force: all limits, wherever they came from.
        """
        self.values: Values = {}
        self._check = check
        self._apply = apply
        self._in_force = in_force
        # Kafka writes listeners in lower case here.
        prefixes = {f"listener.name.{name.lower()}.": name for name in listeners}
        self._listeners: Final = {
            prefix + key: (name, key) for prefix, name in prefixes.items() for key in _OF_LISTENER
        }
        self.keys: Final = frozenset(_GLOBAL) | self._listeners.keys()

    def put_in_force(self, values: Values) -> None:
        """These, and no others, are what was set over the wire.

        Args:
            values: each is checked; those of listeners that this gateway does not have are left out.

        Raises:
            LimitError: they can't be in force together, or not on this machine. Nothing was changed.
        """
        own = self.own(values)
        self.check(own)
        self._apply(own)
        self.values = own

    def own(self, values: Values) -> Values:
        """Those that are of this gateway."""
        return {key: value for key, value in values.items() if key in self.keys}

    def check(self, wanted: Values) -> None:
        """Look at values as a whole.

        Raises:
            LimitError: they can't be in force together, or not on this machine.
        """
        self._require_overrides(wanted)
        try:
            self._check(wanted)
        except ConfigError as exc:
            raise LimitError(ErrorCode.INVALID_REQUEST, "; ".join(exc.lines)) from exc

    def merged(self, changes: Changes) -> Values:
        """What is set over the wire after these changes."""
        both = {**self.values, **changes}
        return {key: value for key, value in both.items() if value is not None}

    def planned(self, resource: str, ops: Iterable[ConfigOp], *, after: Changes) -> Changes:
        """What the operations of one resource come to.

        Args:
            resource: a broker's id, or "" for all brokers.
            ops: of settings in `keys`.
            after: what the same request has come to so far.

        Returns:
            That and theirs.

        Raises:
            LimitError: the first of them that can't be.
        """
        if resource and not _is_int(resource):
            raise LimitError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {resource}")
        changes = dict(after)
        seen = set()
        for op in ops:
            if op.name in seen:
                raise LimitError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
            seen.add(op.name)
            changes[op.name] = None if op.operation == Operation.DELETE else _checked(op)
        self.check(self.merged(changes))
        return changes

    def _require_overrides(self, wanted: Values) -> None:
        # With no connection for any address there have to be some to which that does not apply.
        if wanted.get(PER_IP) == "0" and not self._overrides(wanted):
            text = "requirement failed: max.connections.per.ip can be set to zero only if "
            raise LimitError(
                ErrorCode.INVALID_REQUEST, f"{text}max.connections.per.ip.overrides property is set."
            )

    def _overrides(self, wanted: Values) -> bool:
        if PER_IP_OVERRIDES in wanted:
            return bool(wanted[PER_IP_OVERRIDES])
        return bool(self._in_force().max_connections_per_ip_overrides)

    def over(self, config: Config, values: Values) -> Config:
        """The configuration with these values in the place of its own."""
        of_all = {_FIELDS[key]: _native(key, values[key]) for key in _GLOBAL if key in values}
        own: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            if key in self._listeners:
                name, base = self._listeners[key]
                own.setdefault(name, {})[_FIELDS[base]] = _native(base, value)
        return config.model_copy(
            update={
                "connections": config.connections.model_copy(update=of_all),
                "listeners": tuple(
                    listener.model_copy(update=own.get(listener.name, {})) for listener in config.listeners
                ),
            }
        )

    def shown(self, resource: str) -> dict[str, ShownConfig]:
        """What DescribeConfigs says of a resource.

        Args:
            resource: a broker's id, which has everything; or "", which has only what was set over the wire.
        """
        source = _DYNAMIC_BROKER if resource else _DYNAMIC_DEFAULT
        found = {key: ShownConfig(value, source, _type_of(key)) for key, value in self.values.items()}
        if not resource:
            return found
        limits = self._in_force()
        overrides = limits.max_connections_per_ip_overrides
        static = {
            MAX_CONNECTIONS: _number(limits.max_connections),
            CREATION_RATE: _number(limits.max_connection_creation_rate),
            PER_IP: _number(limits.max_connections_per_ip),
            PER_IP_OVERRIDES: ",".join(f"{address}:{most}" for address, most in overrides.items()),
        }
        for key, value in static.items():
            source = _DEFAULT if value in ("", str(UNLIMITED)) else _STATIC_BROKER
            found.setdefault(key, ShownConfig(value, source, _type_of(key)))
        return found


def checked_limit(name: str, value: str) -> str:
    """A limit that was set once, in this or another process, as if it were set now.

    Args:
        name: the setting; that of a listener which this gateway does not have is checked as well.
        value: as it was set.

    Returns:
        The value as it is kept.

    Raises:
        LimitError: it can't be set, or is none of these settings.
    """
    if not isinstance(name, str) or not isinstance(value, str):
        raise LimitError(ErrorCode.INVALID_REQUEST, "a limit of connections is a text")
    if name not in _GLOBAL and _LISTENER_KEY.fullmatch(name) is None:
        raise LimitError(ErrorCode.INVALID_REQUEST, f"{name} is no limit of connections")
    return _checked_value(name, value)


def _type_of(key: str) -> int:
    return _STRING if key == PER_IP_OVERRIDES else _INT


def _number(limit: int | None) -> str:
    return str(UNLIMITED if limit is None else limit)


def _is_int(text: str) -> bool:
    # Python refuses to read very many digits, in its own words.
    return len(text) <= 20 and text.isascii() and text.removeprefix("-").isdigit()


def _checked(op: ConfigOp) -> str:
    """The value of a setting that is to be set, as text."""
    if op.operation in (Operation.APPEND, Operation.SUBTRACT):
        what = Operation(op.operation).name.lower()
        raise LimitError(
            ErrorCode.INVALID_CONFIG, f"Config value {what} is not allowed for config key: {op.name}"
        )
    if op.operation != Operation.SET:
        raise LimitError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {op.operation}")
    if op.value is None:
        raise LimitError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {op.name}")
    return _checked_value(op.name, op.value)


def _checked_value(name: str, given: str) -> str:
    base = name if name in _FIELDS else next(key for key in _OF_LISTENER if name.endswith(f".{key}"))
    value = given.strip()
    if base == PER_IP_OVERRIDES:
        if len(value) > _MOST_CHARS:
            raise LimitError(
                ErrorCode.INVALID_REQUEST, f"{name} has {len(value)} characters, at most {_MOST_CHARS}"
            )
        _overrides_of(value)
        return value
    fault = f"Invalid value {given} for configuration {name}: "
    if not _is_int(value) or not -(2**31) <= int(value) <= UNLIMITED:
        raise LimitError(ErrorCode.INVALID_REQUEST, f"{fault}Not a number of type INT")
    if int(value) < 0:
        raise LimitError(ErrorCode.INVALID_REQUEST, f"{fault}Value must be at least 0")
    if int(value) == 0 and base != PER_IP:
        text = f"Invalid value org.apache.kafka.common.config.ConfigException: Invalid {base} 0 for configuration "
        raise LimitError(ErrorCode.INVALID_REQUEST, f"{text}Invalid dynamic configuration")
    return str(int(value))


def _overrides_of(text: str) -> dict[str, int]:
    """The limits of single addresses in a text such as ``10.0.0.7:100,[::1]:5``. Host names are not looked up.

    Of two spellings of one address the later one counts, as Kafka has it.
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        address, _, most = part.rpartition(":")
        try:
            if not _is_int(most := most.strip()):
                raise ValueError(most)
            limit = found[address_spelling(address)] = int(most)
        except ValueError:
            fault = f"Error parsing configuration property '{PER_IP_OVERRIDES}': {part} is not ADDRESS:NUMBER"
            raise LimitError(ErrorCode.INVALID_REQUEST, fault) from None
        if not 0 <= limit <= UNLIMITED:
            raise LimitError(
                ErrorCode.INVALID_REQUEST,
                f"Error parsing configuration property '{PER_IP_OVERRIDES}': {part}",
            )
    return found


def _native(key: str, value: str) -> Any:
    """A value as the configuration has it."""
    if key == PER_IP_OVERRIDES:
        return _overrides_of(value)
    number = int(value)
    return None if number == UNLIMITED else number
