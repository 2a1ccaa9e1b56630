"""Rows of a table, read by delta-rs and DataFusion: no Spark, no JVM."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.errors import (
    HeadraceError,
    ReadColumnUnknownError,
    ReadConditionInvalidError,
    TableUnknownError,
    TableUnreadableError,
)
from headrace.model.names import Storage, TableName

_UNKNOWN_FIELD = re.compile(r"No field named \"?([^\s\".]+(?:\.[^\s\".]+)*)\"?\.")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of one version of a table.

    Args:
        columns: Their names, in order.
        types: The type of each, as Delta names it.
        rows: Python values.
        is_cut: Whether there are more than were asked for.
    """

    table: str
    version: int
    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "version": self.version,
            "columns": [
                {"name": name, "type": kind} for name, kind in zip(self.columns, self.types, strict=True)
            ],
            "rows": [
                {name: plain(value) for name, value in zip(self.columns, row, strict=True)}
                for row in self.rows
            ],
            "cut": self.is_cut,
        }


def find_table(text: str, storage: Storage | None, default_schema: str) -> Path:
    """Where a table lies that a user names: a dataset of the storage, or a folder.

    Raises:
        TableUnknownError: There is none.
    """
    folder = Path(text).expanduser()
    if storage is not None:
        path = storage.table(TableName.parse(text, default_schema))
        if _is_table(path):
            return path
    if _is_table(folder):
        return folder
    logs = () if storage is None else storage.tables.glob("*/*/_delta_log")
    tables = [TableName(log.parent.parent.name, log.parent.name) for log in logs]
    known = sorted(t.name if t.schema == default_schema else str(t) for t in tables)
    near = difflib.get_close_matches(text, [*known, *map(str, tables)], n=1)
    where = "here" if storage is None else f"in {storage.root}"
    raise TableUnknownError(
        f"there is no table `{text}` {where}",
        facts=(f"its tables: {', '.join(known)}",) if known else (),
        remedies=(f"did you mean `{near[0]}`?" if near else "headrace status",),
        params={"table": text, "known": known},
    )


def read_rows(
    path: Path, *, where: str | None = None, limit: int | None = None, columns: Sequence[str] = ()
) -> Rows:
    """Read rows of a Delta table.

    Args:
        path: The table's folder.
        where: A condition in SQL.
        limit: How many rows at most.
        columns: Which columns, by dotted path; by default all.

    Raises:
        ReadColumnUnknownError: The table has no such column.
        ReadConditionInvalidError: The condition cannot be evaluated.
        TableUnreadableError: The table is damaged, or uses what the reader does not know.
    """
    from deltalake import DeltaTable, QueryBuilder
    from deltalake.exceptions import DeltaError

    name = path.name
    try:
        table = DeltaTable(path)
        schema = json.loads(table.schema().to_json())
    except (DeltaError, OSError, ValueError) as error:
        raise _unreadable(name, error) from error
    chosen = tuple(columns) or tuple(field["name"] for field in schema["fields"])
    types = tuple(_type_of(schema, column, name) for column in chosen)
    query = f"SELECT {', '.join(_selected(column) for column in chosen)} FROM t"
    if where is not None:
        query += f" WHERE ({where})"
    if limit is not None:
        query += f" LIMIT {limit + 1}"
    # Names keep their case, as they do in Spark's schemas.
    settings = {"datafusion.sql_parser.enable_ident_normalization": "false"}
    try:
        found = QueryBuilder(settings).register("t", table).execute(query).read_all()
        values = [_values(found.column(index)) for index in range(len(chosen))]
    except Exception as error:  # DataFusion's own errors come through arro3 without a class.
        if where is None or "Parquet error" in str(error) or "Object Store error" in str(error):
            raise _unreadable(name, error) from error
        raise _invalid(where, schema, name, error) from error
    rows = tuple(zip(*values, strict=True))
    is_cut = limit is not None and len(rows) > limit
    return Rows(
        table=name,
        version=table.version(),
        columns=chosen,
        types=types,
        rows=rows[:limit] if is_cut else rows,
        is_cut=is_cut,
    )


def shown(value: Any) -> str:
    """A value as a cell of a table."""
    text = plain(value)
    if isinstance(value, datetime):
        # Delta's timestamps are UTC; a person reads them easier without saying so in every cell.
        return value.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    if text is None:
        return "null"
    if isinstance(text, str):
        return text
    return json.dumps(text, ensure_ascii=False, default=str)


def plain(value: Any) -> Any:
    """A value as JSON has it; bytes that are text become text."""
    match value:
        case bytes():
            try:
                return value.decode("utf-8")
            except UnicodeDecodeError:
                return "0x" + value.hex()
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case datetime():
            return value.isoformat()
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def _values(column: Any) -> list[Any]:
    import pyarrow as pa

    return pa.chunked_array(column).to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]


def _is_table(path: Path) -> bool:
    return (path / "_delta_log").is_dir()


def _selected(column: str) -> str:
    head, *rest = column.split(".")
    inner = "".join(f"['{part}']" for part in rest)
    quoted = head.replace('"', '""')
    return f'"{quoted}"{inner} AS "{column}"' if rest else f'"{quoted}"'


def _type_of(schema: Mapping[str, Any], column: str, table: str) -> str:
    """The type of a column by its dotted path.

    Raises:
        ReadColumnUnknownError: There is no such column.
    """
    kind: Any = schema
    for part in column.split("."):
        fields = kind["fields"] if isinstance(kind, Mapping) and kind.get("type") == "struct" else []
        found = next((field for field in fields if field["name"] == part), None)
        if found is None:
            raise _unknown(column, list(_paths(schema)), table)
        kind = found["type"]
    return kind if isinstance(kind, str) else str(kind["type"])


def _paths(schema: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for field in schema["fields"]:
        path = f"{above}{field['name']}"
        yield path
        if isinstance(field["type"], Mapping) and field["type"]["type"] == "struct":
            yield from _paths(field["type"], f"{path}.")


def _unknown(column: str, known: list[str], table: str) -> HeadraceError:
    lower = {path.rpartition(".")[2].lower(): path for path in reversed(known)}
    lower |= {path.lower(): path for path in known}
    near = difflib.get_close_matches(column.lower(), lower, n=1)
    return ReadColumnUnknownError(
        f"the table {table} has no column `{column}`",
        facts=(f"its columns: {', '.join(path for path in known if '.' not in path)}",),
        remedies=(f"did you mean `{lower[near[0]]}`?",) if near else (),
        params={"column": column, "known": known},
    )


def _invalid(where: str, schema: Mapping[str, Any], table: str, error: Exception) -> HeadraceError:
    text = str(error)
    if found := _UNKNOWN_FIELD.search(text):
        return _unknown(found[1].removeprefix("t."), list(_paths(schema)), table)
    lines = [line for line in text.splitlines() if line.strip() and line != "caused by"]
    return ReadConditionInvalidError(
        f"the condition `{where}` cannot be evaluated",
        facts=tuple(lines[:3]),
        remedies=("headrace read --help",),
        params={"where": where},
    )


def _unreadable(table: str, error: Exception) -> HeadraceError:
    return TableUnreadableError(
        f"the table {table} cannot be read",
        facts=tuple(str(error).splitlines()[:2]),
        remedies=("headrace verify",),
        params={"table": table},
    )
