"""Groups of clients and their members. Kafka lacks them.

A member is given by user, by client id or by address. A name that ends in ``*`` stands for all names with that
beginning, and a block for all its addresses. A client that matches one of the three is in the group. Quotas of groups
are in `quotas.group_quotas`.

A client is counted by at most `MOST_OF_CLIENT` groups: first those of its user, then those of its address, then those
of its client id. A client can choose its client id, so with this order it cannot leave another group that way.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from quotas.addresses import address_spelling, one_spelling
from quotas.entities import cut_name
from quotas.ip_table import IpTable
from quotas.name_prefixes import NamePrefixes

MOST_GROUPS: Final = 1_000
MOST_OF_CLIENT: Final = 16
"""Each group takes as much time per request as a quota of the client's own."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group and its members.

    Attributes:
        name: the group's name.
        users, client_ids: names; one that ends in ``*`` stands for all names with that beginning.
        addresses: addresses and blocks.
    """

    name: str
    users: tuple[str, ...] = ()
    client_ids: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class Groups:
    """All groups, for look-ups whose time does not grow with the number of groups or members."""

    __slots__ = ("_addresses", "_by_address", "_clients", "_names", "_users", "all")

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        """Args: groups: the groups, each name once.

        Raises:
            ValueError: an address is not valid.
        """
        self.all = tuple(groups)
        self._names = frozenset(group.name for group in self.all)
        self._users = _ByName()
        self._clients = _ByName()
        self._addresses = IpTable()
        self._by_address: dict[str, list[str]] = {}
        for group in self.all:
            for name in group.users:
                self._users.add(name, group.name)
            for name in group.client_ids:
                self._clients.add(name, group.name)
            for name in group.addresses:
                spelled = one_spelling(name)
                self._addresses.add(spelled)
                self._by_address.setdefault(spelled, []).append(group.name)

    def __eq__(self, other: object) -> bool:
        """Whether these are the same groups with the same members."""
        return isinstance(other, Groups) and self.all == other.all

    def __hash__(self) -> int:
        """The hash of the groups."""
        return hash(self.all)

    def __bool__(self) -> bool:
        return bool(self.all)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def of(self, user: str, client_id: str, address: str) -> tuple[str, ...]:
        """The groups of a client, in the order of the module's docstring.

        Args:
            user: the principal's name.
            client_id: of its request.
            address: the client's address; "": not known.
        """
        if not self.all:
            return ()
        found = dict.fromkeys(self._users.of(user))
        with suppress(ValueError):  # the address is not known
            for name in self._addresses.covering(address_spelling(address)):
                found |= dict.fromkeys(self._by_address[name])
        found |= dict.fromkeys(self._clients.of(client_id))
        return tuple(found)[:MOST_OF_CLIENT]


class _ByName:
    """Groups by the users or the client ids that are their members."""

    __slots__ = ("_groups", "_prefixes")

    def __init__(self) -> None:
        self._groups: dict[str, list[str]] = {}
        self._prefixes = NamePrefixes()

    def add(self, name: str, group: str) -> None:
        name = cut_name(name)
        self._prefixes.add(name)
        self._groups.setdefault(name, []).append(group)

    def of(self, name: str) -> list[str]:
        groups, prefixes = self._groups, self._prefixes
        # A client that is really called ``team-*`` is found by both look-ups, because it begins with ``team-`` too.
        found = [*groups.get(cut_name(name), ())]
        for prefix in prefixes.of(name) if prefixes else ():
            found += groups[prefix]
        return found
