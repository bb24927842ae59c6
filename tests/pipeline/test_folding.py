"""Many clients as one entity: what it required is computed from the sum of its seconds, not from sums of peaks."""

import datetime
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.client_tables.rows import SCHEMA, client_rows
from pipeline.storage.entity_days import ENTITY
from pipeline.teams.folding import READ, folded, naming_of, with_no_quota
from pipeline.teams.members import Entities, Members
from quotas.groups import Group
from quotas.groups_file import Team
from testkit.pipeline.compacted_days import DAY, compacted_rows

MEMBERS = Members(
    (
        Team(Group("orders", users=("orders",), client_ids=("orders-*",))),
        Team(Group("search", client_ids=("search-*", "search-index-*"))),
    )
)
COLUMNS = [*ENTITY, *(name for names in READ.values() for name in names)]


def required(
    rows: list[dict[str, Any]], entities: Entities | None = None, parts: int = 1
) -> dict[tuple[str, ...], Any]:
    """Units, the highest second and the required rates, by user, client id, API and gateway."""
    batch = compacted_rows(rows)
    found = [batch]
    if entities is not None:
        naming = naming_of(entities, MEMBERS)
        batches = [batch.slice(at, 3).select(COLUMNS) for at in range(0, batch.num_rows, 3)]
        some = [folded(batches, naming, part=part, parts=parts) for part in range(parts)]
        found = [each for one in some if one is not None for each in with_no_quota(one)]
    table = pa.Table.from_batches(client_rows(iter(found)), schema=SCHEMA)
    days = table.filter(pc.equal(table.column("table"), "client_day")).to_pylist()
    return {
        (row["user"], row["client_id"], row["api"], row["gw"]): (
            row["units"],
            row["peak_1s"],
            row["active_s"],
            row["required_10s"],
            row["required_11s"],
        )
        for row in days
    }


def load_of(seed: int, clients: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Rows of these clients on two gateways, with bursts at times of their own."""
    chance = random.Random(seed)
    rows = []
    for user, client_id in clients:
        for gw in ("a", "b"):
            for api in ("produce", "fetch", "mutation"):
                times = sorted(chance.sample(range(86_400), 40))
                row: dict[str, Any] = {"user": user, "client_id": client_id, "gw": gw, "api": api, "t": times}
                row["offered"] = [float(chance.randrange(1, 10**6)) for _ in times]
                if api == "mutation":
                    row |= {
                        "e_ms": [1_000 * at + 5 for at in times],
                        "e_units": [chance.randrange(1, 9) for _ in times],
                    }
                rows.append(row)
    chance.shuffle(rows)
    return rows


def renamed(rows: list[dict[str, Any]], names: dict[tuple[str, str], tuple[str, str]]) -> list[dict[str, Any]]:
    """The same rows as one client would have written them: each counter's seconds added up by hand."""
    sums: dict[tuple[str, ...], dict[str, dict[int, float]]] = {}
    for row in rows:
        name = names.get((row["user"], row["client_id"]))
        if name is None:
            continue
        place = (*name, row["gw"], row["api"])
        seconds = sums.setdefault(place, {"t": {}, "e": {}})
        for at, units in zip(row["t"], row["offered"], strict=True):
            seconds["t"][at] = seconds["t"].get(at, 0.0) + units
        for at, units in zip(row.get("e_ms", ()), row.get("e_units", ()), strict=True):
            seconds["e"][at] = seconds["e"].get(at, 0) + units
    return [
        {
            "user": user,
            "client_id": client_id,
            "gw": gw,
            "api": api,
            "t": sorted(each["t"]),
            "offered": [each["t"][at] for at in sorted(each["t"])],
            "e_ms": sorted(each["e"]),
            "e_units": [each["e"][at] for at in sorted(each["e"])],
        }
        for (user, client_id, gw, api), each in sums.items()
    ]


CLIENTS = [("orders", ""), ("ann", "orders-1"), ("ann", "orders-2"), ("bob", "search-index-3"), ("bob", "search-4"),
           ("eve", "tool")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("entities", "names"),
    [
        (Entities.TEAM, [("orders", ""), ("orders", ""), ("orders", ""), ("search", ""), ("search", ""), None]),
        (Entities.USER, [("orders", ""), ("ann", ""), ("ann", ""), ("bob", ""), ("bob", ""), ("eve", "")]),
        (Entities.CLIENT_ID, [None, *(("", client_id) for _, client_id in CLIENTS[1:])]),
        (Entities.PREFIX, [("orders", ""), ("ann", "orders-*"), ("ann", "orders-*"), ("bob", "search-index-*"),
                           ("bob", "search-*"), ("eve", "tool")]),
    ],
)  # fmt: skip
def test_an_entity_requires_what_one_client_with_the_sum_of_all_seconds_would(
    entities: Entities, names: list[tuple[str, str] | None], seed: int, parts: int
) -> None:
    rows = load_of(seed, CLIENTS)
    by_client = {client: name for client, name in zip(CLIENTS, names, strict=True) if name is not None}

    found = required(rows, entities, parts)

    expected = required(renamed(rows, by_client))
    assert found.keys() == expected.keys()
    for place, values in found.items():
        for value, wanted in zip(values, expected[place], strict=True):
            if wanted is not None:
                np.testing.assert_allclose(value, wanted, rtol=1e-12)


def test_a_team_whose_members_take_turns_needs_what_one_of_them_needs() -> None:
    rows = [
        {
            "client_id": f"orders-{at}",
            "api": "produce",
            "t": list(range(1_000 * at, 1_000 * at + 100)),
            "offered": [1e6] * 100,
        }
        for at in range(8)
    ]
    each = [found[3][0] for found in required(rows).values()]

    ((units, peak, active, (together, *_), _),) = required(rows, Entities.TEAM).values()

    assert (units, peak, active) == (8e8, 1e6, 800)
    assert sum(each) == pytest.approx(8 * together, rel=1e-3)


def test_connections_and_clients_beyond_the_cap_belong_to_no_entity() -> None:
    rows = [
        {"user": "orders", "client_id": "~other", "api": "produce", "t": [1]},
        {"user": "", "client_id": "10.0.0.1", "api": "connect", "t": [1]},
    ]
    for entities in (Entities.USER, Entities.CLIENT_ID, Entities.PREFIX, Entities.TEAM):
        assert required(rows, entities) == {}


def test_days_and_gateways_stay_apart() -> None:
    rows = [
        {"client_id": "orders-1", "api": "produce", "gw": gw, "date": date, "t": [5], "offered": [2.0]}
        for gw in ("a", "b")
        for date in (DAY, DAY + datetime.timedelta(days=1))
    ]
    batch = compacted_rows(rows).select(COLUMNS)

    found = folded([batch], naming_of(Entities.TEAM, MEMBERS))

    assert found is not None
    assert (
        found.select(["date", "gw"]).to_pylist()
        == compacted_rows(sorted(rows, key=lambda row: (row["date"], row["gw"]))).select(["date", "gw"]).to_pylist()
    )
