"""Endpoints to read and change quotas: a gateway's admin port, or any server with Kafka's AlterClientQuotas.

An admin port knows the owner of each quota. It makes all changes at once, if the values that a plan replaces are
still set. Kafka supports neither. There the quotas are compared again just before the change, validated, altered in
one request, and read once more. A gateway reads only a bounded number of changes in one request.

If an error occurs after a change was sent, the quotas are read again, because the change may have been made.
"""

from __future__ import annotations

import getpass
import hashlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from config import name_notes
from gateway.cli import admin_port
from gateway.cli.quota_plan import Current, Quota, Step
from gateway.cli.quota_view import MAX_ANSWER_BYTES
from gateway.quota_admin.store.quota_json import BROKER, entity_json, entity_of
from protocol.client_quota_messages import MAX_ENTRIES, MAX_PARTS
from quotas.entities import QuotaKey, counted
from quotas.layered_quotas import Owner
from quotas.units import amount_text

MAX_HISTORY: Final = 100_000
TIMEOUT_S: Final = 120.0
VERIFY_S: Final = 10.0
_POLL_S: Final = 0.1
_MOST_NOTES: Final = 100
_UNKNOWN: Final = "the change was sent, and it may have been made in part; run sluice quotas diff"


class EndpointError(Exception):
    """Quotas can't be read or changed.

    Attributes:
        lines: why, for people.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class ChangedMeanwhileError(Exception):
    """Another change has affected the quotas of a plan.

    Attributes:
        lines: the current values, and the outcome of the plan.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclass(frozen=True, slots=True)
class Source:
    """The file of a plan.

    Attributes:
        name: the file's name.
        sha256: the hash of its bytes.
    """

    name: str
    sha256: str

    @classmethod
    def of(cls, file: str, data: bytes) -> Source:
        """The source of a file with these bytes."""
        return cls("standard input" if file == "-" else Path(file).name, hashlib.sha256(data).hexdigest())


class Endpoint(Protocol):
    """See the module. All methods raise `EndpointError`."""

    def read(self) -> dict[Quota, Current]:
        """The current quotas that can be changed there."""

    def authors(self, quotas: Collection[Quota]) -> dict[Quota, str]:
        """Who changed these quotas last by other means than `apply`, if known."""

    def notes(self, quotas: Collection[Quota]) -> list[str]:
        """Why no client can match some of these, if known."""

    def apply(self, steps: Sequence[Step], source: Source) -> int | None:
        """Make all of these changes, or none.

        Returns:
            The version of the store that includes them; None: there is no version.

        Raises:
            ChangedMeanwhileError: a quota of the plan has changed.
        """


class GatewayEndpoint:
    """A running gateway, through its admin port."""

    def __init__(self, url: str) -> None:
        """Sends no request yet."""
        self._url = url
        self._owners: dict[Quota, Owner] = {}
        self._prefixes = self._logins = True

    def read(self) -> dict[Quota, Current]:
        """See `Endpoint`: the store's quotas. Those of the configuration file can only be changed there."""
        found = {}
        with self._ours():
            answer = self._read("/quotas")
            if "logins" not in answer and "quotas" in answer:
                # That version would not compare before it changes quotas.
                raise EndpointError(
                    [f"the gateway at {self._url} is of an earlier version; upgrade it first"]
                )
            for row in answer["quotas"]:
                if row["source"] == "store":
                    quota = entity_of(row["entity"]), QuotaKey(row["quota"])
                    found[quota] = Current(float(row["limit"]), Owner.of(row["owner"]))
            self._prefixes = bool(answer["client_ids"]["prefixes"])
            self._logins = bool(answer["logins"])
        self._owners = {quota: now.owner for quota, now in found.items() if now.owner is not None}
        return found

    def authors(self, quotas: Collection[Quota]) -> dict[Quota, str]:
        """See `Endpoint`."""
        wanted = {quota for quota in quotas if self._owners.get(quota) is not Owner.APPLY}
        if not wanted:
            return {}
        found: dict[Quota, str] = {}
        with self._ours():
            for entry in self._read(f"/quotas/history?limit={MAX_HISTORY}")["history"]:  # the last one first
                if [part["type"] for part in entry["entity"]] == [BROKER]:
                    continue
                quota = entity_of(entry["entity"]), QuotaKey(entry["quota"])
                if quota in wanted and quota not in found:
                    found[quota] = _author(entry)
        for quota, owner in self._owners.items():
            if quota in wanted and owner is not Owner.UNKNOWN:
                found.setdefault(quota, str(owner))
        return found

    def notes(self, quotas: Collection[Quota]) -> list[str]:
        """See `Endpoint`."""
        return [
            f"{entity}: {text}"
            for entity in dict.fromkeys(entity for entity, _ in quotas)
            for text in name_notes(
                entity.user, entity.client_id, prefixes=self._prefixes, logins=self._logins
            )
        ][:_MOST_NOTES]

    def apply(self, steps: Sequence[Step], source: Source) -> int | None:
        """See `Endpoint`."""
        rows = [
            {
                "entity": entity_json(step.quota[0]),
                "quota": step.quota[1].value,
                "limit": step.new,
                "expected": step.old,
            }
            for step in steps
        ]
        options = {"user": user_name(), "file": source.name, "sha256": source.sha256}
        status = 0
        try:
            with self._ours():
                status, answer = self._ask(f"/quotas/import?{urlencode(options)}", rows)
                if status == HTTPStatus.CONFLICT:
                    found = [
                        meanwhile_text(
                            (entity_of(each["entity"]), QuotaKey(each["quota"])),
                            each["expected"],
                            each["found"],
                        )
                        for each in answer.get("changed", [])
                    ]
                    # If there is no changed value, another change is being made at this moment.
                    raise ChangedMeanwhileError([*found, str(answer["error"])])
                if status != HTTPStatus.OK:
                    raise EndpointError(refusal_lines(answer))
                return int(answer["version"])
        except EndpointError as exc:
            if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            if self._has(steps):
                return None
            raise EndpointError([*exc.lines, _UNKNOWN]) from exc

    def _has(self, steps: Sequence[Step]) -> bool:
        """Whether all of these are in force after all."""
        try:
            found = self.read()
        except EndpointError:
            return False
        return all(
            found.get(step.quota) == (None if step.new is None else Current(step.new, Owner.APPLY))
            for step in steps
        )

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Turns missing values in a response into the error that it is not an admin port's."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise EndpointError(
                [f"the server at {self._url} is not a Sluice admin port that has quotas"]
            ) from exc

    def _read(self, path: str) -> Any:
        status, answer = self._ask(path)
        if status != HTTPStatus.OK:
            raise EndpointError([f"refused: {answer['error']}"])
        return answer

    def _ask(self, path: str, rows: list[dict[str, Any]] | None = None) -> tuple[int, Any]:
        try:
            return admin_port.ask(
                self._url,
                path,
                method="GET" if rows is None else "POST",
                lines=rows,
                max_bytes=MAX_ANSWER_BYTES,
                timeout_s=TIMEOUT_S,
            )
        except admin_port.AdminPortError as exc:
            raise EndpointError([str(exc)]) from exc


class KafkaEndpoint:
    """A cluster or a gateway, through Kafka's own APIs."""

    def __init__(self, bootstrap: str, client_config: Path | None) -> None:
        """Sends no request yet.

        Args:
            bootstrap: ``host:port,host:port``.
            client_config: a file with the settings of the connection; see `quota_client.properties`.
        """
        self._bootstrap = bootstrap
        self._client_config = client_config

    def read(self) -> dict[Quota, Current]:
        """See `Endpoint`."""
        from quota_client.client import QuotaClientError

        try:
            with self._connect() as client:
                return {quota: Current(limit) for quota, limit in client.describe().items()}
        except QuotaClientError as exc:
            raise EndpointError([str(exc)]) from exc

    def authors(self, quotas: Collection[Quota]) -> dict[Quota, str]:
        """See `Endpoint`. Kafka does not store authors."""
        del quotas
        return {}

    def notes(self, quotas: Collection[Quota]) -> list[str]:
        """See `Endpoint`."""
        del quotas
        return []

    def apply(self, steps: Sequence[Step], source: Source) -> int | None:
        """See `Endpoint`."""
        from quota_client.client import QuotaClientError, Setting

        del source  # Kafka cannot store it
        settings = [Setting(*step.quota, step.new) for step in steps]
        wanted = {step.quota: step.new for step in steps}
        sent = False
        try:
            with self._connect() as client:
                # A gateway would end the connection, and the outcome would not be known.
                if (fault := _beyond_one_request(steps)) and client.counting().cluster is False:
                    raise EndpointError([fault])
                compare(client.describe(), {step.quota: step.old for step in steps}, made=False)
                refusals = client.alter(settings, validate_only=True)
                if not refusals:
                    sent = True
                    refusals = client.alter(settings, validate_only=False, at_once=True)
                if refusals:
                    raise EndpointError(
                        [f"{each.entity}: error {each.code}: {each.text}" for each in refusals]
                        + [f"refused: not every change {'was' if sent else 'would be'} accepted"]
                    )
                _verify(client, wanted)
        except (QuotaClientError, EndpointError) as exc:
            lines = exc.lines if isinstance(exc, EndpointError) else [str(exc)]
            if not sent:
                raise EndpointError(lines) from exc
            if not self._has(wanted):
                raise EndpointError([*lines, _UNKNOWN]) from exc
        return None

    def _has(self, wanted: Mapping[Quota, float | None]) -> bool:
        """Whether all of these are in force after all."""
        from quota_client.client import QuotaClientError

        try:
            with self._connect() as client:
                _verify(client, wanted)
        except (QuotaClientError, ChangedMeanwhileError):
            return False
        return True

    def _connect(self) -> Any:
        # Imported here so that kafka-python is loaded only if it is used.
        from quota_client.client import QuotaClient
        from quota_client.properties import read_properties

        return QuotaClient(
            self._bootstrap, {"client_id": "sluice-quotas"} | read_properties(self._client_config)
        )


def _beyond_one_request(steps: Sequence[Step]) -> str | None:
    """Why a gateway would not read these in one request; None: it would."""
    entities = {step.quota[0] for step in steps}
    parts = len(steps) + sum(len(list(entity.components())) for entity in entities)
    if len(entities) <= MAX_ENTRIES and parts <= MAX_PARTS:
        return None
    return (
        f"refused: {len(entities):,} entities, with {parts:,} names and quotas, are too many for one request to a "
        f"gateway, which takes {MAX_ENTRIES:,} and {MAX_PARTS:,}; use --admin, or apply them in several parts"
    )


def _verify(client: Any, expected: Mapping[Quota, float | None]) -> None:
    """Wait until a broker, which follows the controller, has the new values."""
    deadline = time.monotonic() + VERIFY_S
    while True:
        try:
            compare(client.describe(), expected, made=True)
        except ChangedMeanwhileError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return


def compare(found: Mapping[Quota, float], expected: Mapping[Quota, float | None], *, made: bool) -> None:
    """Check that quotas have the expected values.

    Raises:
        ChangedMeanwhileError: they have other values.
    """
    wrong = [
        meanwhile_text(quota, limit, found.get(quota))
        for quota, limit in expected.items()
        if found.get(quota) != limit
    ]
    if wrong:
        when = "right after the plan was carried out" if made else "meanwhile, so nothing was changed"
        raise ChangedMeanwhileError([*wrong, f"{counted(len(wrong), 'quota')} changed {when}"])


def meanwhile_text(quota: Quota, expected: float | None, found: float | None) -> str:
    """The text about a quota that has changed since the plan was made."""
    entity, key = quota
    before, now = (
        "nothing" if limit is None else amount_text(key, float(limit)) for limit in (expected, found)
    )
    return f"{entity} {key} was {before}, and is {now} now"


def refusal_lines(answer: Mapping[str, Any]) -> list[str]:
    """Why an admin port has refused, a line for each fault."""
    faults = [str(each) for each in answer.get("faults", [])]
    more = int(answer.get("fault_count", 0)) - len(faults)
    return [*faults, *([f"and {more} more"] if more > 0 else []), f"refused: {answer['error']}"]


def user_name() -> str:
    """The user of this process, for the history of changes."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _author(entry: Mapping[str, Any]) -> str:
    """The author of a change in the history, with origin and time."""
    at = datetime.fromtimestamp(entry["at_ms"] / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    # Through the admin port, `via` begins with `by` and ends with the author.
    by = "" if entry["via"].startswith(entry["by"]) else f"{entry['by']}, "
    return _printable(f"{by}{entry['via']}, {at}")


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
