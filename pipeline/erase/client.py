"""Finds the rows of a client: those with its user, client id or address. Arrow, no files."""

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
"""APIs whose rows have something else in the column of client ids."""
_MARKUP: Final = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL)
_ENDS: Final = r"""(?=[\s,;)"']|$)"""
_TOLD: Final = re.compile(
    r"\w+ of (?:ip=(?P<ip>.*)|(?:user=(?P<user>.*?))?,?(?:client-id=(?P<client_id>.*))?)"
)


@dataclass(frozen=True, slots=True)
class Client:
    """A client, by its names in records. A name that is not given matches any.

    Attributes:
        users, client_ids, ips: one name each, plain and hashed; empty if it is not given.
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
            user, client_id: the client's names. If both are given, a row must have both.
            ip: an address in any spelling.
            salts: keys of hashed names that records may have.

        Raises:
            ArgumentError: no record can have such a name, or it would match many clients.
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
        """Whether a row with these names is the client's."""
        if self.ips:
            return api == UsageApi.CONNECT and _spelled(client_id) in self.ips
        # These rows have an address or a topic in place of the client id.
        return (not self.users or user in self.users) and (
            not self.client_ids or (client_id in self.client_ids and api not in _NO_CLIENT_ID)
        )

    def rows(self, rows: pa.RecordBatch | pa.Table) -> Any:
        """Which rows are the client's; rows have the columns user, client_id and api."""
        # Other writers store text as views.
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
        """Whether an entry of a plan's clients without a quota, such as ``produce of user=bob``, is the client."""
        found = _TOLD.fullmatch(text)
        api = text.partition(" of ")[0]
        return found is not None and self.is_row(
            found["user"] or "", found["ip"] or found["client_id"] or "", api
        )

    def is_in(self, text: bytes) -> bool:
        """Whether a text contains all given names, possibly as parts of other names."""
        given = [names for names in (self.users, self.client_ids, self.ips) if names]
        return all(any(form in text for name in names for form in _forms(name)) for names in given)

    def is_shown(self, page: bytes) -> bool:
        """Whether the text of a page names the client as plans do: ``user=bob,client-id=app``, ``ip=10.0.0.1``."""
        text = html.unescape(_MARKUP.sub(" ", page.decode("utf-8", "replace")))
        given = (("user", self.users), ("client-id", self.client_ids), ("ip", self.ips))
        return all(
            re.search(
                rf"\b{kind}=({'|'.join(re.escape(form.decode()) for form in _forms_of(names))}){_ENDS}", text
            )
            for kind, names in given
            if names
        )


def _forms_of(names: Iterable[str]) -> set[bytes]:
    return {form for name in names for form in _forms(name)}


def _forms(name: str) -> set[bytes]:
    """A name as it is written in JSON, HTML, plans and plain text."""
    escaped = (json.dumps(name)[1:-1], json.dumps(name, ensure_ascii=False)[1:-1])
    texts = {name, html.escape(name), format_name(name), *escaped}
    return {text.encode("utf-8", "surrogatepass") for text in texts}


def _is_in(column: Any, names: Iterable[str]) -> Any:
    return pc.is_in(column, pa.array(sorted(names), pa.string()))


def _spelled(text: str) -> str:
    """The canonical spelling of an address; any other text unchanged."""
    try:
        return address_spelling(text)
    except ValueError:
        return text
