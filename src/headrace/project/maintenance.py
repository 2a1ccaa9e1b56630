"""Compacts and vacuums tables of a storage where that is due, and cleans their logs."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

from headrace.errors import (
    HeadraceError,
    ReaderLagsError,
    RetentionTooShortError,
    SecondDriverError,
    first_line,
)
from headrace.maintain.checkpoints import ReplacedCheckpoint, find_replaced
from headrace.maintain.condition import (
    MIN_RETENTION_DURING_RUNS_S,
    UNUSED,
    TableCondition,
    check_vacuum,
    delete_log,
    examine_table,
    is_ordering_due,
    record_ordering,
    vacuum_table,
)
from headrace.maintain.erasures import ErasedRest, find_rest, finish_erasure, is_due
from headrace.maintain.holders import (
    DatasetTable,
    Role,
    find_holders,
    load_policy,
    record_maintenance,
    secondary_tables,
)
from headrace.model.maintenance import SAFE_RETENTION_S
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.texts import files_text, html_table, typed_duration
from headrace.project.engine import Engine
from headrace.project.operations import logged_operation, new_update
from headrace.runtime.gateway import release_unused
from headrace.sinks.delta.compaction import compact_files
from headrace.sinks.delta.erase import close_erasure
from headrace.sinks.delta.reader import DeltaCommits
from headrace.sources.registry import join_marks
from headrace.state.lease import held_leases
from headrace.state.ledger import Ledger
from headrace.storage.table_log import is_table
from headrace.storage.table_snapshot import load_snapshot

_LOG = logging.getLogger(__name__)

MaintenanceStep = Literal["optimize", "vacuum", "log", "checkpoints"]
STEPS: tuple[MaintenanceStep, ...] = ("optimize", "vacuum", "log", "checkpoints")


@dataclass(frozen=True, kw_only=True)
class MaintenanceOptions:
    steps: Sequence[str] = STEPS  # what may be done
    dry_run: bool = False  # whether nothing is changed
    retention_s: float | None = None
    allow_short_retention: bool = False  # whether the retention may be below 7 days
    ignore_readers: Sequence[str] = ()  # the flows for which no files and commits are kept

    def without(self, steps: Sequence[str]) -> MaintenanceOptions:
        return replace(self, steps=[one for one in self.steps if one not in steps])


@dataclass(frozen=True, kw_only=True)
class MaintenanceResult:
    table: TableName
    role: Role = "table"  # the dataset's own table, its quarantine table or its tombstone table
    before: TableCondition | None = None  # its condition before; ``None`` if it could not be read
    after: TableCondition | None = None
    steps: tuple[MaintenanceStep, ...] = ()  # what was done; with a dry run, what is due
    warning: str | None = None  # why something that was due was not done
    error: HeadraceError | None = None  # why something that was due was refused
    dry_run: bool = False  # whether nothing was changed
    duration_s: float = 0.0
    conflicts: int = 0  # how often the compaction was repeated because another writer had committed
    # The replaced checkpoints of its flows that were removed, or that a dry run would remove.
    replaced: tuple[ReplacedCheckpoint, ...] = ()
    rest: ErasedRest | None = None  # what the table still has of erased rows

    @property
    def target(self) -> DatasetTable:
        return DatasetTable(self.table, self.role)

    def __repr__(self) -> str:
        return f"<MaintenanceResult of {self.target.title}: {', '.join(self.steps) or 'nothing to do'}>"

    def _repr_html_(self) -> str:
        return html_table(self.target.title, (), (), self.lines())

    def lines(self) -> Iterator[str]:
        """What was done, with files and bytes before and after: one line for each fact."""
        name, before, after = self.target.title, self.before, self.after
        if before and after and self.dry_run:
            yield from (f"{name}  {line}" for line in _due_lines(before, self.steps))
            for one in self.replaced:
                yield f"{name}  {_replaced_line(one)} would be removed"
        elif before and after:
            words = {"optimize": "compacted", "vacuum": "vacuumed", "log": "log cleaned", "checkpoints": ""}
            if done := " and ".join(words[one] for one in self.steps if words[one]):
                yield f"{name}  {done}: {_change(before, after)} in {self.duration_s:.1f} s"
            if "log" in self.steps:
                was, now = len(before.snapshot.commits), len(after.snapshot.commits)
                yield f"{name}  log: {was:,} -> {now:,} commits, from version {before.log.first} on"
            for one in self.replaced:
                yield f"{name}  {_replaced_line(one)} removed"
            if after.vacuum.held:
                yield f"{name}  {_held_line(after)}"
        if self.rest is not None:
            yield from self.rest.lines()
        if self.warning is not None and self.error is None:
            yield f"{name}  {self.warning}"

    def to_json(self) -> dict[str, Any]:
        plan = self.before
        return {
            "dataset": str(self.table),
            "part": self.role,
            "steps": list(self.steps),
            "dry_run": self.dry_run,
            "before": None if self.before is None else self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
            "vacuum": None if plan is None else plan.vacuum.to_json(),
            "log_cleanup": None if plan is None else plan.log.to_json(),
            "duration_s": round(self.duration_s, 3),
            "conflicts": self.conflicts,
            "erased": None if self.rest is None else self.rest.to_json(),
            "replaced_checkpoints": [one.to_json() for one in self.replaced],
            "warning": self.warning,
            "error": None if self.error is None else self.error.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class TableMaintenance:
    """Maintains tables. A failure never raises: it becomes a warning, or an error of the result."""

    settings: ProjectSettings
    engine: Engine  # starts Spark if a table is compacted
    options: MaintenanceOptions = field(default_factory=MaintenanceOptions)  # what may be done
    # Returns whether to stop before the next table.
    is_stopped: Callable[[], bool] = lambda: False

    def maintain(
        self, names: Sequence[TableName], report: Callable[[MaintenanceResult], None] = lambda _: None
    ) -> tuple[MaintenanceResult, ...]:
        """Maintain tables where that is due; those that do not exist are left out."""
        found: list[MaintenanceResult] = []
        storage = self.settings.storage
        for name in names:
            if is_table(storage.table(name)):
                for target in (DatasetTable(name), *secondary_tables(storage, name)):
                    if self.is_stopped():
                        return tuple(found)
                    found.append(self._maintain(target))
                    report(found[-1])
                    release_unused()
        return tuple(found)

    def _maintain(self, target: DatasetTable) -> MaintenanceResult:
        name, storage = target.title, self.settings.storage
        result = MaintenanceResult(table=target.dataset, role=target.role, dry_run=self.options.dry_run)
        try:
            condition = self._examine(target)
            result = replace(result, before=condition, after=condition)
            due = self._due(target, condition)
            result = replace(result, rest=find_rest(storage, target, condition))
            if self.options.dry_run:
                found = tuple(self._replaced(target, condition))
                return self._judged(replace(result, steps=due, replaced=found), condition)
            result = self._work(result, condition) if due else result
        except HeadraceError as error:
            refused = error if isinstance(error, ReaderLagsError | RetentionTooShortError) else None
            result = replace(result, warning=f"not maintained: {error.summary}", error=refused)
        except Exception as error:
            _LOG.info("maintenance of %s failed", name, exc_info=True)
            reason = first_line(error)
            result = replace(result, warning=f"not maintained: {type(error).__name__}: {reason}")
        return result

    def _examine(self, target: DatasetTable) -> TableCondition:
        storage = self.settings.storage
        path = target.path(storage)
        snapshot = load_snapshot(path)
        policy = load_policy(storage, self.settings.maintenance, target, snapshot)
        options = self.options
        if options.retention_s is not None:
            policy = replace(policy, retention_s=options.retention_s, allow_short_retention=False)
        if options.allow_short_retention:
            policy = replace(policy, allow_short_retention=True)
        holders = [
            one
            for one in find_holders(storage, target.dataset, snapshot.table_id, target.role)
            if one.kind != "flow" or one.name not in options.ignore_readers
        ]
        return examine_table(path, policy, holders, snapshot)

    def _replaced(self, target: DatasetTable, condition: TableCondition) -> Iterator[ReplacedCheckpoint]:
        """The checkpoints of a table's flows that were replaced longer ago than the retention of the log."""
        if target.role == "table" and "checkpoints" in self.options.steps:
            since = datetime.now(UTC) - timedelta(seconds=condition.policy.log_retention_s)
            yield from find_replaced(self.settings.storage, target.dataset, condition.snapshot, since)

    def _due(self, target: DatasetTable, condition: TableCondition) -> tuple[MaintenanceStep, ...]:
        policy, storage = condition.policy, self.settings.storage
        is_unordered = is_ordering_due(storage, target.dataset, condition.snapshot, policy)
        is_erased = is_due(find_rest(storage, target, condition))
        due = {
            "checkpoints": any(self._replaced(target, condition)),
            "optimize": policy.compact and (condition.needs_compaction or is_unordered),
            "vacuum": (policy.vacuum or is_erased)
            and (condition.needs_vacuum or bool(condition.vacuum.held)),
            "log": condition.needs_log_cleanup or is_erased,
        }
        return tuple(one for one in STEPS if due[one] and one in self.options.steps)

    def _judged(self, result: MaintenanceResult, condition: TableCondition) -> MaintenanceResult:
        """The result of a dry run, with the refusal of its vacuum."""
        if "vacuum" in result.steps:
            try:
                self._check_vacuum(result.target, condition)
            except HeadraceError as error:
                return _not_vacuumed(result, error)
        return result

    def _work(self, result: MaintenanceResult, condition: TableCondition) -> MaintenanceResult:
        """Do what is due: under the leases of the table's flows, or else what can run beside them."""
        target, storage = result.target, self.settings.storage
        due = self._due(target, condition)
        with ExitStack() as leases:
            try:
                leases.enter_context(held_leases(storage, [target.dataset]))
            except SecondDriverError as error:
                if condition.policy.retention_s < MIN_RETENTION_DURING_RUNS_S:
                    raise
                # The running process compacts the quarantine and tombstone tables itself.
                if "optimize" in due and target.role == "table":
                    result = replace(result, warning=f"not compacted: {error.summary}; stop it first")
                due = tuple(one for one in due if one not in ("optimize", "checkpoints"))
            else:
                if target.role == "table":
                    # What a ledger holds keeps no entry of the log from being deleted.
                    for flow in storage.checkpoints(target.dataset).list_folders():
                        ledger = Ledger(storage.ledger(target.dataset, flow), target.dataset, flow)
                        commits = DeltaCommits(storage.table(target.dataset))
                        ledger.fold(commits, condition.snapshot.table_id, join_marks)
                condition = self._examine(target)
                due = self._due(target, condition)
            return self._logged(result, due) if due else result

    def _logged(self, result: MaintenanceResult, due: Sequence[MaintenanceStep]) -> MaintenanceResult:
        """Do the steps that are due, and write an event to the event log."""
        try:
            with logged_operation(self.settings, new_update(), "MAINTENANCE", [result.table]) as outcome:
                result = self._do(result, due)
                outcome.update({key: value for key, value in result.to_json().items() if key != "table"})
                if result.error is not None:
                    # The event log gets the error; the result keeps the steps that were done before it.
                    raise result.error
        except HeadraceError as error:
            if error is not result.error:
                raise
        return result

    def _do(self, result: MaintenanceResult, due: Sequence[MaintenanceStep]) -> MaintenanceResult:
        target, storage = result.target, self.settings.storage
        name, role = target.dataset, target.role
        path, began = target.path(storage), time.monotonic()
        if "optimize" in due:
            found = self._examine(target)
            policy, session = found.policy, self.engine.session()
            done = compact_files(session, path, policy, z_order=policy.z_order)
            record_maintenance(storage, name, "compacted", done.to_json(), role)
            record_ordering(storage, name, found.snapshot, policy)
            result = replace(result, steps=("optimize",), conflicts=sum(done.conflicts.values()))
        condition = self._examine(target)
        # A compaction may have replaced files that the retention of the command does not keep.
        due = (*due, *(one for one in self._due(target, condition) if one in ("vacuum", "log")))
        if "vacuum" in due:
            try:
                self._check_vacuum(target, condition)
            except HeadraceError as error:
                result = _not_vacuumed(result, error)
            else:
                if vacuum_table(storage, target, condition, lambda: self._examine(target)):
                    result = replace(result, steps=(*result.steps, "vacuum"))
        if "log" in due:
            # A reader or a pin may have come during the vacuum.
            condition = self._examine(target)
        if "log" in due and condition.log.files:
            delete_log(path, condition.log)
            record_maintenance(storage, name, "log", condition.log.to_json(), role)
            result = replace(result, steps=(*result.steps, "log"))
        if "log" in due:
            close = partial(close_erasure, self.engine.session)
            rest, is_cut = finish_erasure(storage, target, lambda: self._examine(target), close)
            done_steps = result.steps if "log" in result.steps or not is_cut else (*result.steps, "log")
            result = replace(result, rest=rest, steps=done_steps)
        if "checkpoints" in due:
            replaced = tuple(self._replaced(target, condition))
            for one in replaced:
                one.path.delete_folder()
            result = replace(result, steps=(*result.steps, "checkpoints"), replaced=replaced)
        duration_s = result.duration_s + time.monotonic() - began
        return replace(result, after=self._examine(target), duration_s=duration_s)

    def _check_vacuum(self, target: DatasetTable, condition: TableCondition) -> None:
        given = self.options.retention_s
        check_vacuum(target, condition, () if given is None else self._allowing(target, given))

    def _allowing(self, target: DatasetTable, retention_s: float) -> tuple[str, ...]:
        """The remedies for a retention that is too short: the command for this table, with a longer retention
        or the permission."""
        chosen = self.options.steps if set(self.options.steps) != set(STEPS) else ()
        words = [target.dataset.short, *(word for step in chosen for word in ("--only", step))]
        words += [word for flow in self.options.ignore_readers for word in ("--ignore-reader", flow)]
        command, given = f"headrace maintain {shlex.join(words)}", typed_duration(retention_s)
        return (
            f"keep the files of 7 days:   {command} --retain {typed_duration(SAFE_RETENTION_S)}",
            f"{UNUSED}:   {command} --retain {given} --allow-short-retention",
        )


def _due_lines(condition: TableCondition, due: Sequence[MaintenanceStep]) -> Iterator[str]:
    if not due:
        yield f"nothing is due: {files_text(condition.files, condition.size_bytes)}"
    if "optimize" in due and not condition.needs_compaction:
        held = files_text(condition.files, condition.size_bytes)
        yield f"ordering by {', '.join(condition.policy.z_order)} is due: {held}"
    elif "optimize" in due:
        rest = condition.files - condition.foldable
        held = files_text(condition.files, condition.size_bytes)
        yield f"compaction is due: {held} -> about {max(rest, 1):,}"
    if condition.vacuum.expired and "vacuum" in due:
        found = condition.vacuum
        yield f"a vacuum would delete {files_text(len(found.expired), found.expired_bytes)}"
    if condition.vacuum.held and "vacuum" in due:
        yield _held_line(condition)
    if "log" in due:
        yield f"{condition.log.commits:,} commits before version {condition.log.first} would be deleted"


def _replaced_line(one: ReplacedCheckpoint) -> str:
    size = files_text(one.files, one.size_bytes)
    return f"checkpoint {one.path.name} of flow {one.flow}, replaced on {one.replaced:%Y-%m-%d}, {size}"


def _held_line(condition: TableCondition) -> str:
    found = condition.vacuum
    names = ", ".join(map(str, found.holders))
    return f"a vacuum keeps {files_text(len(found.held), found.held_bytes)} for {names}"


def _change(before: TableCondition, after: TableCondition) -> str:
    pairs = [
        ("", (before.files, before.size_bytes), (after.files, after.size_bytes)),
        (
            "; in the storage ",
            (before.stored_files, before.stored_bytes),
            (after.stored_files, after.stored_bytes),
        ),
    ]
    return "".join(f"{where}{files_text(*one)} -> {files_text(*two)}" for where, one, two in pairs)


def _not_vacuumed(result: MaintenanceResult, error: HeadraceError) -> MaintenanceResult:
    why = error.summary.removeprefix(f"{result.target.title}: ")
    return replace(result, warning=f"not vacuumed: {why}", error=error)
