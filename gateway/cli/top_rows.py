"""The content of ``sluice top``, built from /status.json; `gateway.cli.top_screen` shows it.

Clients choose their names. Characters that a terminal would act on or reorder are escaped.
"""

from __future__ import annotations

import json
import unicodedata
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gateway.cli import admin_port
from gateway.cli.why import path_of
from quotas.entities import OTHER_CLIENTS, client_name, counted, counter_name

MAX_ROWS: Final = 200
"""The most rows of the table; a search finds the others."""

NEAR: Final = 0.8
_TIMEOUT_S: Final = 5.0
_MOST_LISTENERS: Final = 5
_MOST_WAITING: Final = 100
"""A snapshot has no more throttled clients."""

QUOTAS: Final = ("produce", "fetch", "request", "controller_mutation")
_MODES: Final = {"enforce": "quotas enforced", "observe": "quotas observed only", "off": "quotas off"}

_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})
_SCALES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_LEAST_NAME: Final = 16
_MOST_NAME: Final = 40
_MOST_NOTICE: Final = 300
_MOST_EPISODES: Final = 5
_MOST_USERS: Final = 10
_GAP: Final = 2
"""Spaces beside each column."""

_SCROLL_BAR: Final = 2


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        name: the sort key of rows, see `Client.sort_key`.
        title: the title in the header.
        width: in characters; 0: the rest of the width.
        from_columns: the narrowest terminal that shows the column.
    """

    name: str
    title: str
    width: int
    from_columns: int


COLUMNS: Final = (
    Column("name", "CLIENT", 0, 0),
    Column("waits", "THROTTLED", 11, 0),
    Column("used", "USED", 6, 0),
    Column("produce", "PRODUCE B/s", 13, 0),
    Column("fetch", "FETCH B/s", 13, 0),
    Column("throttled", "THROTTLES", 11, 100),
    Column("request", "REQUEST %", 13, 116),
    Column("controller_mutation", "MUTATIONS /s", 14, 140),
)
SORTED_BY: Final = tuple(column.name for column in COLUMNS)
FIRST_SORTED_BY: Final = "waits"


def columns_of(width: int, by: str) -> list[Column]:
    """The columns for a terminal of this width, with their widths. The sorted column is always shown."""
    found = [column for column in COLUMNS if width >= column.from_columns]
    if all(column.name != by for column in found):
        found[-1] = next(column for column in COLUMNS if column.name == by)
    left = width - sum(column.width + _GAP for column in found) - _SCROLL_BAR
    return [column._replace(width=max(_LEAST_NAME, left)) if not column.width else column for column in found]


def title_of(column: Column, by: str, *, reverse: bool) -> str:
    """The header; the sorted column's has an arrow."""
    if column.name != by:
        return column.title
    return f"{column.title} {'▲' if (by == 'name') is not reverse else '▼'}"


def snapshot_of(url: str) -> Snapshot:
    """The current state of a gateway.

    Raises:
        admin_port.AdminPortError: the gateway can't be reached.
    """
    return admin_port.read(
        url,
        "/status.json",
        Snapshot.of,
        what="its status",
        timeout_s=_TIMEOUT_S,
    )


def why_of(url: str, client: Client) -> dict[str, Any]:
    """The journal's entries of the clients of a counter.

    Raises:
        admin_port.AdminPortError: the gateway can't be reached.
    """
    path = (
        path_of(None, None, client.ip)
        if client.ip
        else path_of(client.user, client.client_id) + "&of=counter"
    )
    return admin_port.read(url, path, lambda answer: {**answer}, what="why")


@dataclass(frozen=True, slots=True)
class Use:
    """The use of one quota by a counter."""

    rate: float | None
    limit: float | None
    used: float | None


@dataclass(frozen=True, slots=True)
class Client:
    """One row: clients that are counted together, or an address whose connections are throttled.

    Attributes:
        name: see `client_name`.
        user, client_id: empty for all.
        ip: the address; empty for a counter.
        other: it is the row of all clients without a row of their own.
        uses: uses by quota.
        used: the use nearest to its limit.
        throttled, refused: requests and topics so far.
        waits_ms: how long one of the clients is still throttled; 0: none is.
    """

    name: str
    user: str
    client_id: str
    ip: str
    broker: str
    other: bool
    uses: Mapping[str, Use]
    used: float | None
    throttled: int
    refused: int
    waits_ms: int

    @property
    def key(self) -> str:
        """The row's identity, from snapshot to snapshot."""
        return repr((self.user, self.client_id, self.ip, self.broker, self.other))

    def has(self, wanted: str) -> bool:
        """Whether the name contains a text in lower case. A text with ``=`` is searched in the whole name."""
        if "=" in wanted:
            return wanted in self.name.lower()
        return wanted in f"{self.user}\n{self.client_id}\n{self.ip}".lower()

    def sort_key(self, by: str) -> tuple[float, float]:
        """The key for sorting, with the largest first."""
        value: float | None
        if by in QUOTAS:
            value = self.uses[by].rate if by in self.uses else None
        else:
            value = {"used": self.used, "throttled": self.throttled, "waits": self.waits_ms}[by]
        return (-1.0 if value is None else value, -1.0 if self.used is None else self.used)

    def cell(self, column: Column) -> str:
        """The row's text in a column."""
        name = column.name
        if name == "name":
            broker = f" broker {shown(self.broker)}" if self.broker else ""
            return shown(self.name, column.width - len(broker)) + broker
        if name == "waits":
            return f"{self.waits_ms / 1000:.1f} s" if self.waits_ms else ""
        if name == "used":
            return "" if self.used is None else f"{self.used:.0%}"
        if name == "throttled":
            return number(self.throttled) + (f" +{number(self.refused)} r" if self.refused else "")
        use = self.uses.get(name)
        if use is None or use.rate is None:
            return ""
        return number(use.rate) + (f" / {number(use.limit)}" if use.limit is not None else "")


class Counters(NamedTuple):
    """A gateway's counts since its start.

    Attributes:
        at_ms, started_ms: wall time.
        received, sent: bytes from clients, and to them.
        throttled: requests.
    """

    at_ms: int
    started_ms: int
    received: float
    sent: float
    throttled: float


class Trend:
    """Rates of the last snapshots, the latest last."""

    LONGEST_S: Final = 60.0
    KEPT: Final = 60

    def __init__(self) -> None:
        """Starts without rates."""
        self._before: Counters | None = None
        self._rates: tuple[deque[float | None], ...] = tuple(deque(maxlen=self.KEPT) for _ in range(3))

    def add(self, now: Counters) -> None:
        """Add the counters of a snapshot. There is no rate after a restart, or after too long a time."""
        before, self._before = self._before, now
        if before is None or before.at_ms == now.at_ms:
            return
        passed_s = (now.at_ms - before.at_ms) / 1000
        usable = before.started_ms == now.started_ms and 0 < passed_s <= self.LONGEST_S
        for rates, then, value in zip(self._rates, before[2:], now[2:], strict=True):
            rates.append((value - then) / passed_s if usable and value >= then else None)

    def line(self, width: int) -> str:
        """The current rates, each with its curve, for a terminal of this width."""
        each = max(4, min(40, (width - 58) // 3))
        texts = []
        for name, unit, rates in zip(
            ("in", "out", "throttled"), ("B/s", "B/s", "/s"), self._rates, strict=True
        ):
            value = f"{number(rates[-1])}{unit}" if rates and rates[-1] is not None else "-"
            texts.append(f"{name} {value:<8} {curve(list(rates)[-each:])}")
        return "  ".join(texts)


def curve(rates: Sequence[float | None]) -> str:
    """A block for each rate, scaled to the highest one; a space for no rate."""
    peak = max((rate for rate in rates if rate is not None), default=0.0) or 1.0
    last = len(_BLOCKS) - 1
    return "".join(" " if rate is None else _BLOCKS[round(last * rate / peak)] for rate in rates)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a gateway.

    Attributes:
        head: lines about the whole gateway.
        clients: the rows.
        summed: these are only the busiest clients, and there are others.
        members: lines about shares of a capacity, members of the fleet and workers.
        counters: for the trend.
    """

    head: list[str]
    clients: list[Client]
    summed: bool
    members: list[str]
    counters: Counters

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Snapshot:
        """The state in a response of the admin port."""
        waits: dict[tuple[str, str, str], int] = {}
        for wait in answer["waiting"]:
            counter = (
                ("", "", wait["ip"])
                if wait["ip"]
                else (wait["counter"]["user"], wait["counter"]["client_id"], "")
            )
            left_ms = max(1, int(wait["until_ms"] - answer["at_ms"]))
            waits[counter] = max(waits.get(counter, 0), left_ms)
        more = " or more" if len(answer["waiting"]) >= _MOST_WAITING else ""
        throttled = f"{len(waits)}{more} {'client' if len(waits) == 1 else 'clients'}"
        rate = {name: at for at, name in enumerate(answer["rate_fields"])}
        mutation = {name: at for at, name in enumerate(answer["mutation_fields"])}
        clients = [_client(each, rate, mutation, waits) for each in answer["clients"]]
        # A throttled client that is silent may have no row among the busiest.
        rows = {(each.user, each.client_id, "") for each in clients if not each.other}
        clients += [_throttled(*key, left_ms) for key, left_ms in waits.items() if key not in rows]
        member = answer["members"][0]
        divided = answer.get("capacity", {})  # an earlier version has no capacities
        head = [*_head(answer, throttled), *_capacity(divided), *_notices(answer)]
        summed = answer["client_count"] > len(answer["clients"]) or any(each.other for each in clients)
        return cls(
            head,
            clients,
            summed,
            [*_shares(divided), *_tiers(answer), *_episodes(answer), *_users(member), *_members(member)],
            _counters(answer),
        )

    def rows(self, *, by: str, reverse: bool = False, wanted: str = "") -> list[Client]:
        """The clients whose name contains a text, sorted."""
        wanted = wanted.lower()
        found = sorted((each for each in self.clients if each.has(wanted)), key=lambda each: each.name)
        if by == "name":
            return found[::-1] if reverse else found
        return sorted(found, key=lambda each: each.sort_key(by), reverse=not reverse)


def _throttled(user: str, client_id: str, ip: str, left_ms: int) -> Client:
    name = client_name(ip=ip) if ip else counter_name(user, client_id)
    return Client(name, user, client_id, ip, "", False, {}, None, 0, 0, left_ms)


def _client(
    told: Mapping[str, Any],
    rate: Mapping[str, int],
    mutation: Mapping[str, int],
    waits: Mapping[tuple[str, str, str], int],
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
    user, client_id, other = str(told["user"]), str(told["client_id"]), bool(told.get("other"))
    return Client(
        OTHER_CLIENTS if other else counter_name(user, client_id),
        user,
        client_id,
        "",
        str(told.get("broker", "")),
        other,
        uses,
        max(found, default=None),
        throttled,
        refused,
        0 if other else waits.get((user, client_id, ""), 0),
    )


def _total(answer: Mapping[str, Any], name: str, **labels: str) -> float:
    samples = answer["series"].get(name, ())
    return float(sum(value for has, value in samples if labels.items() <= has.items()))


def _counters(answer: Mapping[str, Any]) -> Counters:
    return Counters(
        answer["at_ms"],
        answer["members"][0]["started_ms"],
        _total(answer, "gateway_received_bytes_total", side="client"),
        _total(answer, "gateway_received_bytes_total", side="upstream"),
        _total(answer, "gateway_throttled_requests_total"),
    )


def _head(answer: Mapping[str, Any], throttled: str) -> list[str]:
    member, series = answer["members"][0], answer["series"]
    buckets = {has["le"]: value for has, value in series.get("gateway_event_loop_stall_seconds_bucket", ())}
    delays = buckets.get("+Inf", 0) - buckets.get("0.02", 0)
    ready = shown(f"not ready: {member['not_ready']}", 200) if member["not_ready"] else "ready"
    mode = _MODES.get(member["enforcement"], shown(member["enforcement"]))
    active = series["gateway_connections_active"]
    listeners = [f"{shown(has['listener'])} {number(value)}" for has, value in active[:_MOST_LISTENERS]]
    if len(active) > _MOST_LISTENERS:
        listeners.append(f"and {len(active) - _MOST_LISTENERS} more listeners")
    paused = number(_total(answer, "gateway_channels_muted", reason="throttled"))
    return [
        f"{shown(member['name'])}  {ready}  {mode}  version {shown(member['version'])}",
        f"throttled now: {throttled}  connections: {', '.join(listeners)} ({paused} paused by quotas)",
        f"since start: {number(_total(answer, 'gateway_throttled_requests_total'))} requests throttled, "
        f"{number(delays)} delays over 20 ms"
        + ("" if _total(answer, "gateway_quota_store_writable") else "  quota store: read-only"),
    ]


def _capacity(divided: Mapping[str, Any]) -> list[str]:
    """A line for each quota with a divided capacity."""
    return [
        f"capacity of {quota}: {number(each['guaranteed'] + each['lent'])} of {number(each['capacity'])} B/s used, "
        f"{number(each['guaranteed'])} of it guaranteed; {counted(each['waiting'], 'client')} at the limit"
        for quota, each in divided.items()
    ]


def _notices(answer: Mapping[str, Any]) -> list[str]:
    """A line for each brake, and one while brokers are slow."""
    overload = answer.get("overload") or {"text": ""}
    texts = [each["text"] for each in answer["members"][0].get("brakes", ())]
    return [shown(text, _MOST_NOTICE) for text in (*texts, overload["text"]) if text]


def _tiers(answer: Mapping[str, Any]) -> list[str]:
    """A line for each tier that has any use or loss of a capacity."""
    enforced = (answer.get("overload") or {"enforced": True})["enforced"]
    limits = (("brake", "brake leaves"), ("overload", f"slow brokers {'' if enforced else 'would '}leave"))
    lines = []
    for quota, each in answer.get("capacity", {}).items():
        for tier in each.get("tiers", ()):
            parts = ("used", "lent", "borrowed", "reclaimed", "shed")
            texts = [f"{part} {number(tier[part])}" for part in parts if tier[part]]
            texts += [f"{text} {number(tier[name])}" for name, text in limits if tier[name]]
            if texts:
                lines.append(f"tier {tier['tier']}, {quota} B/s: {', '.join(texts)}")
    return lines


def _episodes(answer: Mapping[str, Any]) -> list[str]:
    """A line for each of the last times in which a tier lost for slow brokers."""
    episodes = (answer.get("overload") or {"episodes": ()})["episodes"]
    return [each["text"] for each in episodes[:_MOST_EPISODES]]


def _shares(divided: Mapping[str, Any]) -> list[str]:
    """A line for each client with a share of a capacity."""
    lines = []
    for quota, each in divided.items():
        for share in each["shares"]:
            parts = ("guaranteed", "lent", "borrowed", "reclaimed")
            texts = [f"{part} {number(share[part])}" for part in parts if share[part]]
            lines.append(f"share of {shown(share['name'])}, {quota} B/s: {', '.join(texts) or 'not used'}")
    return lines


def _users(gateway: Mapping[str, Any]) -> list[str]:
    """A line for each user with many connections."""
    lines = []
    for each in gateway.get("users", ())[:_MOST_USERS]:
        most = "" if each["limit"] is None else f" of {number(each['limit'])}"
        waiting = f", {number(each['waiting'])} waiting" if each["waiting"] else ""
        lines.append(f"connections of {shown(each['name'])}: {number(each['connections'])}{most}{waiting}")
    return lines


def _members(gateway: Mapping[str, Any]) -> list[str]:
    """A line for each member of the fleet, then for each worker."""
    totals: dict[str, float] = {}
    for member in gateway["fleet"]:
        for quota, used in member["used"].items():
            totals[quota] = totals.get(quota, 0.0) + used
    lines = []
    for member in gateway["fleet"]:
        if member["this"]:
            state = f"this gateway, {'ISOLATED' if member['isolated'] else 'connected'}, lag {member['lag_s']:.2f} s"
        else:
            state = f"last message {member['age_s']:.1f} s ago"
        shares = ", ".join(
            f"{quota} {used / totals[quota]:.0%}"
            for quota, used in sorted(member["used"].items())
            if totals[quota]
        )
        lines.append(f"member {shown(member['member'])}: {state}; share of usage: {shares or 'none'}")
    lines += [
        f"worker {each['worker']}: connections {number(each['connections'])}, paused {number(each['muted'])}, "
        f"throttled requests {number(each['throttled'])}"
        for each in gateway["workers"]
    ]
    return lines or ["one gateway, one process"]


def shown(name: str, width: int = _MOST_NAME) -> str:
    """A name in a form that is safe for a terminal. A name that is too wide keeps its beginning and its end."""
    text = "".join(char if _is_plain(char) else json.dumps(char)[1:-1] for char in name)
    widths = [2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text]
    if sum(widths) <= width:
        return text
    first = _fitting(widths, (width - 1) // 2)
    last = _fitting(widths[::-1], width - 1 - sum(widths[:first]))
    return f"{text[:first]}…{text[len(text) - last :]}"


def _fitting(widths: Sequence[int], width: int) -> int:
    """How many columns of these widths fit."""
    for at, each in enumerate(widths):
        width -= each
        if width < 0:
            return at
    return len(widths)


def _is_plain(char: str) -> bool:
    """Whether a character takes one place of its own, after the one before it."""
    stacked = unicodedata.category(char).startswith("M")
    return char.isprintable() and not stacked and unicodedata.bidirectional(char) not in _RIGHT_TO_LEFT


def number(value: float | None) -> str:
    """A number with three digits, and a letter for powers of 1000."""
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) < 10_000:
        return str(int(value))
    for bound, letter in _SCALES:
        if abs(value) >= 0.9995 * bound:
            return f"{value / bound:#.3g}".rstrip(".") + letter
    return f"{value:.3g}"
