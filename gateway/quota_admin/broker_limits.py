"""Kafka's dynamic connection limits of a broker, applied as limits of this gateway (KIP-402, KIP-612).

Brokers behind a gateway have its connections and not the clients', so a broker's limit would apply to the gateway
itself. Unless the configuration says otherwise, these settings are therefore the gateway's own. The gateway has one
set of them, whichever broker a request names: its limits are for all its brokers together. They win over the
configuration file.
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

# The longest string in a DescribeConfigs response of an old version.
_MOST_CHARS: Final = 32_767

# Kafka's numbers for the source and the type of a setting.
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
"""Setting -> its value as text, for settings that were set over the wire."""

Changes: TypeAlias = Mapping[str, str | None]
"""Setting -> its new value; None: the configuration file's value applies again."""


class LimitError(ValueError):
    """A setting can't be changed so; the text is Kafka's if the rule is.

    Attributes:
        code: the error code of the response.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class BrokerLimits:
    """The settings that were set over the wire.

    Attributes:
        values: see `Values`; in force.
        keys: the settings of this gateway, including those of its listeners.
    """

    def __init__(
        self,
        listeners: Iterable[str],
        *,
        config: Callable[[], Config],
        check: Callable[[Config], None],
        apply: Callable[[Values], None],
        in_force: Callable[[], ConnectionLimits],
    ) -> None:
        """Starts without settings.

        Args:
            listeners: names of the gateway's listeners.
            config: returns the configuration without these settings.
            check: raises `config.ConfigError` when this machine can't support a configuration.
            apply: puts values in force.
            in_force: returns all limits in force, from any source.
        """
        self.values: Values = {}
        self._config = config
        self._check = check
        self._apply = apply
        self._in_force = in_force
        # Kafka writes names of listeners in lower case here.
        prefixes = {f"listener.name.{name.lower()}.": name for name in listeners}
        self._listeners: Final = {
            prefix + key: (name, key) for prefix, name in prefixes.items() for key in _OF_LISTENER
        }
        self.keys: Final = frozenset(_GLOBAL) | self._listeners.keys()

    def put_in_force(self, values: Values) -> None:
        """Replaces all settings that were set over the wire, and puts them in force.

        Args:
            values: valid values. Those of listeners that this gateway does not have are left out.

        Raises:
            LimitError: the values can't be in force together, or not on this machine. Nothing was changed.
        """
        own = self.own(values)
        self.check(own)
        self._apply(own)
        self.values = own

    def own(self, values: Values) -> Values:
        """The values of this gateway's settings."""
        return {key: value for key, value in values.items() if key in self.keys}

    def check(self, wanted: Values) -> None:
        """Check values as a whole.

        Raises:
            LimitError: the values can't be in force together, or not on this machine.
        """
        try:
            self.check_over(self._config(), wanted)
        except ConfigError as exc:
            raise LimitError(ErrorCode.INVALID_REQUEST, "; ".join(exc.lines)) from exc

    def check_over(self, config: Config, values: Values) -> None:
        """Check a configuration with these values instead of its own.

        Raises:
            ConfigError: the values can't be in force together, or not on this machine.
        """
        after = self.over(config, values)
        # A limit of 0 for every address needs overrides, because otherwise no address could connect.
        if values.get(PER_IP) == "0" and not after.connections.max_connections_per_ip_overrides:
            fault = f"{PER_IP} can be set to zero only if {PER_IP_OVERRIDES} property is set."
            raise ConfigError([f"requirement failed: {fault}"])
        self._check(after)

    def merged(self, changes: Changes) -> Values:
        """The settings over the wire after these changes."""
        both = {**self.values, **changes}
        return {key: value for key, value in both.items() if value is not None}

    def planned(self, resource: str, ops: Iterable[ConfigOp], *, after: Changes) -> Changes:
        """The changes of a request after the operations of one more resource.

        Args:
            resource: a broker's id, or "" for all brokers.
            ops: operations on settings in `keys`.
            after: the changes of the same request so far.

        Returns:
            The changes so far and those of the operations.

        Raises:
            LimitError: an operation is not possible; the first one is reported.
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

    def over(self, config: Config, values: Values) -> Config:
        """The configuration with these values instead of its own."""
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
        """The settings that DescribeConfigs returns for a resource.

        Args:
            resource: a broker's id for all settings; "" for those that were set over the wire.
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
    """Checks a limit that was set earlier, in this or another process, as if it were set now.

    Args:
        name: the setting; it may be of a listener that this gateway does not have.
        value: as it was set.

    Returns:
        The value as the store keeps it.

    Raises:
        LimitError: the value can't be set, or the name is none of these settings.
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
    # Python refuses to convert very many digits, with an error text of its own.
    return len(text) <= 20 and text.isascii() and text.removeprefix("-").isdigit()


def _checked(op: ConfigOp) -> str:
    """The value of an operation that sets a setting, as text."""
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

    Of two spellings of one address the later one counts, as in Kafka.
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
    """A value in the configuration's type."""
    if key == PER_IP_OVERRIDES:
        return _overrides_of(value)
    number = int(value)
    return None if number == UNLIMITED else number
