"""``host:port`` as operators write it: ``127.0.0.1:9092``, ``kafka-1.example:9092``, ``[::1]:9092``.

Names are not resolved here. An IPv6 address needs its brackets, because its port cannot be recognised without them.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Final, NamedTuple, TypeAlias

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

MAX_PORT: Final = 65_535  # 16 bits in TCP

# Host names have no underscores by their standard, but container networks use them.
_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_ONLY_DIGITS: Final = re.compile(r"[0-9.]+")
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})


class HostPort(NamedTuple):
    """Where to listen or to connect.

    Attributes:
        host: a name or an address; IPv6 without brackets, as socket functions need it.
        port: 0..65535; 0 means any free port, where that is allowed.
    """

    host: str
    port: int

    @property
    def wildcard(self) -> bool:
        """Whether this means every address of the machine, so that clients cannot connect to it."""
        return self.host in _WILDCARDS

    def __str__(self) -> str:
        """The form that `parse_host_port` reads."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host_port(text: str, *, lowest_port: int = 1) -> HostPort:
    """The host and port that a text names.

    Args:
        text: ``host:port`` or ``[IPv6 address]:port``.
        lowest_port: 0 to allow "any free port".

    Raises:
        ValueError: its text continues a sentence that begins with the value: "is not ...".
    """
    form = f"is not host:port with a port in {lowest_port}..{MAX_PORT}"
    host, colon, port_text = text.rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port_text):
        raise ValueError(form)
    port = int(port_text)
    if not lowest_port <= port <= MAX_PORT:
        raise ValueError(form)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host or not valid_host(host):
            raise ValueError("is not [IPv6 address]:port")
    elif ":" in host:
        raise ValueError(f"has too many colons; an IPv6 address goes in brackets: [::1]:{port}")
    elif not valid_host(host):
        raise ValueError(form)
    return HostPort(host, port)


def valid_host(text: str) -> bool:
    """Whether this is an IP address, or could be a host name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        # A mistyped IPv4 address must not be taken for a name and looked up.
        return _NAME.fullmatch(text) is not None and _ONLY_DIGITS.fullmatch(text) is None
    return True


def is_loopback(host: str) -> bool:
    """Whether this is a loopback address, which only the machine itself can reach, or the name of one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _connectable(value: object) -> HostPort:
    return _validated(value, lowest_port=1)


def _bindable(value: object) -> HostPort:
    return _validated(value, lowest_port=0)


def _validated(value: object, *, lowest_port: int) -> HostPort:
    text = str(value) if isinstance(value, (str, HostPort)) else ""
    return parse_host_port(text, lowest_port=lowest_port)


_SCHEMA: Final = WithJsonSchema({"type": "string", "pattern": r"^(\[[0-9A-Fa-f:.%]+\]|[^:\s]+):[0-9]{1,5}$"})

ConnectAddress: TypeAlias = Annotated[HostPort, PlainValidator(_connectable), PlainSerializer(str), _SCHEMA]
BindAddress: TypeAlias = Annotated[HostPort, PlainValidator(_bindable), PlainSerializer(str), _SCHEMA]
