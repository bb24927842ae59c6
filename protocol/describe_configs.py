"""DescribeConfigs, v0 to v4: finds the brokers in a request, and changes their settings in the response in place.

Nothing is decoded. The bytes are walked, and unchanged parts are copied. Layouts: DescribeConfigsRequest and
DescribeConfigsResponse of Kafka's message definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.api_keys import Api
from protocol.error_codes import ErrorCode
from protocol.errors import MalformedBody, TooManyElements
from protocol.headers import body_offset, response_body_offset
from protocol.primitives import (
    read_array_length,
    read_int8,
    read_int16,
    read_nullable_string,
    read_string,
    skip,
    skip_string,
    skip_tags,
    write_array_length,
    write_int32,
    write_nullable_string,
)
from protocol.steps import STEP_ELEMENTS, Steps

BROKER: Final = 4
BROKER_LOGGER: Final = 8

MOST_ASKED: Final = 100_000
"""The most resources and names of settings in one request. Only those of brokers are kept."""

MOST_NAMES_KEPT: Final = 10_000
"""The most brokers and names of their settings that are kept of one request."""

ADDRESS_CONFIGS: Final = frozenset(
    {
        "advertised.listeners",
        "advertised.host.name",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "host.name",
        "listeners",
        "zookeeper.connect",
    }
)
"""Broker settings whose values are addresses inside the cluster (hazard E19)."""

_ADDRESS_CONFIGS: Final = frozenset(name.encode() for name in ADDRESS_CONFIGS)


@dataclass(frozen=True, slots=True)
class ShownConfig:
    """A setting in a DescribeConfigs response; source and type are Kafka's numbers."""

    value: str
    source: int
    config_type: int


AskedConfigs = dict[str, frozenset[str] | None]
"""broker's name -> the requested settings, None for all."""


def asked_broker_configs(frame: bytes, api: Api) -> Steps[AskedConfigs | None]:
    """The settings of brokers in a request.

    Returns:
        None when the request names neither brokers nor their loggers: its response has no address of the cluster.

    Raises:
        ProtocolError: the request does not follow its layout, or has more than `MOST_ASKED` elements.
    """
    flexible = api.flexible
    count, at = _array(frame, body_offset(frame, flexible=flexible), flexible, MOST_ASKED)
    asked: AskedConfigs = {}
    of_brokers = False
    seen = kept = 0
    next_yield = STEP_ELEMENTS
    for _ in range(count):
        resource_type, at = read_int8(frame, at)
        of_brokers = of_brokers or resource_type in (BROKER, BROKER_LOGGER)
        name_at = at
        at = skip_string(frame, at, compact=flexible)
        keys, at = read_array_length(frame, at, compact=flexible, most=MOST_ASKED)
        seen += 1 + max(keys, 0)
        if seen > MOST_ASKED:
            raise TooManyElements
        if resource_type == BROKER:
            kept += 1 + max(keys, 0)
            if kept > MOST_NAMES_KEPT:
                raise TooManyElements
            names = set()
            for _ in range(max(keys, 0)):
                key, at = read_string(frame, at, compact=flexible)
                names.add(_text(key))
            name, _ = read_string(frame, name_at, compact=flexible)
            asked[_text(name)] = None if keys < 0 else frozenset(names)
        else:
            for done in range(max(keys, 0)):
                if done % STEP_ELEMENTS == STEP_ELEMENTS - 1:
                    yield
                at = skip_string(frame, at, compact=flexible)
        at = skip_tags(frame, at) if flexible else at
        if seen >= next_yield:
            next_yield = seen + STEP_ELEMENTS
            yield
    return asked if of_brokers else None


class _Hidden:
    """Decides which values are addresses of the cluster."""

    def __init__(self, upstream_hosts: Iterable[str]) -> None:
        self._hosts = tuple(host.encode() for host in upstream_hosts if host)

    def __call__(self, name: bytes, value: bytes | None) -> bool:
        if value is None:
            return False
        base = name.rsplit(b".", 1)[-1] if name.startswith(b"listener.name.") else name
        return (
            name in _ADDRESS_CONFIGS or base in _ADDRESS_CONFIGS or any(host in value for host in self._hosts)
        )


def edit_broker_configs(
    frame: bytes,
    api: Api,
    upstream_hosts: Iterable[str],
    shown: Callable[[str], Mapping[str, ShownConfig]] | None = None,
    keys: Collection[str] = (),
) -> Steps[bytes]:
    """The response without addresses of the cluster, and with some settings replaced by the gateway's.

    Values of `ADDRESS_CONFIGS`, and any value that contains one of `upstream_hosts`, become null, like sensitive
    settings in Kafka; their synonyms too (hazard E19). A response without any of these is returned unchanged.

    Args:
        frame: the whole response frame.
        api: the version of the response.
        upstream_hosts: the hosts of the cluster's brokers.
        shown: broker's name -> its settings among `keys`; None: nothing is replaced.
        keys: all settings that the gateway provides instead of the broker.

    Raises:
        ProtocolError: it does not follow its layout.
    """
    editor = _Editor(frame, api, _Hidden(upstream_hosts), frozenset(key.encode() for key in keys))
    flexible = api.flexible
    at = response_body_offset(frame, flexible_header=api.flexible_header)
    count, at = _array(frame, skip(frame, at, 4), flexible, len(frame))
    next_yield = STEP_ELEMENTS
    for _ in range(count):
        error_code, at = read_int16(frame, at)
        at = skip_string(frame, at, compact=flexible)
        resource_type, at = read_int8(frame, at)
        raw_name, at = read_string(frame, at, compact=flexible)
        replaced: Mapping[str, ShownConfig] | None = None
        if shown is not None and resource_type == BROKER and error_code == ErrorCode.NONE:
            replaced = shown(_text(raw_name))
        count_at = at
        configs, at = _array(frame, at, flexible, len(frame))
        of_broker = resource_type in (BROKER, BROKER_LOGGER)
        begun = editor.begin(count_at, at) if replaced is not None else None
        kept = 0
        for _ in range(configs):
            editor.elements += 1
            if editor.elements >= next_yield:
                next_yield = editor.elements + STEP_ELEMENTS // 2
                yield
            at, own = editor.setting(at, hide=of_broker, drop=replaced is not None)
            kept += own
        if replaced is not None and begun is not None:
            editor.add(at, replaced, begun, kept)
        at = skip_tags(frame, at) if flexible else at
        editor.elements += 1
    return editor.result()


class _Editor:
    """Walks the settings of a response, and copies the unchanged parts to `out` in as few pieces as possible."""

    __slots__ = ("_api", "_copied", "_frame", "_hidden", "_keys", "_pieces", "elements")

    def __init__(self, frame: bytes, api: Api, hidden: _Hidden, keys: frozenset[bytes]) -> None:
        self._frame = frame
        self._api = api
        self._hidden = hidden
        self._keys = keys
        self._pieces: list[bytes | memoryview] = []
        self._copied = 4  # all bytes before are in the pieces
        self.elements = 0

    def _cut(self, start: int, end: int, instead: bytes) -> None:
        """Replace `frame[start:end]` by other bytes."""
        self._pieces.append(memoryview(self._frame)[self._copied : start])
        self._pieces.append(instead)
        self._copied = end

    def begin(self, count_at: int, at: int) -> int:
        """Reserve space for the number of settings, which is known after them; returns its position, for `add`."""
        self._cut(count_at, at, b"")
        return len(self._pieces) - 1

    def add(self, at: int, ours: Mapping[str, ShownConfig], begun: int, kept: int) -> None:
        """Add the gateway's settings after `kept` of the broker's, and fill in their number."""
        count = bytearray()
        write_array_length(count, kept + len(ours), compact=self._api.flexible)
        self._pieces[begun] = bytes(count)
        self._cut(at, at, b"".join(_shown(name, config, self._api) for name, config in ours.items()))

    def setting(self, start: int, *, hide: bool, drop: bool) -> tuple[int, bool]:
        """Walk one setting, and set hidden values to null; returns its end and whether it is kept."""
        frame, api = self._frame, self._api
        flexible = api.flexible
        name, value_at = read_string(frame, start, compact=flexible)
        dropped = drop and name in self._keys
        if hide and not dropped:
            at = self._value(name, value_at)
        else:
            at = skip_string(frame, value_at, compact=flexible)
        at = skip(frame, at, 3)  # read-only, default or source, sensitive
        if api.version >= 1:
            synonyms, at = _array(frame, at, flexible, len(frame))
            for _ in range(synonyms):
                self.elements += 1
                synonym, value_at = read_string(frame, at, compact=flexible)
                if hide and not dropped:
                    at = self._value(synonym, value_at)
                else:
                    at = skip_string(frame, value_at, compact=flexible)
                at = skip(frame, at, 1)
                at = skip_tags(frame, at) if flexible else at
        if api.version >= 3:
            at = skip_string(frame, skip(frame, at, 1), compact=flexible)
        at = skip_tags(frame, at) if flexible else at
        if dropped:
            self._cut(start, at, b"")
        return at, not dropped

    def _value(self, name: bytes, at: int) -> int:
        value, end = read_nullable_string(self._frame, at, compact=self._api.flexible)
        if self._hidden(name, value):
            self._cut(at, end, b"\x00" if self._api.flexible else b"\xff\xff")
        return end

    def result(self) -> bytes:
        """The frame."""
        if not self._pieces:
            return self._frame
        self._pieces.append(memoryview(self._frame)[self._copied :])
        size = bytearray()
        write_int32(size, sum(map(len, self._pieces)))
        return b"".join([size, *self._pieces])


def _shown(name: str, config: ShownConfig, api: Api) -> bytes:
    flexible = api.flexible
    out = bytearray()
    write_nullable_string(out, name.encode(), compact=flexible)
    write_nullable_string(out, config.value.encode(), compact=flexible)
    source = config.source if api.version >= 1 else config.source == 5
    out += bytes((False, source, False))  # writable and not sensitive
    if api.version >= 1:
        write_array_length(out, 0, compact=flexible)
    if api.version >= 3:
        out.append(config.config_type)
        write_nullable_string(out, None, compact=flexible)
    if flexible:
        out.append(0)
    return bytes(out)


def _array(frame: bytes, at: int, flexible: bool, most: int) -> tuple[int, int]:
    count, at = read_array_length(frame, at, compact=flexible, most=most)
    if count < 0:
        raise MalformedBody("null where an array is required")
    return count, at


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise MalformedBody("a name that is no UTF-8") from exc
