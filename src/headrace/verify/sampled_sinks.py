"""Rows of a sink against those of the table whose change feed the sink follows.

The sample has random keys of the table and random keys of the sink. The table is read at the version with
which the flow's last batch ends. What the sink has recorded of its queries says which columns they have left
as they are. A row of a later version, which an unfinished batch has sent, is not compared.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from headrace.errors import first_line
from headrace.model.names import TableName
from headrace.model.texts import counted
from headrace.verify.checkpoints import load_checkpoints
from headrace.verify.delta import find_upstream
from headrace.verify.delta_log import LogDamagedError, commit_mark, last_change
from headrace.verify.evidence import Evidence
from headrace.verify.keys import PROPERTY_KEYS, quoted
from headrace.verify.reader import CannotJudgeError, SinkUnreadError
from headrace.verify.report import Finding, GradeReport, Judgement, unjudged_records
from headrace.verify.sampled_keys import key_text, possible_rows
from headrace.verify.sink_log import keys_of
from headrace.verify.sink_rows import (
    Key,
    ReadRows,
    SinkRow,
    SinkRows,
    Wanted,
    can_be_compared,
    can_be_key,
    is_same,
)
from headrace.verify.stored import Storage, query

_SHOWN = 3
_ATTEMPTS = 3
_WIDEST = 40
_FIRST_YEAR = 1583
"""Old files have earlier dates in another form."""
_NUMBERS = {"stale": "ROW_STALE", "lost": "KEY_LOST", "extra": "KEY_EXTRA"}
_WHOLE = (-1, -100)
"""Delta's indexes before the first file of a version."""


@dataclass(frozen=True, kw_only=True)
class SampledSink:
    """A sink whose rows can be read. `reload`: reads its state and its batches again."""

    options: Mapping[str, str]
    read: ReadRows
    reload: Callable[[], Evidence]

    def judge(self, storage: Storage, evidence: Evidence, size: int) -> GradeReport:
        """Compare random keys of the table and of the sink."""
        try:
            source = _Source.of(storage, evidence)
            wanted = source.choose(self.options, size)
            for _ in range(_ATTEMPTS):
                evidence = self.reload()
                source = _Source.of(storage, evidence)
                found = self.read(evidence.dataset, self.options, wanted)
                if _is_settled(found, evidence):
                    # In this order: a batch that ends in between has written another version by then.
                    is_moving = found.has_versions and (
                        _is_sending(storage, evidence.dataset)
                        or self.reload().log.version != evidence.log.version
                    )
                    return _compare(source, wanted, found, is_moving=is_moving)
            raise CannotJudgeError("a run has written to it meanwhile")
        except (CannotJudgeError, SinkUnreadError, LogDamagedError) as error:
            return unjudged_records(str(error), applies=False)
        except Exception as error:  # the engine raises no narrower class
            return unjudged_records(f"its rows cannot be read: {first_line(error)}", applies=False)


@dataclass(frozen=True)
class _Source:
    """The table that a sink follows, at the version with which the last batch ends."""

    name: str
    table: Any
    version: int

    @classmethod
    def of(cls, storage: Storage, evidence: Evidence) -> _Source:
        sources = {one.key for lineage in evidence.lineages for one in lineage.sources}
        if len(evidence.lineages) != 1 or len(sources) != 1 or evidence.lineages[0].last is None:
            raise CannotJudgeError("its rows come from several sources" if sources else "it has no batch")
        (lineage,) = evidence.lineages
        if lineage.unknown_versions or not lineage.in_force:
            raise CannotJudgeError("not all of its batches are known")
        if any(one.counts.quarantined or one.counts.dropped for one in lineage.batches):
            raise CannotJudgeError("rows were rejected, and their keys are not known")
        (source,) = lineage.last_sources
        path = find_upstream(storage, source) if source.kind == "delta" else None
        if path is None:
            raise CannotJudgeError("it does not follow a table that is there")
        until, seen = source.until, source.marks.get("seen")
        version, index = int(until["reservoirVersion"]), int(until["index"])
        if until.get("isStartingVersion") or (index not in _WHOLE and index != last_change(path, version)):
            raise CannotJudgeError(f"its last batch ends within version {version} of {path.name}")
        version -= index in _WHOLE
        is_seen = seen is not None and int(seen["version"]) == version
        if seen is not None and is_seen and commit_mark(path, version) not in (None, seen["commit"]):
            raise CannotJudgeError(f"version {version} of {path.name} is another commit now")
        table = path.open_table(version)
        if str(table.metadata().id) != source.table_id:
            raise CannotJudgeError(f"{path.name} was created again")
        return cls(path.name, table, version)

    def choose(self, options: Mapping[str, str], size: int) -> Wanted:
        """Random keys of the table, and the columns that can be compared."""
        fields = json.loads(self.table.schema().to_json())["fields"]
        # Spark compares or pads texts in another way where a column has such metadata.
        kinds = {
            one["name"]: one["type"] for one in fields if not any(m[:2] == "__" for m in one["metadata"])
        }
        keys = keys_of(options).split(",")
        for key in keys:
            if not can_be_key(kinds.get(key)):
                raise CannotJudgeError(f"its key {key} is no whole number, decimal, text, boolean or date")
        listed = ", ".join(map(quoted, keys))
        where = " AND ".join(f"{quoted(key)} IS NOT NULL" for key in keys)
        sql = f"SELECT {listed} FROM t WHERE {where} ORDER BY random() LIMIT {size}"
        rows = query(self.table, sql).to_pylist()
        return Wanted(
            keys={key: kinds[key] for key in keys},
            columns={name: kind for name, kind in kinds.items() if can_be_compared(kind)},
            asked=frozenset(tuple(row[key] for key in keys) for row in rows),
            size=size,
        )

    def rows(self, wanted: Collection[Key], names: Collection[str], size: int) -> dict[Key, list[list[Any]]]:
        """All rows of some keys; the key columns come first."""
        import pyarrow as pa
        from deltalake import QueryBuilder

        found: dict[Key, list[list[Any]]] = {}
        sql = f"SELECT {', '.join(map(quoted, names))} FROM t"
        rows = QueryBuilder().register("t", self.table).execute(sql)
        for batch in pa.RecordBatchReader.from_stream(rows):
            for row in possible_rows(batch, size, wanted):
                if (key := tuple(row[:size])) in wanted:
                    found.setdefault(key, []).append(row)
        return found


def _is_settled(found: SinkRows, evidence: Evidence) -> bool:
    """Whether the rows can be compared with the batches that are known."""
    if found.state.get("refreshing") is not None:
        raise CannotJudgeError("its full refresh is not complete")
    lineage = evidence.lineages[0]
    if found.has_versions:
        return bool(found.state["checkpoints"].get(lineage.flow) == lineage.checkpoint)
    return bool(found.state["version"] == evidence.log.version)


def _is_sending(storage: Storage, dataset: TableName) -> bool:
    """Whether rows of a batch can be there that is not recorded yet, by any checkpoint of its flows."""
    folders = storage.flows("checkpoints", dataset).list_folders()
    return any(one.planned > one.finished for folder in folders for one in load_checkpoints(folder))


def _compare(source: _Source, wanted: Wanted, found: SinkRows, *, is_moving: bool) -> GradeReport:
    follows = found.state.get("follows")
    if follows is None or not {*wanted.keys} <= {*follows["columns"]}:
        raise CannotJudgeError(
            f"nothing says that its rows are those of {source.name}: a query of it leaves out rows, joins "
            "tables or changes a key, or an earlier version of Headrace has written them"
        )
    compared = {name for name in follows["columns"] if name in wanted.columns and name in found.columns}
    if found.needs is not None and found.needs not in compared:
        raise CannotJudgeError(f"its column {found.needs} cannot be compared")
    names = [*wanted.keys, *sorted(compared - {*wanted.keys})]
    held = source.rows(found.rows, names, len(wanted.keys))
    declared = json.loads(source.table.metadata().configuration.get(PROPERTY_KEYS, "[]"))
    comparison = _Comparison(
        source=source,
        found=found,
        kinds={name: wanted.columns[name] for name in names},
        is_whole=follows["is_whole"],
        compared=compared,
        # An update cannot change the keys by which the table itself is written.
        has_deletes=follows["has_preimages"]
        or {one.casefold() for one in declared} == {one.casefold() for one in wanted.keys},
        is_moving=is_moving,
    )
    for key, row in found.rows.items():
        comparison.take(key, held.get(key, []), row)
    for id in found.strays:
        comparison.find("KEY_EXTRA", id, f"is in {found.holder}, and no row of {source.name} can have it")
    return comparison.report(len(wanted.asked - {*found.rows}))


@dataclass(kw_only=True)
class _Comparison:
    source: _Source
    found: SinkRows
    kinds: Mapping[str, str]  # the types of the columns that were read of the table
    compared: Collection[str]
    is_whole: bool  # whether the sink must have each key of the table
    has_deletes: bool  # whether the sink must not have another key
    is_moving: bool
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)
    number: int = 0

    def take(self, key: Key, rows: list[list[Any]], row: SinkRow) -> None:
        name, holder = f"version {self.source.version} of {self.source.name}", self.found.holder
        mine = dict(zip(self.kinds, rows[0], strict=True)) if rows else None
        if mine is not None and self.found.needs is not None and mine[self.found.needs] is None:
            mine = None
        if any(isinstance(one, date) and one.year < _FIRST_YEAR for one in key):
            self.left["a date of the Julian calendar"] += 1
        elif len(rows) > 1:
            self.left[f"several rows in {name}"] += 1
        elif self.is_moving and row.version is not None and row.version > self.source.version:
            self.left["a row of a batch that is not complete"] += 1
        elif row.values is None and mine is not None and not self.is_whole:
            self.left[f"no row in {holder}, which began after the first rows, or has had a ttl"] += 1
        elif row.values is not None and mine is None and not self.has_deletes:
            self.left[f'no row in {name}; updates can have changed keys (images="all" deletes old ones)'] += 1
        else:
            self.number += 1
            if row.values is None and mine is not None:
                self.find("KEY_LOST", key_text(key), f"has a row in {name}, and none in {holder}")
            elif row.values is not None and mine is None:
                self.find("KEY_EXTRA", key_text(key), f"has a row in {holder}, and none in {name}")
            elif row.values is not None and mine is not None:
                self._compare(key, mine, row.values, name)

    def _compare(self, key: Key, mine: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> None:
        pairs = ((one, mine[one], theirs.get(one)) for one in sorted(self.compared))
        wrong = [pair for pair in pairs if is_same(self.kinds[pair[0]], *pair[1:]) is False]
        if wrong:
            texts = ", ".join(f"{one} is {_shown(value)}, not {_shown(right)}" for one, right, value in wrong)
            self.find("ROW_STALE", key_text(key), f"differs in {self.found.holder} from {name}: {texts}")

    def find(self, code: str, key: str, text: str) -> None:
        place = {"key": key, "version": self.source.version}
        self.findings.setdefault(code, []).append(
            Finding(code=code, text=f"the key {key} {text}", place=place)
        )

    def report(self, unread: int) -> GradeReport:
        found = Judgement()
        for code, several in self.findings.items():
            found.findings += several[:_SHOWN]
            if len(several) > _SHOWN:
                found.find(code, f"{len(several) - _SHOWN:,} more keys")
        if unread:
            self.left["a number with two forms as a text"] += unread
        found.reasons += [
            f"{counted(number, 'key')} not compared: {why}" for why, number in self.left.items()
        ]
        text = (
            f"{counted(self.number, 'key')} compared with version {self.source.version} of {self.source.name}"
        )
        text += "" if self.findings else ": each row is the same"
        numbers = {name: len(self.findings.get(code, ())) for name, code in _NUMBERS.items()}
        return found.report(
            "records", text, {"keys": self.number, **numbers}, {"columns": sorted(self.compared)}
        )


def _shown(value: Any) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}.."
