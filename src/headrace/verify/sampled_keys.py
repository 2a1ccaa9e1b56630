"""The newest record of some keys, read again from the source, against the rows of the table.

The sample has rows of the table, and as many keys of records: a key whose row was lost is only among
the latter. Such a key must have a row, or a tombstone that is not older than its records.

Nothing here knows the query of the flow. The fields of the records that give the key and the sequence are
found by comparing: each row names the record that it comes from, and a field counts if it has the value of
the row in all of these records. If no field does, the sample cannot be judged.
"""

from __future__ import annotations

import json
import math
import random
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np

from headrace.errors import first_line
from headrace.model.ranges import RecordCoordinates
from headrace.model.texts import counted
from headrace.verify.delta_log import LogDamagedError, has_log, load_table_log
from headrace.verify.evidence import Evidence
from headrace.verify.keys import columns_of, keys_of, quoted
from headrace.verify.quarantine import Rejected
from headrace.verify.reader import CannotJudgeError, SourceReader, SourceRecord
from headrace.verify.registry import Readers
from headrace.verify.report import GradeReport, Judgement, unjudged_records
from headrace.verify.source_range import Partition, Spans, named
from headrace.verify.stored import StoredPath, query

PROPERTY_REPLAYABLE = "headrace.replayable"
_SEQUENCE = "_sequence"
_END = "__END_AT"
_SHOWN = 3
_RECORD_KEY = "the key of the record"
_NOTHING = object()
_TYPES = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), datetime),
    "string": str,
    "boolean": bool,
    "date": date,
    "decimal": Decimal,
}
"""The Python type of the values of a column."""
_READ_FROM: Mapping[type, tuple[type, ...]] = {
    bool: (bool,),
    str: (str,),
    int: (int,),
    float: (int, float, Decimal),
    Decimal: (int, Decimal, str),
    date: (str,),
    datetime: (str,),
}
"""The types of JSON's values that a column of a type reads."""

Key = tuple[Any, ...]
Order = tuple[Any, int, str, int]
"""A sequence with the coordinates of its record, as a table orders them: partition, source, number."""


@dataclass(frozen=True)
class _Record:
    at: tuple[int, str, int]
    sequences: Mapping[str, Any]


class _SampledKeys:
    def __init__(self, size: int) -> None:
        self.records: dict[Key, list[_Record]] = {}
        self._size = size
        self._salt = random.random()
        self._limit = 1 << 32

    def take(self, key: Key, record: _Record) -> None:
        """Keep a record, unless the sample is full of keys with lower ranks."""
        if self._rank(key) > self._limit:
            return
        self.records.setdefault(key, []).append(record)
        if len(self.records) > 2 * self._size:
            kept = sorted(self.records, key=self._rank)[: self._size]
            self._limit = self._rank(kept[-1])
            self.records = {key: self.records[key] for key in kept}

    def _rank(self, key: Key) -> int:
        # Equal keys may have different texts, such as 1.0 and 1.00.
        return zlib.crc32(f"{self._salt}{hash(key)}".encode())


@dataclass
class _Records:
    """The records of the sampled keys: those with the key in fields of the value, and in the record's key."""

    rows: Mapping[Key, Order]  # the rows of the sample
    columns: Sequence[str]
    types: Sequence[Any]  # delta's types of the key columns
    rejected: Mapping[Partition, frozenset[int]]
    read: Mapping[Partition, Spans]  # the offsets that the flows have read
    size: int
    coordinates: RecordCoordinates
    system: str
    number: int = 0
    found: dict[str, dict[Key, list[_Record]]] = field(default_factory=dict)
    keys: dict[str, _SampledKeys] = field(default_factory=dict)
    seen: set[tuple[int, str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._read = {key: spans.pairs() for key, spans in self.read.items()}
        self._sequence_type = type(next(iter(self.rows.values()))[0])
        self._places = {order[1:] for order in self.rows.values()}

    def take(self, record: SourceRecord) -> None:
        self.number += 1
        number = 0 if self.coordinates.partition is None else int(record.partition[-1])
        at = number, str(record.partition[0]), record.offset
        if at in self._places:
            self.seen.add(at)
        if record.offset in self.rejected.get(record.partition, ()):
            return
        given = _json(record.value)
        value = given if isinstance(given, dict) else None
        for kind, key in self._keys(record.key, value):
            one = _Record(at, dict(self._sequences(value, record.timestamp_ms)))
            if key in self.rows:
                self.found.setdefault(kind, {}).setdefault(key, []).append(one)
            elif any(low <= record.offset < end for low, end in self._read.get(record.partition, ())):
                self.keys.setdefault(kind, _SampledKeys(self.size)).take(key, one)

    def place(self, order: Order) -> dict[str, Any]:
        """The coordinates of a record, for findings."""
        _, partition, source, number = order
        names = self.coordinates
        between = {} if names.partition is None else {names.partition: partition}
        return {names.source: source, **between, names.number: number}

    def describe(self, order: Order) -> str:
        """The coordinates of a record, for people."""
        *partition, number = self.place(order).values()
        return f"{named(tuple(partition))} at offset {number}"

    def _keys(self, key: bytes | None, value: Mapping[str, Any] | None) -> Iterator[tuple[str, Key]]:
        if value is not None:
            pairs = zip(self.columns, self.types, strict=True)
            read = tuple(_read_value(kind, value.get(column, _NOTHING)) for column, kind in pairs)
            if _NOTHING not in read and None not in read:
                yield f"the fields {', '.join(self.columns)}", read
        if len(self.columns) == 1 and key is not None:
            text = key.decode("utf-8", errors="replace")
            given = _json(text)
            number = text if given is _NOTHING else given
            one = text if self.types[0] == "string" else _read_value(self.types[0], number)
            if one is not _NOTHING and one is not None:
                yield _RECORD_KEY, (one,)

    def _sequences(self, value: Mapping[str, Any] | None, timestamp_ms: int) -> Iterator[tuple[str, Any]]:
        kind = self._sequence_type
        if kind is datetime:
            yield f"the timestamp of {self.system}", datetime.fromtimestamp(timestamp_ms / 1000, UTC)
        for name, one in (value or {}).items():
            if (read := _as(kind, one)) is not _NOTHING:
                yield f"the field {name}", read


def judge_sample(
    evidence: Evidence, table: StoredPath, tombstones: StoredPath, readers: Readers, size: int
) -> GradeReport | None:
    """Compare rows with the newest records of their keys; ``None`` for a table without keys."""
    keys = keys_of(evidence.log)
    if not keys:
        return None
    columns = columns_of(evidence.log)
    try:
        reader = _find_reader(evidence, readers)
        where = f'"{_END}" IS NULL' if _END in columns else "true"
        rows = _sample(table, evidence.log.version, keys, size, where)
    except CannotJudgeError as error:
        return unjudged_records(str(error), applies=False)
    except Exception as error:  # the engine raises no narrower class
        return unjudged_records(f"the rows cannot be read: {first_line(error)}", applies=False)
    coordinates = reader.range.coordinates
    if not rows or coordinates is None:
        return unjudged_records("the table has no row", applies=False)
    rejected = Rejected.of(evidence.batches, evidence.quarantine.kept, evidence.quarantine.discarded)
    found: dict[Partition, list[tuple[int, int]]] = {}
    for source in (source for lineage in evidence.lineages for source in lineage.sources):
        for partition, span in source.spans.items():
            found.setdefault(partition, []).append(span)
    records = _Records(
        rows,
        keys,
        [columns[key] for key in keys],
        {partition: frozenset(offsets) for partition, offsets in rejected.partitions.items()},
        {partition: Spans.of(pairs).merged() for partition, pairs in found.items()},
        size,
        coordinates,
        reader.system,
    )
    for lineage in evidence.lineages:
        for source in lineage.last_sources:
            if (reason := reader.replay(source, records.take)) is not None:
                return unjudged_records(reason, applies=False)
    return _compare(records, _Held(evidence, table, tombstones, keys))


def _find_reader(evidence: Evidence, readers: Readers) -> SourceReader:
    found = readers.of({kind for lineage in evidence.lineages for kind in lineage.source_kinds})
    reasons = (reader.check_replay(lineage) for reader in found for lineage in evidence.lineages)
    if _SEQUENCE not in columns_of(evidence.log):
        reason: str | None = "the table does not have one current row for each key"
    elif (reason := next(filter(None, reasons), None)) is not None:
        pass
    elif evidence.log.metadata.properties.get(PROPERTY_REPLAYABLE) != "true":
        reason = "the query of a flow is more than a reader: it does not give one change for each record"
    elif any(batch.counts.dropped for batch in evidence.batches):
        reason = "batches have dropped records, and which ones is not recorded"
    elif len(found) != 1:
        reason = "its flows read sources of several kinds" if found else "the table has no row"
    if reason is not None:
        raise CannotJudgeError(reason)
    return found[0]


def _sample(table: StoredPath, version: int, keys: Sequence[str], size: int, where: str) -> dict[Key, Order]:
    """Random rows that fulfil a condition."""
    listed = ", ".join(map(quoted, [*keys, _SEQUENCE]))
    sql = f"SELECT {listed} FROM t WHERE {where} ORDER BY random() LIMIT {size}"
    found: dict[Key, Order] = {}
    for row in query(table.open_table(version), sql).to_pylist():
        key = tuple(_plain(row[name]) for name in keys)
        at = row[_SEQUENCE]
        found[key] = _plain(at["value"]), int(at["partition"]), str(at["source"]), int(at["position"])
    return found


@dataclass(frozen=True)
class _Held:
    evidence: Evidence
    table: StoredPath
    tombstones: StoredPath
    columns: Sequence[str]

    def find_lost(
        self, keys: Mapping[Key, Sequence[_Record]], fields: Sequence[str], found: Judgement
    ) -> list[tuple[Key, Order]]:
        """The keys that have neither a row nor a tombstone that explains it, with their newest record."""
        version = self.evidence.log.version
        missing = set(keys) - set(_rows_of(self.table, version, self.columns, keys))
        dead: Mapping[Key, Any] = {}
        if missing and has_log(self.tombstones):
            named = [f"key_{number}" for number in range(1, len(self.columns) + 1)]
            deletes = "\"_cdc_operation\" = 'delete'"
            dead = _rows_of(self.tombstones, None, [*named, _SEQUENCE], missing, deletes)
        lost = []
        for key in missing:
            newest = [_newest(keys[key], name) for name in fields]
            given = [one for one in newest if one is not None]
            if len(given) == len(fields) and not (key in dead and any(one <= dead[key] for one in given)):
                lost.append((key, given[0]))
        if lost and (reason := self._find_other_deletes()) is not None:
            found.reasons.append(f"{counted(len(lost), 'key')} of records may have been deleted: {reason}")
            return []
        return lost

    def _find_other_deletes(self) -> str | None:
        """Why a key may have been deleted without a tombstone that is still there."""
        evidence = self.evidence
        if any(lineage.unknown_versions for lineage in evidence.lineages):
            return "some commits of the table are not known"
        if any(batch.counts.by_name.get("truncated") for batch in evidence.batches):
            return "records have truncated the table"
        deltas = evidence.balance.deltas.values()
        if evidence.balance.earlier or any(one.removed and one.is_foreign for one in deltas):
            return "another writer has deleted rows"
        if has_log(self.tombstones):
            try:
                log = load_table_log(self.tombstones)
            except LogDamagedError:
                return "the log of the tombstones is damaged"
            if log.first_version or any(one.operation == "DELETE" for one in log.commits):
                return "old tombstones were removed"
        return None


def _rows_of(
    table: StoredPath,
    version: int | None,
    columns: Sequence[str],
    wanted: Collection[Key],
    where: str = "true",
) -> dict[Key, Any]:
    """Those of some keys that a table has, with the greatest value of the column after the key columns."""
    import pyarrow as pa
    from deltalake import QueryBuilder

    sql = f"SELECT {', '.join(map(quoted, columns))} FROM t WHERE {where}"
    size = len(next(iter(wanted), ()))
    found: dict[Key, Any] = {}
    rows = QueryBuilder().register("t", table.open_table(version)).execute(sql)
    for batch in pa.RecordBatchReader.from_stream(rows):
        for row in possible_rows(batch, size, wanted):
            key, *order = map(_plain, [tuple(row[:size]), *row[size:]])
            if key in wanted:
                found[key] = max([*order, *([found[key]] if key in found else [])], default=None)
    return found


def possible_rows(batch: Any, size: int, wanted: Collection[Key]) -> Iterator[list[Any]]:
    """The values of rows that may have one of some keys, which come first; nested values are not compared
    here."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_possible = np.ones(batch.num_rows, dtype=bool)
    for number in range(size):
        column = batch.column(number)
        if not pa.types.is_nested(column.type):
            # Arrow cannot filter its views of strings and bytes, nor structs that have them.
            view = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(column.type)
            column = column if view is None else column.cast(view)
            if pa.types.is_floating(column.type):
                # Arrow finds -0.0 by its bits.
                column = pc.add(column, pa.scalar(0, column.type))
            values = pa.array({key[number] for key in wanted}, type=column.type)
            is_possible &= pc.is_in(column, values).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(is_possible).tolist():
        yield [column[row].as_py() for column in batch.columns]


def _compare(records: _Records, table: _Held) -> GradeReport:
    kind = next((one for one, held in records.found.items() if _gives_keys(records, held)), None)
    if kind is None:
        return unjudged_records("no field of the records has the key of the rows", applies=False)
    held = records.found[kind]
    fields = _sequence_fields(records, held)
    if not fields:
        return unjudged_records("no field of the records has the sequence of the rows", applies=False)
    found = Judgement()
    stale: list[tuple[Key, Order]] = []
    for key, row in records.rows.items():
        newest = [_newest(held.get(key, ()), name) for name in fields]
        # Several fields may have the sequence of all rows: a row is stale if it is by each of them.
        newer = [one for one in newest if one is not None and one > row]
        if len(newer) == len(fields):
            stale.append((key, newer[0]))
    for key, order in stale[:_SHOWN]:
        row = records.rows[key]
        text = (
            f"the row of the key {key_text(key)} comes from {records.describe(row)}, "
            f"and its newest record is {records.describe(order)}"
        )
        found.find("ROW_STALE", text, **records.place(row))
    if len(stale) > _SHOWN:
        found.find("ROW_STALE", f"{len(stale) - _SHOWN:,} more rows are not those of their newest records")
    others = records.keys[kind].records if kind in records.keys else {}
    lost = table.find_lost(others, fields, found) if others else []
    for key, order in lost[:_SHOWN]:
        text = (
            f"the key {key_text(key)} has no row, and its newest record is {records.describe(order)}; "
            "no tombstone says that it was deleted"
        )
        found.find("KEY_LOST", text, **records.place(order))
    if len(lost) > _SHOWN:
        found.find("KEY_LOST", f"{len(lost) - _SHOWN:,} more keys of records have no row")
    number = len(records.rows) + len(others)
    text = f"{counted(number, 'key')} replayed from {counted(records.number, 'record')} of {records.system}"
    text += "" if stale or lost else ": each row is that of its newest record"
    figures = {"keys": number, "records": records.number, "stale": len(stale), "lost": len(lost)}
    return found.report("records", text, figures, {"key": kind, "sequence": fields})


def _gives_keys(records: _Records, held: Mapping[Key, Sequence[_Record]]) -> bool:
    """Whether each row comes from a record of its key, as far as these records were read."""
    rows = [(key, row[1:]) for key, row in records.rows.items() if row[1:] in records.seen]
    return bool(rows) and all(at in {one.at for one in held.get(key, ())} for key, at in rows)


def _sequence_fields(records: _Records, held: Mapping[Key, Sequence[_Record]]) -> list[str]:
    """The fields that have the sequence of the row in each record that a row comes from."""
    fields: set[str] | None = None
    for key, row in records.rows.items():
        for one in held.get(key, ()):
            if one.at == row[1:]:
                equal = {name for name, value in one.sequences.items() if value == row[0]}
                fields = equal if fields is None else fields & equal
    return sorted(fields or ())


def _newest(records: Sequence[_Record], name: str) -> Order | None:
    orders = ((one.sequences[name], *one.at) for one in records if name in one.sequences)
    return max(orders, default=None)


def _json(text: bytes | str | None) -> Any:
    """A JSON value with all digits of its numbers; `_NOTHING` where the text is not JSON."""
    try:
        return json.loads(text or "", parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError):
        return _NOTHING


def _read_value(kind: Any, value: Any) -> Any:
    """A value of JSON as a column of one of Delta's types reads it; `_NOTHING` if the column would not."""
    if value is None or value is _NOTHING:
        return value
    if not isinstance(kind, dict):
        known = _TYPES.get(kind.split("(")[0])
        return _NOTHING if known is None else _rounded(kind, _as(known, value))
    if kind["type"] == "struct" and isinstance(value, dict):
        parts = [_read_value(one["type"], value.get(one["name"])) for one in kind["fields"]]
    elif kind["type"] == "array" and isinstance(value, list):
        parts = [_read_value(kind["elementType"], one) for one in value]
    else:
        return _NOTHING
    return _NOTHING if any(one is _NOTHING for one in parts) else tuple(parts)


def _rounded(kind: str, value: Any) -> Any:
    """A number with the digits that one of Delta's types has; `_NOTHING` if it has too many."""
    if isinstance(value, Decimal):
        last = Decimal(1).scaleb(-int(kind.rstrip(")").rpartition(",")[2]))
        try:
            return value.quantize(last, ROUND_HALF_UP, Context(prec=38))
        except ArithmeticError:
            return _NOTHING
    with np.errstate(over="ignore"):
        return _plain(float(np.float32(value))) if kind == "float" and isinstance(value, float) else value


def _as(kind: type, value: Any) -> Any:
    """A value of JSON as a column of this type reads it; `_NOTHING` if the column would not."""
    if not isinstance(value, _READ_FROM.get(kind, ())) or (isinstance(value, bool) and kind is not bool):
        return _NOTHING
    try:
        if kind is date or kind is datetime:
            return _plain(kind.fromisoformat(str(value)))
        return Decimal(str(value)) if kind is Decimal else _plain(kind(value))
    except (ValueError, ArithmeticError):
        return _NOTHING


def _plain(value: Any) -> Any:
    """A value that can be compared: times in UTC, one NaN, and one zero."""
    if isinstance(value, float):
        return value + 0.0 if value == value else math.nan
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, dict):
        value = tuple(value.values())
    return tuple(map(_plain, value)) if isinstance(value, tuple | list) else value


def key_text(key: Key) -> str:
    return ", ".join(map(str, key))
