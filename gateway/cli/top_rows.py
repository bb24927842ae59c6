"""The rows of ``sluice top``, made from /status.json; `gateway.cli.top_screen` shows them.

Names are what clients choose: what a terminal would act on, or order otherwise than it came, is written as an escape.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.cli import admin_port
from gateway.cli.why import path_of

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
NEAR: Final = 0.8
_TIMEOUT_S: Final = 5.0
ALL: Final = "(all)"

QUOTAS: Final = {
    "produce": "PRODUCE B/s",
    "fetch": "FETCH B/s",
    "request": "REQUEST %",
    "controller_mutation": "MUTATIONS /s",
}
COLUMNS: Final = ("USER", "CLIENT-ID", *QUOTAS.values(), "USED", "THROTTLED", "WAITS")
SORTED_BY: Final = (*QUOTAS, "used", "throttled", "waits", "name")

_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})
_SCALES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_MAX_NAME: Final = 40


def snapshot_of(url: str) -> Snapshot:
    """The state of a gateway now.

    Raises:
        admin_port.AdminPortError: it can't be asked.
    """
    return admin_port.read(
        url,
        "/status.json",
        Snapshot.of,
        what="its status",
        max_bytes=MAX_ANSWER_BYTES,
        timeout_s=_TIMEOUT_S,
    )


def why_of(url: str, client: Client) -> dict[str, Any]:
    """What the journal has of the clients of a counter.

    Raises:
        admin_port.AdminPortError: it can't be asked.
    """
    path = path_of(client.user, client.client_id) + "&of=counter"
    return admin_port.read(url, path, lambda answer: {**answer}, what="why")


@dataclass(frozen=True, slots=True)
class Use:
    """What a counter says of one quota."""

    rate: float | None
    limit: float | None
    used: float | None


@dataclass(frozen=True, slots=True)
class Client:
    """One row: what is counted together.

    Attributes:
        user, client_id: empty for all of them.
        other: the row of all that have none of their own.
        uses: by quota.
        used: the nearest to its limit.
        throttled, refused: requests and topics so far.
        waits_ms: how long one of them is throttled from now on; 0: none is.
    """

    user: str
    client_id: str
    broker: str
    other: bool
    uses: Mapping[str, Use]
    used: float | None
    throttled: int
    refused: int
    waits_ms: int

    @property
    def key(self) -> str:
        """Of the row, from snapshot to snapshot."""
        return repr((self.user, self.client_id, self.broker, self.other))

    def sort_key(self, by: str) -> tuple[float, float]:
        """Largest first."""
        value: float | None
        if by in QUOTAS:
            value = self.uses[by].rate if by in self.uses else None
        elif by == "used" and self.waits_ms:
            # It is silent by now, and its rate falls.
            value = 1 + max(1.0, self.used or 0.0)
        else:
            value = {"used": self.used, "throttled": self.throttled, "waits": self.waits_ms}[by]
        return (-1.0 if value is None else value, self.throttled)

    def cells(self) -> list[str]:
        """As text, in the order of `COLUMNS`."""
        if self.other:
            names = ["(others)", ""]
        else:
            names = [shown(self.user) or ALL, shown(self.client_id) or ALL]
        if self.broker:
            names[1] += f" @{self.broker}"
        uses = []
        for quota in QUOTAS:
            use = self.uses.get(quota)
            if use is None or use.rate is None:
                uses.append("")
            else:
                uses.append(number(use.rate) + (f" / {number(use.limit)}" if use.limit is not None else ""))
        throttled = number(self.throttled) + (f" +{number(self.refused)} refused" if self.refused else "")
        used = "" if self.used is None else f"{self.used:.0%}"
        waits = f"{self.waits_ms / 1000:.1f} s" if self.waits_ms else ""
        return [*names, *uses, used, throttled, waits]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a gateway.

    Attributes:
        head: lines about all of it.
        clients: the rows.
        members: lines about members of the fleet and workers.
    """

    head: list[str]
    clients: list[Client]
    members: list[str]

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Snapshot:
        """Of an answer of the admin port."""
        waits: dict[tuple[str, str], int] = {}
        for wait in answer["waiting"]:
            counter = (wait["counter"]["user"], wait["counter"]["client_id"])
            left_ms = int(wait["until_ms"] - answer["at_ms"])
            waits[counter] = max(waits.get(counter, 0), left_ms)
        rate = {name: at for at, name in enumerate(answer["rate_fields"])}
        mutation = {name: at for at, name in enumerate(answer["mutation_fields"])}
        clients = [_client(each, rate, mutation, waits) for each in answer["clients"]]
        return cls(_head(answer, len(waits)), clients, _members(answer["members"][0]))

    def rows(self, *, by: str, reverse: bool = False, wanted: str = "") -> list[Client]:
        """Those whose name contains a text, in order."""
        wanted = wanted.lower()
        found = [each for each in self.clients if wanted in f"{each.user}\n{each.client_id}".lower()]
        if by == "name":
            return sorted(found, key=lambda each: (each.user, each.client_id), reverse=reverse)
        return sorted(found, key=lambda each: each.sort_key(by), reverse=not reverse)


def _client(
    told: Mapping[str, Any],
    rate: Mapping[str, int],
    mutation: Mapping[str, int],
    waits: Mapping[tuple[str, str], int],
) -> Client:
    uses: dict[str, Use] = {}
    throttled = refused = 0
    for quota in QUOTAS:
        cells = told.get(quota)
        if cells is None:
            continue
        at = mutation if quota == "controller_mutation" else rate
        value, limit = cells[at["rate"]], cells[at["limit"]]
        used = value / limit if value is not None and limit else None
        if at is mutation:
            refused = int(cells[at["refused"]])
            if cells[at["tokens"]] is not None and cells[at["tokens"]] < 0:
                used = max(used or 0.0, 1.01)
        uses[quota] = Use(value, limit, used)
        throttled += int(cells[at["throttled"]])
    found = [use.used for use in uses.values() if use.used is not None]
    user, client_id = str(told["user"]), str(told["client_id"])
    return Client(
        user,
        client_id,
        str(told.get("broker", "")),
        bool(told.get("other")),
        uses,
        max(found, default=None),
        throttled,
        refused,
        0 if told.get("other") else waits.get((user, client_id), 0),
    )


def _head(answer: Mapping[str, Any], waiting: int) -> list[str]:
    member, series = answer["members"][0], answer["series"]

    def total(name: str, **labels: str) -> float:
        return float(sum(value for has, value in series.get(name, ()) if labels.items() <= has.items()))

    buckets = {has["le"]: value for has, value in series.get("gateway_event_loop_stall_seconds_bucket", ())}
    stalls = buckets.get("+Inf", 0) - buckets.get("0.02", 0)
    ready = shown(f"not ready: {member['not_ready']}") if member["not_ready"] else "ready"
    listeners = [
        f"{shown(has['listener'])} {number(value)}" for has, value in series["gateway_connections_active"]
    ]
    return [
        f"{shown(member['name'])}  {ready}  quotas: {member['enforcement']}  version {shown(member['version'])}",
        f"connections: {', '.join(listeners)}  muted: "
        f"{number(total('gateway_channels_muted', reason='throttled'))}  waiting: {waiting}  since start: "
        f"throttled {number(total('gateway_throttled_requests_total'))}, loop blocked over 20 ms {number(stalls)}"
        + ("" if total("gateway_quota_store_writable") else "  quota store: read-only"),
    ]


def _members(gateway: Mapping[str, Any]) -> list[str]:
    """A line for each member of the fleet, then for each worker."""
    totals: dict[str, float] = {}
    for member in gateway["fleet"]:
        for quota, used in member["used"].items():
            totals[quota] = totals.get(quota, 0.0) + used
    lines = []
    for member in gateway["fleet"]:
        if member["this"]:
            touch = f"this gateway, {'ISOLATED' if member['isolated'] else 'in touch'}, lag {member['lag_s']:.2f} s"
        else:
            touch = f"last message {member['age_s']:.1f} s ago"
        shares = ", ".join(
            f"{quota} {used / totals[quota]:.0%}"
            for quota, used in sorted(member["used"].items())
            if totals[quota]
        )
        lines.append(f"member {shown(member['member'])}: {touch}; share of reported use: {shares or 'none'}")
    lines += [
        f"worker {each['worker']}: connections {number(each['connections'])}, muted {number(each['muted'])}, "
        f"throttled {number(each['throttled'])}"
        for each in gateway["workers"]
    ]
    return lines or ["one gateway, one process"]


def shown(name: str) -> str:
    """A name as a terminal may have it, cut to what fits into a column."""
    text = "".join(char if _is_plain(char) else f"\\u{{{ord(char):x}}}" for char in name)
    if text.startswith("("):
        # What stands in brackets is ours.
        text = f'"{text}"'
    width = 0
    for at, char in enumerate(text):
        width += 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if width > _MAX_NAME:
            return f"{text[: max(0, at - 1)]}…"
    return text


def _is_plain(char: str) -> bool:
    """Whether it stands in a place of its own, after what came before it."""
    stacked = unicodedata.category(char).startswith("M")
    return char.isprintable() and not stacked and unicodedata.bidirectional(char) not in _RIGHT_TO_LEFT


def number(value: float | None) -> str:
    """With three digits, and a letter for thousands."""
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) < 10_000:
        return str(int(value))
    for bound, letter in _SCALES:
        if abs(value) >= 0.9995 * bound:
            return f"{value / bound:#.3g}".rstrip(".") + letter
    return f"{value:.3g}"
