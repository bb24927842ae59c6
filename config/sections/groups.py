"""[[groups]]: which clients are members of which groups."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, model_validator

from config.ip_address import AddressOrBlock
from config.section_base import Key, NonEmpty, Section, faults_error
from quotas.groups import Group
from quotas.limits import group_name_fault


class GroupRule(Section, frozen=True):
    """A group of clients. Give it quotas with `group` in [[quotas]].

    A client is a member when its user, its client id or its address is listed.

    Attributes:
        name: letters, digits, dot, `_` and `-`, at most 100.
        users: users. A name that ends in `*` stands for all users whose names begin so.
        client_ids: client ids, likewise. A client chooses its client id: list those that you trust.
        addresses: addresses, and blocks of addresses.
    """

    name: NonEmpty
    users: tuple[NonEmpty, ...] = Field(default=(), strict=False)
    client_ids: tuple[NonEmpty, ...] = Field(default=(), strict=False)
    addresses: tuple[AddressOrBlock, ...] = Field(default=(), strict=False)

    @property
    def group(self) -> Group:
        """The group that this defines."""
        return Group(self.name, self.users, self.client_ids, self.addresses)

    @model_validator(mode="after")
    def _check(self) -> GroupRule:
        faults = list(self._faults())
        if faults:
            raise faults_error(faults)
        return self

    def _faults(self) -> Iterator[tuple[Key, str]]:
        if (fault := group_name_fault(self.name)) is not None:
            yield ("name",), fault
        if not (self.users or self.client_ids or self.addresses):
            yield (), "has no members; give users, client_ids or addresses"
        for key in ("users", "client_ids", "addresses"):
            names = getattr(self, key)
            for at, name in enumerate(names):
                if name == "*":
                    yield (key, at), "would be all clients; give the beginning of a name before the star"
                elif name in names[:at]:
                    yield (key, at), "is given twice"
