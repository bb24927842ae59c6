"""Names under which clients reach all brokers through one port: b{node}.kafka.example, and one to bootstrap. Pure.

A name means the same node on every gateway with the same configuration, and after every restart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

NODE: Final = "{node}"

BOOTSTRAP: Final = -1
"""Stands for a node's id: any broker."""

_MAX_NODE: Final = 2**31 - 1  # Kafka's INT
_MAX_CHARS: Final = 253  # the longest name in DNS
# Letters, digits and hyphens: Java sends no other characters in a handshake.
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ServerNames:
    """The names of one listener, in lower case.

    Attributes:
        bootstrap: the name for any broker.
        before, after: the parts of a name around a node's id.
    """

    bootstrap: str
    before: str
    after: str

    @classmethod
    def of(cls, bootstrap_name: str, broker_name: str) -> ServerNames:
        """The names of a configuration.

        Args:
            bootstrap_name: valid by `check_name`.
            broker_name: valid by `check_pattern`.
        """
        before, _, after = broker_name.lower().partition(NODE)
        return cls(bootstrap_name.lower(), before, after)

    def name_of(self, node: int) -> str:
        """The name of a node."""
        return f"{self.before}{node}{self.after}"

    def node_of(self, name: str) -> int | None:
        """The node of a name in lower case, `BOOTSTRAP` for the bootstrap name; None: it is not one of the names."""
        if name == self.bootstrap:
            return BOOTSTRAP
        digits = name[len(self.before) : len(name) - len(self.after)]
        # Each node has one spelling, so that a name in a log or in a rule of another system means one node.
        if not digits.isdecimal() or len(digits) > len(str(_MAX_NODE)) or str(int(digits)) != digits:
            return None
        node = int(digits)
        return node if node <= _MAX_NODE and name == self.name_of(node) else None


def check_name(text: str) -> str:
    """A host name that clients send in a handshake.

    Raises:
        ValueError: its text continues a sentence that begins with the value.
    """
    labels = text.lower().split(".")
    if len(text) > _MAX_CHARS or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise ValueError("is not a host name of letters, digits and hyphens")
    if len(labels) == 1:
        raise ValueError("has no dot, and clients in Java name no such host in a handshake")
    return text


def check_pattern(text: str) -> str:
    """A host name with {node} in it.

    Raises:
        ValueError: as `check_name`.
    """
    if text.count(NODE) != 1:
        raise ValueError(f"does not contain {NODE} once")
    if NODE in text.rpartition(".")[2]:
        raise ValueError(f"has {NODE} behind its last dot")
    try:
        check_name(text.replace(NODE, str(_MAX_NODE)))
    except ValueError as exc:
        raise ValueError(f"with {_MAX_NODE} for {NODE} {exc}") from None
    return text
