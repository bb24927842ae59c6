"""[[groups]]: which clients are members of which groups."""

from __future__ import annotations

from pydantic import Field, model_validator

from config.ip_address import AddressOrBlock
from config.section_base import NonEmpty, Section, faults_error
from quotas.groups import Group
from quotas.groups_file import group_faults


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
        faults = list(group_faults(self.group))
        if faults:
            raise faults_error(faults)
        return self
