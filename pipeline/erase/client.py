"""Which rows belong to a client: those that name its user, client id or address. Arrow, no files."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ArgumentError
from quotas.addresses import address_spelling
from quotas.entities import QuotaEntity, format_name
from quotas.usage_record import OTHER, STORED, UsageApi, hashed_name, plain_name

_NO_CLIENT_ID: Final = frozenset({UsageApi.CONNECT.value, STORED})
"""Rows that have something else in place of a client id."""
_TOLD: Final = re.compile(r"\w+ of (?:user=(?P<user>.*?))?,?(?:client-id=(?P<client_id>.*))?")


@dataclass(frozen=True, slots=True)
class Client:
    """A client by the names that records have of it. A name that is not given may be any.

    Attributes:
        users, client_ids, ips: one name each, plain and hashed; empty where it is not given.
    """

    users: frozenset[str] = frozenset()
    client_ids: frozenset[str] = frozenset()
    ips: frozenset[str] = frozenset()

    @classmethod
    def named(
        cls, *, user: str | None, client_id: str | None, ip: str | None, salts: Iterable[bytes] = ()
    ) -> Client:
        """The client with these names.

        Args:
            user, client_id: as clients have them; together they mean that both are in a row.
            ip: an address in any spelling.
            salts: keys of hashed names that records may have.

        Raises:
            ArgumentError: no record can name a client so, or it would be many clients.
        """
        if ip is not None and (user is not None or client_id is not None):
            raise ArgumentError(
                "no record has an address together with a user or a client id: erase them one by one"
            )
        if user is None and client_id is None and ip is None:
            raise ArgumentError("whose rows? Say --user, --client-id, both, or --ip")
        if "" in (user, client_id, ip):
            raise ArgumentError("an empty name is that of all clients without one")
        if OTHER in (user, client_id):
            raise ArgumentError(f"{OTHER} is the sum of many clients, not one")
        try:
            spelled = () if ip is None else (address_spelling(ip),)
        except ValueError:
            raise ArgumentError(f"--ip {ip}: no address") from None
        salts = list(salts)

        def written(name: str | None, *spellings: str) -> frozenset[str]:
            if name is None:
                return frozenset()
            known = {plain_name(name), *spellings}
            return frozenset({*known, *(hashed_name(each, salt) for each in known for salt in salts)})

        return cls(written(user), written(client_id), written(ip, *spelled))

    def is_row(self, user: str, client_id: str, api: str) -> bool:
        """Whether a row with these names is meant."""
        if self.ips:
            return api == UsageApi.CONNECT and _spelled(client_id) in self.ips
        # The address or a topic stands in place of the client id there.
        return (not self.users or user in self.users) and (
            not self.client_ids or (client_id in self.client_ids and api not in _NO_CLIENT_ID)
        )

    def rows(self, rows: pa.RecordBatch | pa.Table) -> Any:
        """Which rows are meant, of some with the columns user, client_id and api."""
        # Other writers write text as views.
        users, client_ids, apis = (
            rows.column(name).cast(pa.string()) for name in ("user", "client_id", "api")
        )
        connects = pc.equal(apis, UsageApi.CONNECT.value)
        if self.ips:
            spelled = [
                each for each in pc.unique(client_ids).to_pylist() if each and _spelled(each) in self.ips
            ]
            return pc.fill_null(pc.and_(connects, _is_in(client_ids, spelled)), False)
        found = _is_in(users, self.users) if self.users else pc.is_valid(client_ids)
        if self.client_ids:
            others = pc.invert(_is_in(apis, _NO_CLIENT_ID))
            found = pc.and_(found, pc.and_(_is_in(client_ids, self.client_ids), others))
        return pc.fill_null(found, False)

    def is_entity(self, entity: QuotaEntity) -> bool:
        """Whether a quota of this entity is the client's own."""
        return (
            (not self.users or entity.user in self.users)
            and (not self.client_ids or entity.client_id in self.client_ids)
            and (not self.ips or (isinstance(entity.ip, str) and _spelled(entity.ip) in self.ips))
        )

    def is_told(self, text: str) -> bool:
        """Whether a client that a plan has no quota for, such as ``produce of user=bob``, is meant."""
        found = _TOLD.fullmatch(text)
        api = text.partition(" of ")[0]
        return found is not None and self.is_row(found["user"] or "", found["client_id"] or "", api)

    def is_in(self, text: bytes) -> bool:
        """Whether a text has all names that are given, as a part of whatever: it may be of another client."""
        given = [names for names in (self.users, self.client_ids, self.ips) if names]
        return all(any(form in text for name in names for form in _forms(name)) for names in given)


def _forms(name: str) -> set[bytes]:
    """A name as JSON, HTML, plans and plain text have it."""
    escaped = (json.dumps(name)[1:-1], json.dumps(name, ensure_ascii=False)[1:-1])
    texts = {name, html.escape(name), format_name(name), *escaped}
    return {text.encode("utf-8", "surrogatepass") for text in texts}


def _is_in(column: Any, names: Iterable[str]) -> Any:
    return pc.is_in(column, pa.array(sorted(names), pa.string()))


def _spelled(text: str) -> str:
    """An address in one spelling; any other text as it is."""
    try:
        return address_spelling(text)
    except ValueError:
        return text
