"""Makes SQL statements for views of compacted days, for DuckDB and Spark. Does not run them.

Both engines read the files of the newest version by name, so neither needs an extension for Delta tables. Only
`usage_seconds` and the names of files differ by engine; the other views have the same text.

SQL does not decide to which team a client belongs; `pipeline.teams.members` does. So the sums of a team equal those
of ``sluice-pipeline cost``, to the byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, TypeAlias

from pipeline.errors import NotYetCompleteError
from pipeline.report.report import absent_days
from pipeline.storage.compacted_days import compacted_days, compacted_table
from pipeline.storage.compacted_files import pieces_of, read_pieces
from pipeline.storage.coverage import Expectation
from pipeline.storage.files import is_local, local_path
from pipeline.storage.losses import with_losses
from pipeline.teams.members import NO_TEAM, UNASSIGNED, Members
from quotas.usage_record import STORED, UsageApi

Row: TypeAlias = tuple[str | bool | float, ...]


class Engine(StrEnum):
    """The engine that runs the statements."""

    DUCKDB = "duckdb"
    SPARK = "spark"


_SUMS: Final = {
    **dict.fromkeys(("requests", "bytes_in", "bytes_out"), "BIGINT"),
    **dict.fromkeys(("offered", "admitted"), "DOUBLE"),
    **dict.fromkeys(("delayed", "rejected", "throttle_ms"), "BIGINT"),
}
"""Columns that are added over seconds, and the types of their sums."""
_ARRAYS: Final = ("t", *_SUMS)
_SECONDS: Final = {
    Engine.DUCKDB: 'AS SELECT date, "user" AS user_name, client_id, api, '
    + ", ".join(f"unnest({name}) AS {name}" for name in _ARRAYS),
    Engine.SPARK: f"AS SELECT date, `user` AS user_name, client_id, api, inline(arrays_zip({', '.join(_ARRAYS)}))",
}
_BY_HOUR: Final = f"""AS
SELECT date, CAST(floor(t / 3600) AS INT) AS hour, user_name, client_id, api,
  {", ".join(f"CAST(SUM({name}) AS {kind}) AS {name}" for name, kind in _SUMS.items())},
  CAST(SUM(CASE WHEN api = '{UsageApi.REQUEST}' THEN round(admitted * 1000) ELSE 0 END) AS BIGINT) AS request_us
FROM usage_seconds
GROUP BY date, CAST(floor(t / 3600) AS INT), user_name, client_id, api"""
_BY_DAY: Final = f"""AS
SELECT date, user_name, client_id, api,
  {", ".join(f"CAST(SUM({name}) AS {kind}) AS {name}" for name, kind in [*_SUMS.items(), ("request_us", "BIGINT")])}
FROM usage_by_hour
GROUP BY date, user_name, client_id, api"""

_TRAFFIC: Final = f"api IN ('{UsageApi.PRODUCE}', '{UsageApi.FETCH}')"
_OF_TEAM: Final = {
    **{
        name: f"CASE WHEN {_TRAFFIC} THEN {name} ELSE 0 END" for name in ("bytes_in", "bytes_out", "requests")
    },
    "request_us": "request_us",
    "mutations": f"CASE WHEN api = '{UsageApi.MUTATION}' THEN admitted ELSE 0 END",
    "connections": f"CASE WHEN api = '{UsageApi.CONNECT}' THEN admitted ELSE 0 END",
    "throttle_ms": "throttle_ms",
}
"""The amounts that count for a team, as in `pipeline.teams.use`."""
_BY_TEAM: Final = f"""AS
SELECT coalesce(m.team, '{NO_TEAM}') AS team, max(o.owner) AS owner, max(o.cost_center) AS cost_center, date,
  {", ".join(f"CAST(SUM({what}) AS BIGINT) AS {name}" for name, what in _OF_TEAM.items())}
FROM usage_by_day AS u
LEFT JOIN team_clients AS m ON m.member_user = u.user_name AND m.member_client_id = u.client_id
  AND m.by_address = (u.api = '{UsageApi.CONNECT}')
LEFT JOIN teams AS o ON o.name = m.team
GROUP BY coalesce(m.team, '{NO_TEAM}'), date"""


def statements(
    out: str,
    engine: Engine,
    expectation: Expectation,
    members: Members | None = None,
    first: str | None = None,
    last: str | None = None,
) -> list[str]:
    """Statements that create the views, in order and without semicolons.

    Args:
        out: the pipeline's folder.
        engine: the engine.
        expectation: the gateways and the time that are expected.
        members: the teams; None: no views of teams.
        first, last: the first and the last day to include.

    Raises:
        NotYetCompleteError: no day is compacted, or none has rows.
    """
    days = with_losses(compacted_days(out, first, last), out, expectation)
    table = compacted_table(out)
    found = table.in_order()
    files = [file for day in days for file in found.of(date=day.date)]
    if not files:
        raise NotYetCompleteError("no client has used anything on these days")
    completeness: list[Row] = [(day.date, day.completeness, day.open) for day in days]
    completeness += [(date, 0.0, False) for date in absent_days(days, first, last)]
    views = {
        "compacted": _files(table.folder, [file.path for file in files], engine),
        "usage_seconds": f"{_SECONDS[engine]} FROM compacted WHERE api <> '{STORED}'",
        "usage_by_hour": _BY_HOUR,
        "usage_by_day": _BY_DAY,
        "completeness": "AS SELECT CAST(day AS DATE) AS date, complete AS completeness, is_open "
        f"FROM {_values(sorted(completeness), 'day, complete, is_open', engine)}",
    }
    if members is not None:
        teams: list[Row] = [
            (each.group.name, each.owner, each.cost_center) for each in members.teams.values()
        ]
        # No group has the name "", so this row matches no client. It is there because a table needs at least one row.
        clients: list[Row] = [("", "", False, UNASSIGNED), *_clients(table.paths(files), members)]
        rows = _values([(UNASSIGNED, "", ""), *teams], "name, owner, cost_center", engine)
        named = _values(clients, "member_user, member_client_id, by_address, team", engine)
        views |= {
            "teams": f"AS SELECT * FROM {rows} WHERE name <> ''",
            "team_clients": f"AS SELECT * FROM {named} WHERE team <> ''",
            "usage_by_team": _BY_TEAM,
        }
    return [f"CREATE OR REPLACE TEMPORARY VIEW {name} {text}" for name, text in views.items()]


def _clients(paths: Sequence[str], members: Members) -> list[Row]:
    """Clients in the records that belong to a team: user, client id, whether that is an address, team."""
    found: set[tuple[str, str, str]] = set()
    names = ("user", "client_id", "api")
    for batch in read_pieces(sorted(pieces_of(paths)), names):
        found |= set(zip(*(batch.column(name).to_pylist() for name in names), strict=True))
    rows = {
        (user, client_id, api == UsageApi.CONNECT, members.team_of(user, client_id, api))
        for user, client_id, api in found
        if api != STORED
    }
    return sorted(row for row in rows if row[-1] != UNASSIGNED)


def _files(folder: str, files: Sequence[str], engine: Engine) -> str:
    """A table of Parquet files. Pattern characters in the folder's name are escaped."""
    if is_local(folder):
        folder = str(local_path(folder).absolute())
    if engine is Engine.DUCKDB:
        folder = re.sub(r"[*?\[]", r"[\g<0>]", folder)
        listed = ",\n  ".join(_text(f"{folder}/{file}", engine) for file in files)
        return f"AS SELECT * FROM read_parquet([\n  {listed}\n], union_by_name = true, hive_partitioning = false)"
    pattern = re.sub(r"[*?\[\]{}]", r"\\\g<0>", folder) + f"/{{{','.join(files)}}}"
    return f"USING parquet OPTIONS (path {_text(pattern, engine)})"


def _values(rows: Sequence[Row], names: str, engine: Engine) -> str:
    """A table of values."""
    shown = ",\n  ".join(f"({', '.join(_literal(each, engine) for each in row)})" for row in rows)
    return f"(VALUES\n  {shown}\n) AS v({names})"


def _literal(value: str | bool | float, engine: Engine) -> str:
    if isinstance(value, str):
        return _text(value, engine)
    return str(value).upper() if isinstance(value, bool) else f"CAST({value!r} AS DOUBLE)"


def _text(text: str, engine: Engine) -> str:
    """A text as a literal. Clients choose their names, so they may have any character."""
    # Spark replaces ${...} by values of its own, even within a text.
    if not text.isprintable() or "${" in text:
        code = text.encode().hex()
        return f"decode(unhex('{code}'))" if engine is Engine.DUCKDB else f"CAST(X'{code}' AS STRING)"
    quote = "''"
    if engine is Engine.SPARK:
        text, quote = text.replace("\\", "\\\\"), "\\'"
    return "'" + text.replace("'", quote) + "'"
