"""Deletes the rows that a condition matches in a table, its quarantine, and the tables downstream."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, assert_never

from headrace.contracts.rejected import ID, PROBLEM, rows_of_json
from headrace.errors import ReadConditionInvalidError, first_line
from headrace.maintain.erasures import ErasedRest, load_erasure, record_erasure
from headrace.maintain.holders import DatasetTable, find_holders, lag_seconds
from headrace.model.maintenance import TablePolicy
from headrace.model.names import SEQUENCE, TableName
from headrace.model.project import ProjectSettings
from headrace.model.texts import counted, html_table
from headrace.observe.read import find_dataset
from headrace.plan.properties import keys_of
from headrace.plan.stages import Plan, PlannedFlow, PlannedRefresh
from headrace.project.engine import Engine
from headrace.project.maintenance import MaintenanceOptions, TableMaintenance
from headrace.project.operations import logged_operation, new_update
from headrace.project.refresh import find_downstream
from headrace.run.failpoints import reach
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.sinks.delta.erase import (
    close_erasure,
    empty_rejected,
    erase_matching,
    erase_rows,
    matching_rows,
)
from headrace.sinks.delta.tombstones import ROW
from headrace.state.lease import held_leases
from headrace.storage.location import Location
from headrace.storage.table_log import is_table, versions

_POLL_S, _LONGEST_POLL_S = 1.0, 60.0
Part = Literal["table", "quarantine", "tombstones"]
_SIDES: tuple[Part, ...] = ("quarantine", "tombstones")


@dataclass(frozen=True, kw_only=True)
class ErasureStep:
    dataset: TableName
    part: Part  # the table, or another table of the dataset
    path: Location
    where: str
    rows: int

    def __str__(self) -> str:
        name = self.dataset.short if self.part == "table" else f"{self.dataset.short}, {self.part}"
        count = counted(self.rows, "row")
        return f"{name}  {count}" + (
            ": content removed, coordinates kept" if self.part == "quarantine" else ""
        )


@dataclass(frozen=True, kw_only=True)
class ErasurePlan:
    table: TableName
    where: str
    steps: tuple[ErasureStep, ...]
    notes: tuple[str, ...]
    final_at: datetime  # when the retention of old files ends
    views: tuple[TableName, ...] = ()  # the views downstream: the next run computes them again
    rest: tuple[ErasedRest, ...] = ()  # what the storage still has of the rows, after they were deleted
    unfinished: bool = False  # whether an earlier erasure of these tables was interrupted
    unchecked: tuple[str, ...] = ()  # tables whose old files could not be checked; `notes` has the reasons

    @property
    def rows(self) -> int:
        return sum(step.rows for step in self.steps)

    def __repr__(self) -> str:
        return f"<ErasurePlan of {self.table.short}: {counted(self.rows, 'row')}>"

    def _repr_html_(self) -> str:
        return html_table(self.table.short, (), (), self.lines())

    def lines(self) -> Iterator[str]:
        yield from map(str, self.steps)
        yield from self.notes

    def final_lines(self) -> Iterator[str]:
        """What the storage still has of the rows, and until when."""
        if self.unchecked:
            names = ", ".join(self.unchecked)
            yield f"Not checked, because maintenance failed (the reason is above): {names}"
            yield "The old files and the logs of these tables can still have the rows."
        elif not self.rest:
            yield "No file and no log entry of these tables has the rows."
        if not self.rest:
            return
        yield "The newest versions do not have these rows, but old files and the logs of the tables do:"
        for one in self.rest:
            yield from (f"  {line}" for line in one.lines())

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": str(self.table),
            "steps": [
                {"dataset": str(one.dataset), "part": one.part, "path": str(one.path), "rows": one.rows}
                for one in self.steps
            ],
            "notes": list(self.notes),
            "final_at": self.final_at.isoformat(),
            "rest": [one.to_json() for one in self.rest],
            "unchecked": list(self.unchecked),
        }


class Eraser:
    def __init__(self, settings: ProjectSettings, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine

    def plan(self, table: str, where: str) -> ErasurePlan:
        settings = self._settings
        name = find_dataset(table, settings)
        _, plan = self._engine.reach()
        session = self._engine.session()
        steps: list[ErasureStep] = []
        notes: list[str] = []
        views: list[TableName] = []
        planned: list[PlannedFlow | PlannedRefresh] = [*plan.flows, *plan.refreshes]
        reads = [(one.flow.target, read.table) for one in planned for read in one.reads]
        for dataset in (name, *find_downstream([name], reads)):
            path = settings.storage.table(dataset)
            if any(one.flow.target == dataset for one in plan.refreshes):
                notes.append(f"{dataset.short}  view: the next run computes it again")
                views += [dataset] if is_table(path) else []
            elif not is_table(path):
                notes.append(f"{dataset.short}  not erased: its rows are outside of the storage")
            else:
                try:
                    rows = matching_rows(session, path, where).count()
                except Exception as error:
                    if dataset == name:
                        raise _invalid(where, name, error) from error
                    notes.append(
                        f"{dataset.short}  not erased, it does not have all columns of the condition: "
                        f"headrace erase {dataset.short} --where .."
                    )
                    continue
                steps.append(ErasureStep(dataset=dataset, part="table", path=path, where=where, rows=rows))
                steps += self._side_steps(session, dataset, where, notes)
                notes += self._unread(dataset, path)
        return ErasurePlan(
            table=name,
            where=where,
            steps=tuple(steps),
            notes=(*notes, *_states((name, *(step.dataset for step in steps)), plan), *_sources(name, plan)),
            views=tuple(views),
            final_at=datetime.now(UTC) + self._retention(steps),
            unfinished=any(map(self._was_interrupted, steps)),
        )

    def erase(self, planned: ErasurePlan) -> ErasurePlan:
        """Delete the rows. Return the plan with the numbers of rows that were deleted."""
        session = self._engine.session()
        names = list(dict.fromkeys(step.dataset for step in planned.steps))
        done: list[ErasureStep] = []
        with (
            held_leases(self._settings.storage, [*names, *planned.views]),
            logged_operation(self._settings, new_update(), "ERASE", names) as outcome,
        ):
            # If the process ends after a deletion, a repeated command finds no row to record it for.
            for view in planned.views if planned.rows else ():
                self._record(view, "table", awaits_refresh=True)
            for step in planned.steps:
                self._record(step.dataset, step.part, unfinished=True)
            # The condition is not logged: it can name the values to erase.
            for number, step in enumerate(planned.steps):
                done.append(replace(step, rows=self._execute(session, step)))
                reach("rows-erased", step.dataset.name, number)
                outcome["erased"] = sum(one.rows for one in done)
                self._record(step.dataset, step.part)
                close_erasure(lambda: session, step.path)
            for view in planned.views if any(one.rows for one in done) else ():
                self._record(view, "table", awaits_refresh=True)
        ended = replace(planned, steps=tuple(done), final_at=datetime.now(UTC) + self._retention(done))
        return self.finish(ended)

    def finish(self, erased: ErasurePlan) -> ErasurePlan:
        """Delete the old files and log entries that are due; returns the plan with what is left."""
        names = list(dict.fromkeys([*(step.dataset for step in erased.steps), *erased.views]))
        options = MaintenanceOptions(steps=("vacuum", "log"))
        kept = TableMaintenance(settings=self._settings, engine=self._engine, options=options).maintain(names)
        warnings = [f"{one.target.title}  {one.warning}" for one in kept if one.warning is not None]
        return replace(
            erased,
            notes=tuple(dict.fromkeys((*erased.notes, *warnings))),
            rest=tuple(one.rest for one in kept if one.rest is not None),
            unchecked=tuple(one.target.title for one in kept if one.warning is not None and one.rest is None),
        )

    def wait(self, erased: ErasurePlan) -> ErasurePlan:
        """Wait until nothing is left, and delete what can be deleted."""
        while erased.rest:
            due_s = min(one.due for one in erased.rest).timestamp() - time.time()
            # Readers may read, pins may end, and another process may delete the files.
            time.sleep(min(max(due_s, _POLL_S), _LONGEST_POLL_S))
            erased = self.finish(erased)
        return erased

    def _was_interrupted(self, step: ErasureStep) -> bool:
        table_id = self._engine.read_table(step.path).table_id
        found = load_erasure(self._settings.storage, DatasetTable(step.dataset, step.part), table_id)
        return found is not None and found.unfinished

    def _record(self, dataset: TableName, part: Part, **state: bool) -> None:
        storage, target = self._settings.storage, DatasetTable(dataset, part)
        record_erasure(storage, target, self._engine.read_table(target.path(storage)).table_id, **state)

    def _unread(self, dataset: TableName, path: Location) -> Iterator[str]:
        """The flows that have not read all rows of a table, so that they can still add rows that match."""
        table_id, now = self._engine.read_table(path).table_id, datetime.now(UTC)
        for one in find_holders(self._settings.storage, dataset, table_id):
            lags = one.reads_all or lag_seconds(one, path, versions(path), now) is not None
            if one.kind == "flow" and lags:
                yield (
                    f"flow {one.name} has not read all rows of {dataset.short}, and can add rows that match "
                    "later. First run it:   headrace run"
                )

    def _side_steps(
        self, session: SparkSession, dataset: TableName, where: str, notes: list[str]
    ) -> Iterator[ErasureStep]:
        """The rows in the quarantine and among the tombstones of a dataset."""
        for part in _SIDES:
            path = DatasetTable(dataset, part).path(self._settings.storage)
            if not is_table(path):
                continue
            try:
                rows = self._matching(session, dataset, part, where).count()
            except Exception as error:
                if part == "quarantine" or "UNRESOLVED_COLUMN" not in str(error):
                    raise
                # A tombstone has only the key of its row.
                continue
            yield ErasureStep(dataset=dataset, part=part, path=path, where=where, rows=rows)
            if part == "quarantine":
                unread = session.read.format("delta").load(str(path))
                count = unread.where("row IS NULL AND source.value IS NOT NULL").count()
                if count:
                    notes.append(
                        f"{dataset.short}, quarantine  {count:,} records were never decoded, so the "
                        f"condition cannot be checked: headrace quarantine show {dataset.short}"
                    )
                if count := self._rejected(session, dataset).where(f"{PROBLEM} IS NOT NULL").count():
                    notes.append(
                        f"{dataset.short}, quarantine  {counted(count, 'row')} have columns or types that "
                        "the table does not have, so the condition may miss them: "
                        f"headrace quarantine show {dataset.short}"
                    )

    def _matching(self, session: SparkSession, dataset: TableName, part: Part, where: str) -> DataFrame:
        """The rows of a quarantine or of tombstones that a condition on the dataset's columns matches. The
        hidden records of a history have all columns, tombstones only keys."""
        if part == "quarantine":
            return self._rejected(session, dataset).where(where).select(ID)
        rows = session.read.format("delta").load(
            str(DatasetTable(dataset, part).path(self._settings.storage))
        )
        names = [name for name in rows.columns if name.startswith("key_")]
        if ROW in rows.columns:
            found = rows.select(F.struct(*names, SEQUENCE).alias("__headrace_found"), f"{ROW}.*").where(where)
            return found.select("__headrace_found.*")
        keys = keys_of(self._engine.read_table(self._settings.storage.table(dataset)).properties)
        named = (rows[name].alias(key) for name, key in zip(names, keys, strict=True))
        return rows.select(*names, *named).where(where).select(*names)

    def _rejected(self, session: SparkSession, dataset: TableName) -> DataFrame:
        """The rejected rows of a dataset, with the columns of its table, `ID` and `PROBLEM`."""
        storage = self._settings.storage
        rows = session.read.format("delta").load(str(storage.quarantine(dataset)))
        schema = session.read.format("delta").load(str(storage.table(dataset))).schema
        return rows_of_json(rows.where("row IS NOT NULL"), schema)

    def _execute(self, session: SparkSession, step: ErasureStep) -> int:
        match step.part:
            case "table":
                return erase_rows(session, step.path, step.where)
            case "quarantine":
                ids = self._matching(session, step.dataset, step.part, step.where)
                return empty_rejected(session, step.path, ids.withColumnRenamed(ID, "id"))
            case "tombstones":
                return erase_matching(
                    session, step.path, self._matching(session, step.dataset, step.part, step.where)
                )
            case _:
                assert_never(step.part)

    def _retention(self, steps: Sequence[ErasureStep]) -> timedelta:
        """The longest time for which one of the tables keeps files."""
        policies = self._settings.maintenance
        found = [policies.of(one.dataset, self._engine.read_table(one.path).properties) for one in steps]
        return timedelta(seconds=max((one.retention_s for one in found), default=TablePolicy().retention_s))


def _states(names: Sequence[TableName], plan: Plan) -> Iterator[str]:
    """The flows that may have rows in the state of their checkpoints."""
    for one in plan.flows:
        if one.stateful and (one.flow.target in names or any(read.table in names for read in one.reads)):
            yield (
                f"the state of flow {one.flow.name} can have the rows until its watermark passes them:   "
                f"headrace full-refresh {one.flow.target.short}"
            )


def _sources(name: TableName, plan: Plan) -> Iterator[str]:
    """What still has the records that the rows were computed from."""
    root = plan.project.root
    for planned in plan.feeding(name):
        for source in planned.sources:
            if source.table is None:
                yield f"{source.title(root)} still has its records: a full refresh reads them again"
            else:
                yield f"{source.table.short}, which {name.short} reads, is not erased"


def _invalid(where: str, table: TableName, error: Exception) -> Exception:
    if type(error).__name__ not in ("AnalysisException", "ParseException"):
        return error
    text = first_line(error)
    return ReadConditionInvalidError(
        f"the condition cannot be evaluated on {table.short}: {where}",
        facts=[re.sub(r"^\[[A-Z0-9_.]+\] |\.? ?SQLSTATE: \w+", "", text).strip(), "nothing was changed"],
        remedies=[f"headrace read {table.short} --limit 1"],
        params={"dataset": str(table), "where": where},
    )
