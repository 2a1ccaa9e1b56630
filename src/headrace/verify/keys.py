"""Tables with changes by key: each key has one row, or one history whose rows do not overlap."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headrace.errors import first_line
from headrace.model.texts import counted
from headrace.verify.delta_log import TableLog
from headrace.verify.report import Judgement
from headrace.verify.stored import StoredPath, query

PROPERTY_KEYS = "headrace.keys"
PROPERTY_SCD_TYPE = "headrace.scd_type"
_START, _END = "__START_AT", "__END_AT"
_SHOWN = 3
_COUNT = "__headrace_rows"


def keys_of(log: TableLog) -> tuple[str, ...]:
    """The keys by which changes are applied to a table, as it writes them; empty if rows are appended."""
    declared = json.loads(log.metadata.properties.get(PROPERTY_KEYS, "[]"))
    columns = columns_of(log) if declared else {}
    names = {name.casefold(): name for name in columns}
    return tuple(names.get(key.casefold(), key) for key in declared)


def judge_keys(table: StoredPath, log: TableLog, found: Judgement) -> str | None:
    """Look for keys with several rows or with rows that overlap; returns why they cannot be read, if so."""
    if PROPERTY_KEYS not in log.metadata.properties:
        return None
    keys = keys_of(log)
    is_history = log.metadata.properties.get(PROPERTY_SCD_TYPE) == "2"
    try:
        find_twice(table, log, keys, found, is_history=is_history)
    except Exception as error:  # the engine raises no narrower class
        return f"the keys cannot be read: {first_line(error)}"
    return None


def find_twice(
    table: StoredPath, log: TableLog, keys: Sequence[str], found: Judgement, *, is_history: bool = False
) -> None:
    """Find the keys with several rows, or with rows that overlap in time."""
    listed = ", ".join(quoted(key) for key in keys)
    sql = _overlaps(listed, columns_of(log)[_START]) if is_history else _twice(listed)
    wrong = query(table.open_table(log.version), sql).to_pylist()
    code = "HISTORY_OVERLAPS" if is_history else "KEY_TWICE"
    for one in wrong[:_SHOWN]:
        key = "the key " + ", ".join(f"{name} = {one[name]}" for name in keys) if keys else "the aggregate"
        text = "rows that overlap or are empty" if is_history else counted(one[_COUNT], "row")
        found.find(code, f"{key} has {text}", version=log.version)
    if len(wrong) > _SHOWN:
        what = "rows that overlap or are empty" if is_history else "several rows"
        found.find(code, f"{len(wrong) - _SHOWN:,} more keys have {what}", version=log.version)


def _twice(keys: str) -> str:
    if not keys:
        return f"SELECT count(*) AS {_COUNT} FROM t HAVING count(*) > 1"
    return f"SELECT {keys}, count(*) AS {_COUNT} FROM t GROUP BY {keys} HAVING count(*) > 1"


def _overlaps(keys: str, sequence: Any) -> str:
    """The keys with rows that end after the next one starts, or that do not end after their own start."""
    start, end = _parts(quoted(_START), sequence), _parts(quoted(_END), sequence)
    numbered = range(len(start))
    columns = [f"{one} AS s{number}" for number, one in enumerate(start)]
    columns += [f"{one} AS e{number}" for number, one in enumerate(end)]
    order = ", ".join(f"s{number} NULLS FIRST" for number in numbered)
    window = f"OVER (PARTITION BY {keys} ORDER BY {order})"
    following = ", ".join(f"lead(s{number}) {window} AS n{number}" for number in numbered)
    ends, starts, nexts = ([f"{name}{number}" for number in numbered] for name in "esn")
    is_open = f"{quoted(_END)} IS NULL"
    is_wrong = (
        f"(following IS NOT NULL AND ({is_open} OR {_is_after(ends, nexts)})) "
        f"OR (NOT {is_open} AND NOT {_is_after(ends, starts)})"
    )
    return (
        f"WITH parts AS (SELECT {keys}, {quoted(_END)}, {', '.join(columns)} FROM t), "
        f"pairs AS (SELECT *, {following}, lead(1) {window} AS following FROM parts) "
        f"SELECT {keys}, count(*) AS {_COUNT} FROM pairs WHERE {is_wrong} GROUP BY {keys}"
    )


def _parts(column: str, kind: Any) -> list[str]:
    """The fields by which values of a type are compared; the column itself if it is no struct."""
    if not isinstance(kind, dict) or kind.get("type") != "struct":
        return [column]
    names = [(f"{column}['{one['name']}']", one["type"]) for one in kind["fields"]]
    return [part for name, inner in names for part in _parts(name, inner)]


def _is_after(first: Sequence[str], second: Sequence[str]) -> str:
    """Whether the first value is greater; NULL is less than all others, as in Spark."""
    text = "false"
    for one, other in zip(reversed(first), reversed(second), strict=True):
        greater = f"coalesce({one} > {other}, {one} IS NOT NULL AND {other} IS NULL)"
        text = f"({greater} OR (({one} IS NOT DISTINCT FROM {other}) AND {text}))"
    return text


def columns_of(log: TableLog) -> dict[str, Any]:
    return {one["name"]: one["type"] for one in json.loads(log.metadata.schema)["fields"]}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
