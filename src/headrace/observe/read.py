"""Rows of a table, read by delta-rs and DataFusion: no Spark, no JVM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.errors import RUN_FIRST, STORE_FAILURES, HeadraceError, did_you_mean, nearest
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.texts import html_table
from headrace.observe.versions import check_files, find_version
from headrace.storage.arrow_rows import read_stream, select
from headrace.storage.layout import Storage, is_uri, locate
from headrace.storage.location import Location, open_delta
from headrace.storage.log_damage import data_file_faults, find_damage
from headrace.storage.table_log import action_lines, commit_file, last_checkpoint
from headrace.storage.table_snapshot import load_snapshot

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from deltalake import DeltaTable

_UNKNOWN_FIELD = re.compile(r"No field named \"?([^\s\".]+(?:\.[^\s\".]+)*)\"?\.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Rows of one version of a table."""

    table: str
    path: Location
    version: int
    arrow: pa.Table
    types: tuple[str, ...]  # the type of each column, as Delta names it
    is_cut: bool = False  # whether the table holds more rows than the limit allowed

    @classmethod
    def up_to(cls, limit: int | None, rows: pa.Table, **facts: Any) -> Rows:
        """The first of some rows; one more than the limit shows that there are others."""
        is_cut = limit is not None and rows.num_rows > limit
        return cls(arrow=rows.slice(0, limit) if is_cut else rows, is_cut=is_cut, **facts)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(self.arrow.column_names)

    @cached_property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """The rows as Python values."""
        values = (column.to_pylist(maps_as_pydicts="strict") for column in self.arrow.columns)
        return tuple(zip(*values, strict=True))

    def to_arrow(self) -> pa.Table:
        """The rows as a `pyarrow.Table`."""
        return self.arrow

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a `pandas.DataFrame`.

        Raises:
            PackageMissingError: The package `pandas` is not installed.
        """
        try:
            return self.arrow.to_pandas()
        except ModuleNotFoundError as error:
            raise errors.PackageMissingError(
                "to_pandas() needs the package `pandas`, which is not installed",
                remedies=("pip install pandas", "or use to_arrow(), which gives a pyarrow.Table"),
                params={"package": "pandas"},
            ) from error

    def __repr__(self) -> str:
        cut = ", cut by the limit" if self.is_cut else ""
        size = f"{self.arrow.num_rows:,} x {', '.join(self.columns)}"
        return f"<Rows of {self.table} v{self.version}: {size}{cut}>"

    def _repr_html_(self) -> str:
        return rows_html(f"{self.table} v{self.version}", self.columns, self.rows, is_cut=self.is_cut)

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "version": self.version,
            **rows_to_json(self.columns, self.types, self.rows),
            "cut": self.is_cut,
        }


def find_table(text: str, storage: Storage | None, default_schema: str) -> Location:
    """The location of a table: a dataset of the storage, a path, or a URI."""
    if is_uri(text):
        storage = None
    if storage is not None:
        path = storage.table(TableName.parse(text, default_schema))
        if _is_table(path):
            return _created(path, text)
    if _is_table(folder := locate(text)):
        return _created(folder, text)
    raise _unknown(text, storage, default_schema)


def find_dataset(text: str, settings: ProjectSettings) -> TableName:
    name = settings.table_name(text)
    if not _is_table(settings.storage.table(name)):
        raise _unknown(text, settings.storage, settings.database)
    return name


def _unknown(text: str, storage: Storage | None, default_schema: str) -> errors.TableUnknownError:
    tables = () if storage is None else storage.find_tables()
    known = sorted(one.within(default_schema) for one in tables)
    where = "here" if storage is None else f"in {storage.root}"
    remedy = "list the tables:   headrace status" if storage is None else RUN_FIRST
    if known:
        remedy = f"name one of them, or the pipeline that has `{text}`:   --project PATH"
    return errors.TableUnknownError(
        f"there is no table `{text}` {where}",
        facts=(f"its tables: {', '.join(known)}",) if known else (),
        remedies=did_you_mean(text, [*known, *map(str, tables)], remedy),
        params={"dataset": text, "known": known},
    )


@dataclass(frozen=True, kw_only=True)
class Selection:
    where: str | None = None
    limit: int | None = None
    columns: Sequence[str] = ()  # the columns, by dotted path; by default all
    version: int | None = None  # the version; by default the newest
    timestamp: datetime | None = None  # in place of a version: the version that was the newest at this time


ALL = Selection()


def read_rows(path: Location, selection: Selection = ALL) -> Rows:
    """Read rows of a Delta table, and find out whether it has more rows than the limit."""
    name, where, limit = _label(path), selection.where, selection.limit
    version = find_version(path, version=selection.version, timestamp=selection.timestamp)
    table, schema = table_schema(path, version)
    chosen = tuple(dict.fromkeys(selection.columns)) or tuple(field["name"] for field in schema["fields"])
    types = tuple(type_of(schema, column, name) for column in chosen)
    query = f"SELECT {', '.join(_selected(column) for column in chosen)} FROM t"
    if where is not None:
        query += f" WHERE ({where})"
    if limit is not None:
        query += f" LIMIT {limit + 1}"
    try:
        rows = execute_query(table, query)
    except Exception as error:  # DataFusion's own errors come through arro3 without a class.
        if version is not None:
            check_files(path, version)
        raise explain_failure(error, table, name, where) from error
    return Rows.up_to(limit, rows, table=name, path=path, version=table.version(), types=types)


def _label(path: Location) -> str:
    """The name of a table for people; a quarantine table has the same folder name as its dataset."""
    schema = path.parent
    is_quarantine = schema.parent.name == "quarantine"
    return f"quarantine/{schema.name}/{path.name}" if is_quarantine else path.name


def table_schema(path: Location, version: int | None = None) -> tuple[DeltaTable, Mapping[str, Any]]:
    """A version of a table, and its schema as Delta's JSON has it."""
    from deltalake.exceptions import DeltaError

    try:
        table = open_delta(path, version)
        if table.version() > last_checkpoint(path):
            # `deltalake` takes an empty commit for one that changes nothing.
            next(action_lines(commit_file(path, table.version())))
        return table, json.loads(table.schema().to_json())
    except STORE_FAILURES:
        raise
    except (DeltaError, OSError, ValueError) as error:
        raise find_damage(path) or _unreadable(path.name, str(path), error) from error


def explain_failure(error: Exception, table: DeltaTable, name: str, where: str | None) -> HeadraceError:
    """The error for a failed query: the user's condition is wrong, or the table cannot be read."""
    # A condition is also evaluated within the reader of files.
    cast = "CastError" in str(error) or "Cannot cast" in str(error)
    damaged = not cast and ("Parquet error" in str(error) or "Object Store error" in str(error))
    if where is None or damaged or not _is_readable(table):
        return _unreadable(name, table.table_uri.removeprefix("file://").rstrip("/"), error)
    return _invalid(where, json.loads(table.schema().to_json()), name, str(error))


def execute_query(table: DeltaTable, query: str) -> pa.Table:
    """Run a query on a table, which is `t` in SQL; names keep their case."""
    import pyarrow as pa

    # Names keep their case, as they do in Spark's schemas.
    settings = {"datafusion.sql_parser.enable_ident_normalization": "false"}
    found = read_stream(select(table, query, settings))
    # Plain strings and bytes, as other libraries expect them, in place of DataFusion's views.
    return found.cast(pa.schema([pa.field(one.name, _plain_type(one.type)) for one in found.schema]))


def _plain_type(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _plain_type(one.type), one.nullable) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _plain_type(kind.value_type)))
    return kind


def _is_readable(table: DeltaTable) -> bool:
    """Whether the rows can be read without the condition."""
    try:
        execute_query(table, "SELECT * FROM t LIMIT 1")
    except Exception:
        return False
    return True


def shown(value: Any) -> str:
    text = plain(value)
    if isinstance(value, datetime):
        # Delta's timestamps are UTC, so a cell needs no time zone.
        return value.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    if text is None:
        return "null"
    if isinstance(text, str):
        return text
    return json.dumps(text, ensure_ascii=False, default=str)


def rows_to_json(
    columns: Sequence[str], types: Sequence[str], rows: Iterable[Sequence[Any]]
) -> dict[str, Any]:
    return {
        "columns": [{"name": name, "type": kind} for name, kind in zip(columns, types, strict=True)],
        "rows": [{name: plain(value) for name, value in zip(columns, row, strict=True)} for row in rows],
    }


def rows_html(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, is_cut: bool) -> str:
    """Rows as a notebook shows them."""
    cells = [tuple(one if isinstance(one, int | float) else shown(one) for one in row) for row in rows]
    return html_table(title, columns, cells, ["the limit has cut further rows"] if is_cut else [])


def plain(value: Any) -> Any:
    """A value for JSON; bytes that are UTF-8 become text."""
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
        case TableName():
            return str(value)
        case _ if hasattr(value, "to_json"):
            return value.to_json()
        case _ if is_dataclass(value):
            return fields_to_json(value)
        case _:
            return str(value)


def fields_to_json(record: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON values."""
    return {one.name: plain(getattr(record, one.name)) for one in fields(record)}


def _created(path: Location, text: str) -> Location:
    """The location of a table, if its log has a commit: a process that is killed can leave an empty log."""
    if any(not name.startswith((".", "_")) for name in (path / "_delta_log").list_files()):
        return path
    raise errors.TableUnknownError(
        f"the table `{text}` is not created yet: its log has no commit",
        facts=(f"its folder: {path}",),
        remedies=(RUN_FIRST,),
        params={"dataset": text, "known": []},
    )


def _is_table(path: Location) -> bool:
    return (path / "_delta_log").exists()


def _selected(column: str) -> str:
    head, *rest = column.split(".")
    inner = "".join(f"['{part}']" for part in rest)
    quoted = head.replace('"', '""')
    return f'"{quoted}"{inner} AS "{column}"' if rest else f'"{quoted}"'


def type_of(schema: Mapping[str, Any], column: str, table: str) -> str:
    kind: Any = schema
    for part in column.split("."):
        fields = kind["fields"] if isinstance(kind, Mapping) and kind.get("type") == "struct" else []
        found = next((field for field in fields if field["name"] == part), None)
        if found is None:
            raise unknown_column(column, list(_paths(schema)), f"the table {table}")
        kind = found["type"]
    return kind if isinstance(kind, str) else str(kind["type"])


def _paths(schema: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for field in schema["fields"]:
        path = f"{above}{field['name']}"
        yield path
        if isinstance(field["type"], Mapping) and field["type"]["type"] == "struct":
            yield from _paths(field["type"], f"{path}.")


def unknown_column(column: str, known: list[str], table: str, where: str | None = None) -> HeadraceError:
    lower = {path.rpartition(".")[2].lower(): path for path in reversed(known)}
    lower |= {path.lower(): path for path in known}
    near = nearest(column, lower)
    remedies = [f"did you mean `{lower[near]}`?"] if near else []
    if where is not None and (quoted := _quoted_value(where, column)) is not None:
        remedies.append(f'put text values in single quotes:   --where "{quoted}"')
    return errors.ReadColumnUnknownError(
        f"{table} has no column `{column}`",
        facts=(f"its columns: {', '.join(path for path in known if '.' not in path)}",),
        remedies=remedies,
        params={"column": column, "known": known},
    )


def _quoted_value(where: str, name: str) -> str | None:
    """The condition with quotes around a bare word that is compared to something."""
    quoted = re.sub(rf"(?i)((?:[=<>]|\blike|\bin\s*\(|,)\s*)({re.escape(name)})\b", r"\1'\2'", where)
    return None if quoted == where else quoted


_NOISE = re.compile(r'SQL error: \w+Error\("(?=.* at Line)| at Line: \d+, Column: \d+("\))?')
_SYNTAX = re.compile(r'ParserError\("Expected: (.*), found: (.*?)(?: at Line: \d+, Column: \d+)?"\)')


def _invalid(where: str, schema: Mapping[str, Any], table: str, text: str) -> HeadraceError:
    if found := _UNKNOWN_FIELD.search(text):
        return unknown_column(found[1].removeprefix("t."), list(_paths(schema)), f"the table {table}", where)
    lines = [_NOISE.sub("", line) for line in text.splitlines() if line.strip() and line != "caused by"]
    if found := _SYNTAX.search(text):
        # The condition is in parentheses there, in a text that the user has not written.
        is_end = found[2] == "EOF" or (found[2] == ")" and ")" not in where)
        lines = [f"expected {found[1]}" + (f" after `{where.rstrip()}`" if is_end else f", found {found[2]}")]
    example = f"{next(iter(_paths(schema)), 'COLUMN')} IS NOT NULL"
    return errors.ReadConditionInvalidError(
        f"the condition `{where}` cannot be evaluated",
        facts=tuple(lines[:3]),
        remedies=(f'write a whole condition, such as:   headrace read {table} --where "{example}"',),
        params={"where": where},
    )


def _cut_file(table: Location, text: str) -> tuple[str, ...]:
    """The fact of a data file that a reader's error names and that has another size than the log states."""
    with suppress(OSError, ValueError, HeadraceError):
        for one in load_snapshot(table).files:
            file = table / one.path
            if one.path in text and (state := file.look()) is not None and state.size != one.size:
                sizes = f"it has {state.size:,} bytes, the log states {one.size:,}"
                return (f"its file {file} is damaged: {sizes}",)
    return ()


def _unreadable(table: str, path: str, error: Exception) -> HeadraceError:
    remedies: tuple[str, ...] = ("restore its files from a copy of the table",)
    *_, folder, schema, name = ["", "", *path.split("/")]
    if folder == "tables":
        short = TableName(schema, name).short
        remedies = (
            f"find the damaged files:   headrace verify {short}",
            f"restore them from a copy, or read everything again:   headrace full-refresh {short}",
        )
    if "Unsupported table features" in str(error):
        remedies = (f"Spark reads it:   headrace sql -e 'SELECT * FROM delta.`{path}` LIMIT 20'",)
    return errors.TableUnreadableError(
        f"the table {table} cannot be read",
        facts=_cut_file(locate(path), str(error)) or data_file_faults(str(error)),
        remedies=remedies,
        params={"dataset": table},
    )
