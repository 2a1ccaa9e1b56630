"""What the rows of a batch do with an outside system that has one row for each key.

Rows of a change feed (`hr.read_changes`) insert, update and delete in the order of the table's versions; the
row before an update deletes its key, which the row after it may have again. Other rows replace the row of
their key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from headrace import errors
from headrace.model.names import COLUMN_SEQUENCES, FEED_COLUMNS, SEQUENCE, quoted_column
from headrace.runtime.lazy_pyspark import Column, DataFrame, F
from headrace.sinks.row_hash import row_hash
from headrace.sinks.target import SinkSpec

IS_DELETE, RECORDS, PROBLEM, VERSION = (
    f"__headrace_{name}" for name in ("is_delete", "records", "problem", "version")
)
"""Columns: whether a row deletes its key, how many rows it replaces, the reason if it is refused, and the
version of the table that it comes from; NULL without a change feed."""
_CHANGE, _VERSION, _ = FEED_COLUMNS
OWN_COLUMNS = ("_source", SEQUENCE, COLUMN_SEQUENCES)
"""Headrace's own columns of a table: other systems do not get them."""
_LARGEST = 10**9
_ROW, _FIRST, _LAST = (f"__headrace_{name}" for name in ("row", "first", "last"))
NULL_KEY, _TWO_ROWS, NOT_TEXT = "null key", "two rows", "not text"
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""How values with parts become JSON."""
KEEP_OUT = "keep such rows out, with a WHERE in the query"
CORRECT_CONNECTION = "start the server, or correct the connection in the options of hr.create_sink"
KEEP_OUT_OF_FEED = "correct or delete the row in the table that the flow reads"
REASONS = {
    NULL_KEY: "a row has no key",
    NOT_TEXT: "a row has a text that is not valid UTF-8",
    _TWO_ROWS: "a batch has different rows with the same key, and nothing says which one is newer",
}


@dataclass(frozen=True, kw_only=True)
class RowsByKey:
    """How the rows of a sink follow each other. `keys`: the columns of the key; without any, rows are
    appended. `sequence_by`: the column whose greatest value is the newest row, without a change feed."""

    columns: tuple[str, ...]  # without Headrace's own, and those of a change feed
    keys: tuple[str, ...]
    is_feed: bool
    sequence_by: str | None = None

    @classmethod
    def of(cls, spec: SinkSpec) -> RowsByKey:
        """How the rows of a sink follow each other, by its options; raises `SinkInvalidError`."""
        names = [field["name"] for field in spec.schema["fields"]]
        is_feed = set(FEED_COLUMNS[:2]) <= set(names)
        if spec.reads_changes and not is_feed and spec.options.get("keys"):
            what = f"its query leaves out {FEED_COLUMNS[0]} or {FEED_COLUMNS[1]} of the change feed"
            raise invalid(spec, what, "without them, a delete would be written as a row", "keep both columns")
        own = {*OWN_COLUMNS, *(FEED_COLUMNS if is_feed else ())}
        if is_feed and spec.limits_changes:
            what = "its query limits the batches of a change feed, which could then end within a version"
            fact = "the inserts of a version would come before its deletes, and be deleted"
            raise invalid(spec, what, fact, "remove maxFilesPerTrigger and maxBytesPerTrigger from the query")
        if is_feed and spec.sources > 1:
            what = "its query reads several streams, and the versions of two tables cannot be compared"
            fact = "an older row of one table could replace a newer row of the other one"
            raise invalid(spec, what, fact, "let the query write a table, and send the changes of that table")
        columns = tuple(name for name in names if name not in own)
        keys = tuple(one.strip() for one in spec.options.get("keys", "").split(",") if one.strip())
        sequence_by = spec.options.get("sequence_by")
        named = [("keys", key) for key in keys] + [("sequence_by", one) for one in [sequence_by] if one]
        for option, name in named:
            if name not in columns:
                what = f"its option {option} names the column `{name}`, which its rows do not have"
                raise invalid(spec, what, f"its columns: {', '.join(columns)}", f"correct {option}")
        if is_feed and not keys:
            what = "its rows come from a change feed, and it has no key to apply them by"
            raise invalid(spec, what, None, 'name the columns of the key:   options={"keys": "id"}')
        if sequence_by and (is_feed or not keys):
            why = "the versions of the table order its rows" if is_feed else "it has no keys"
            raise invalid(spec, f"it has the option sequence_by, but {why}", None, "remove sequence_by")
        return cls(columns=columns, keys=keys, is_feed=is_feed, sequence_by=sequence_by)

    def newest(self, rows: DataFrame) -> DataFrame:
        """The newest row of each key, with `IS_DELETE`, `RECORDS` and `PROBLEM`."""
        is_delete = F.col(_CHANGE).isin("delete", "update_preimage") if self.is_feed else F.lit(False)
        order = self._order(is_delete)
        keys = [quoted_column(key) for key in self.keys]
        others = [quoted_column(name) for name in self.columns if name not in self.keys]
        hashed = row_hash(rows.select(*map(quoted_column, self.columns)))
        # Two rows that are the newest differ if the greatest and the smallest hash among them differ.
        found = rows.groupBy(*keys).agg(
            F.max_by(F.struct(*others, is_delete.alias(IS_DELETE)), F.struct(order, hashed)).alias(_ROW),
            F.max(F.struct(order, hashed.alias("hash"))).alias(_LAST),
            F.max(F.struct(order, F.bitwise_not(hashed).alias("hash"))).alias(_FIRST),
            F.count(F.lit(1)).alias(RECORDS),
            (F.max(_VERSION) if self.is_feed else F.lit(None).cast("long")).alias(VERSION),
        )
        is_ambiguous = (F.col(f"{_LAST}.hash") != F.bitwise_not(F.col(f"{_FIRST}.hash"))) & ~F.col(
            f"{_ROW}.{IS_DELETE}"
        )
        has_null = F.lit(False)
        for key in keys:
            has_null = has_null | F.col(key).isNull()
        problem = F.when(has_null, NULL_KEY).when(is_ambiguous, _TWO_ROWS).alias(PROBLEM)
        return found.select(*keys, f"{_ROW}.*", RECORDS, VERSION, problem)

    def _order(self, is_delete: Column) -> Column:
        if self.is_feed:
            return F.struct(F.col(_VERSION), ~is_delete)
        return F.lit(0) if self.sequence_by is None else F.col(quoted_column(self.sequence_by))

    def refused(self, spec: SinkSpec, problem: str, row: Mapping[str, Any]) -> errors.SinkRowRefusedError:
        """The error for the first row that cannot be written by its key."""
        remedies = [KEEP_OUT_OF_FEED if self.is_feed else KEEP_OUT]
        if problem == _TWO_ROWS:
            remedies = [
                "the key of the table is not unique: choose other keys"
                if self.is_feed
                else 'say which row is newer:   options={"sequence_by": "<column>"}'
            ]
        return refused(spec, REASONS[problem], {key: row.get(key) for key in self.keys}, remedies)


def refused(
    spec: SinkSpec, reason: str, row: Mapping[str, Any], remedies: Sequence[str]
) -> errors.SinkRowRefusedError:
    values = ", ".join(f"{name} = {value!r}" for name, value in row.items())
    return errors.SinkRowRefusedError(
        f"sink {spec.name.short}: {reason}",
        facts=(values, "the batch was not written"),
        remedies=tuple(remedies),
        params={"sink": str(spec.name), "reason": reason},
    )


def invalid(spec: SinkSpec, what: str, fact: str | None, *remedies: str) -> errors.SinkInvalidError:
    return errors.SinkInvalidError(
        f"sink {spec.name.short}: {what}",
        facts=() if fact is None else (fact,),
        remedies=remedies,
        params={"sink": str(spec.name)},
    )


def unavailable(
    spec: SinkSpec, what: str, *facts: str, remedy: str = CORRECT_CONNECTION
) -> errors.SinkUnavailableError:
    """The error for a system that cannot be used now; the flow tries again."""
    return errors.SinkUnavailableError(
        f"sink {spec.name.short}: {what}",
        facts=(*facts, "nothing is lost: the batch is repeated"),
        remedies=(remedy,),
        params={"sink": str(spec.name)},
    )


def number_of(spec: SinkSpec, option: str, default: int) -> int:
    """An option with a number from 1 on."""
    text = spec.options.get(option)
    if text is not None and not (text.isdecimal() and 0 < int(text) <= _LARGEST):
        what = f"its option {option} must be a number from 1 to {_LARGEST:,}"
        raise invalid(spec, what, None, f"correct {option}")
    return default if text is None else int(text)


def unknown_option(spec: SinkSpec, known: Iterable[str]) -> None:
    """Refuse options that a format does not have."""
    names = sorted(known)
    for option in spec.options:
        if option not in names:
            raise invalid(
                spec,
                f"it has no option {option}",
                f"its options: {', '.join(names)}",
                *errors.did_you_mean(option, names, "use one of them"),
            )


def load_package(spec: SinkSpec, package: str, extra: str) -> ModuleType:
    """A module that a format needs; raises `PackageMissingError`."""
    try:
        return import_module(package)
    except ImportError as error:
        raise errors.PackageMissingError(
            f"sink {spec.name.short} needs the package {package}, which is not installed",
            remedies=(f"pip install 'headrace[{extra}]'",),
            params={"package": package},
        ) from error
