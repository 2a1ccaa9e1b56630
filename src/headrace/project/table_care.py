"""Compacts and vacuums tables of a storage where that is due, and cleans their logs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from headrace.errors import HeadraceError, ReaderLagsError, RetentionTooShortError, SecondDriverError
from headrace.maintain.condition import TableCondition, examine_table
from headrace.maintain.holders import UNKNOWN, Holder, find_holders, lag_seconds
from headrace.maintain.log_cleanup import delete_log
from headrace.maintain.record import load_care, record_care
from headrace.maintain.vacuum import delete_stored
from headrace.model.care import SAFE_RETENTION_S, CarePolicy
from headrace.model.durations import duration_text
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.sizes import counted, size_text
from headrace.project.engine import Engine
from headrace.project.operations import logged_operation, new_update
from headrace.sinks.delta.compaction import compact_files
from headrace.sources.ranges import join_marks
from headrace.state.lease import held_leases
from headrace.state.ledger import Ledger
from headrace.storage.table_log import is_table
from headrace.storage.table_snapshot import load_snapshot

_LOG = logging.getLogger(__name__)

CareStep = Literal["optimize", "vacuum", "log"]
STEPS: tuple[CareStep, ...] = ("optimize", "vacuum", "log")
_BESIDE_S = 3600.0
"""With a shorter retention, files that a running flow has not committed yet could be deleted."""


@dataclass(frozen=True, kw_only=True)
class CareOptions:
    """What a command asks for.

    Args:
        steps: What may be done.
        dry_run: Whether nothing is changed.
        retention_s: The retention of files, in place of that of each table.
        allow_short_retention: Whether the retention may be below 7 days.
        ignore_readers: The flows whose positions do not count.
    """

    steps: Sequence[str] = STEPS
    dry_run: bool = False
    retention_s: float | None = None
    allow_short_retention: bool = False
    ignore_readers: Sequence[str] = ()

    def without(self, steps: Sequence[str]) -> CareOptions:
        """The options without some steps."""
        return replace(self, steps=[one for one in self.steps if one not in steps])

    def applied_to(self, policy: CarePolicy) -> CarePolicy:
        """The policy of a table, with what the command says."""
        if self.retention_s is not None:
            policy = replace(policy, retention_s=self.retention_s, allow_short_retention=False)
        if self.allow_short_retention:
            policy = replace(policy, allow_short_retention=True)
        return policy


@dataclass(frozen=True, kw_only=True)
class TableCare:
    """What was done to one table.

    Args:
        table: The table.
        before: Its condition before; ``None`` if it could not be read.
        after: Its condition after.
        steps: What was done; with a dry run, what is due.
        warning: Why something that was due was not done.
        error: Why something that was due was refused.
        dry_run: Whether nothing was changed.
        duration_s: The time that the work has taken.
        conflicts: How often the compaction was repeated because another writer had committed.
    """

    table: TableName
    before: TableCondition | None = None
    after: TableCondition | None = None
    steps: tuple[CareStep, ...] = ()
    warning: str | None = None
    error: HeadraceError | None = None
    dry_run: bool = False
    duration_s: float = 0.0
    conflicts: int = 0

    def lines(self) -> Iterator[str]:
        """What was done, with files and bytes before and after: one line for each fact."""
        name, before, after = self.table.short, self.before, self.after
        if before and after and self.dry_run:
            yield from (f"{name}  {line}" for line in _due_lines(before, self.steps))
        elif before and after:
            words = {"optimize": "compacted", "vacuum": "vacuumed", "log": "log cleaned"}
            if done := " and ".join(words[one] for one in self.steps):
                yield f"{name}  {done}: {_change(before, after)} in {duration_text(self.duration_s)}"
            if "log" in self.steps:
                was, now = len(before.snapshot.commits), len(after.snapshot.commits)
                yield f"{name}  log: {was:,} -> {now:,} commits, from version {before.log.first} on"
            if after.vacuum.held:
                yield f"{name}  {_held_line(after)}"
        if self.warning is not None:
            yield f"{name}  {self.warning}"

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        plan = self.before
        return {
            "table": str(self.table),
            "steps": list(self.steps),
            "dry_run": self.dry_run,
            "before": None if self.before is None else self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
            "vacuum": None if plan is None else plan.vacuum.to_json(),
            "log": None if plan is None else plan.log.to_json(),
            "duration_s": round(self.duration_s, 3),
            "conflicts": self.conflicts,
            "warning": self.warning,
            "error": None if self.error is None else self.error.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class TableKeeper:
    """Takes care of tables. The failure of one never raises: it becomes a warning, or an error of its result.

    Args:
        settings: The settings of the pipeline.
        engine: Starts Spark if a table is compacted.
        options: What may be done.
    """

    settings: ProjectSettings
    engine: Engine
    options: CareOptions = field(default_factory=CareOptions)

    def keep(
        self, names: Sequence[TableName], report: Callable[[TableCare], None] = lambda _: None
    ) -> tuple[TableCare, ...]:
        """Take care of tables where that is due.

        Args:
            names: The tables; those that do not exist are left out.
            report: Takes the result of each table at once.
        """
        found = []
        for name in names:
            if is_table(self.settings.storage.table(name)):
                found.append(self._keep(name))
                report(found[-1])
        return tuple(found)

    def _keep(self, name: TableName) -> TableCare:
        care = TableCare(table=name, dry_run=self.options.dry_run)
        try:
            condition = self._examine(name)
            care = replace(care, before=condition, after=condition)
            due = self._due(condition)
            if self.options.dry_run:
                return self._judged(replace(care, steps=due), condition)
            care = self._work(care, condition) if due else care
        except HeadraceError as error:
            care = replace(care, warning=f"not maintained: {error.summary}", error=_if_refused(error))
        except Exception as error:
            _LOG.info("maintenance of %s failed", name, exc_info=True)
            reason = str(error).strip().partition("\n")[0]
            care = replace(care, warning=f"not maintained: {type(error).__name__}: {reason}")
        return care

    def _examine(self, name: TableName) -> TableCondition:
        storage = self.settings.storage
        path = storage.table(name)
        snapshot = load_snapshot(path)
        policy = self.options.applied_to(self.settings.maintenance.of(name, snapshot.properties))
        ignored = self.options.ignore_readers
        holders = [
            one
            for one in find_holders(storage, name, snapshot.table_id)
            if one.kind != "flow" or one.name not in ignored
        ]
        return examine_table(path, policy, holders, snapshot)

    def _due(self, condition: TableCondition) -> tuple[CareStep, ...]:
        policy = condition.policy
        due = {
            "optimize": policy.compact and condition.needs_compaction,
            "vacuum": policy.vacuum and (condition.needs_vacuum or bool(condition.vacuum.held)),
            "log": condition.needs_log_cleanup,
        }
        return tuple(one for one in STEPS if due[one] and one in self.options.steps)

    def _judged(self, care: TableCare, condition: TableCondition) -> TableCare:
        """The result of a dry run, with the refusal of its vacuum."""
        if "vacuum" in care.steps:
            try:
                self._check_vacuum(care.table, condition)
            except HeadraceError as error:
                return replace(care, warning=f"not vacuumed: {error.summary}", error=error)
        return care

    def _work(self, care: TableCare, condition: TableCondition) -> TableCare:
        """Do what is due: under the leases of the table's flows, or else what can run beside them."""
        name, storage = care.table, self.settings.storage
        due = self._due(condition)
        with ExitStack() as leases:
            try:
                leases.enter_context(held_leases(storage, [name]))
            except SecondDriverError as error:
                if condition.policy.retention_s < _BESIDE_S:
                    raise
                if "optimize" in due:
                    care = replace(care, warning=f"not compacted: {error.summary}")
                due = tuple(one for one in due if one != "optimize")
            else:
                self._fold_ledgers(name, condition)
                condition = self._examine(name)
                due = self._due(condition)
            if not due:
                return care
            try:
                with logged_operation(self.settings, new_update(), "MAINTENANCE", [name]) as outcome:
                    care = self._do(care, due)
                    outcome.update({key: value for key, value in care.to_json().items() if key != "table"})
                    if care.error is not None:
                        # For the event log: what was done before the refusal stays in the result.
                        raise care.error
            except HeadraceError as error:
                if error is not care.error:
                    raise
        return care

    def _do(self, care: TableCare, due: Sequence[CareStep]) -> TableCare:
        name, storage = care.table, self.settings.storage
        path, began = storage.table(name), time.monotonic()
        if "optimize" in due:
            policy = self._examine(name).policy
            done = compact_files(self.engine.session(), path, policy, z_order=policy.z_order)
            record_care(storage, name, "compacted", done.to_json())
            care = replace(care, steps=("optimize",), conflicts=sum(done.conflicts.values()))
        condition = self._examine(name)
        if "vacuum" in due:
            try:
                self._check_vacuum(name, condition)
            except HeadraceError as error:
                care = replace(care, warning=f"not vacuumed: {error.summary}", error=error)
            else:
                # First it writes what can no longer be pinned, then it reads the pins again.
                before = load_care(storage, name).get("vacuumed", {}).get("readable_from", 0)
                readable_from = max(int(before), condition.vacuum.readable_from)
                record_care(
                    storage, name, "vacuumed", {**condition.vacuum.to_json(), "readable_from": readable_from}
                )
                allowed = {one.path for one in self._examine(name).vacuum.expired}
                if expired := [one for one in condition.vacuum.expired if one.path in allowed]:
                    delete_stored(path, expired)
                    care = replace(care, steps=(*care.steps, "vacuum"))
        if "log" in due and condition.log.files:
            delete_log(path, condition.log)
            record_care(storage, name, "log", condition.log.to_json())
            care = replace(care, steps=(*care.steps, "log"))
        return replace(care, after=self._examine(name), duration_s=time.monotonic() - began)

    def _fold_ledgers(self, name: TableName, condition: TableCondition) -> None:
        """Give the ledgers the commits that they do not have yet: nothing waits for them then."""
        storage = self.settings.storage
        for flow in storage.checkpoints(name).list_folders():
            ledger = Ledger(storage.ledger(name, flow), name, flow)
            ledger.fold(storage.table(name), condition.snapshot.table_id, join_marks)

    def _check_vacuum(self, name: TableName, condition: TableCondition) -> None:
        """Check that a vacuum is allowed.

        Raises:
            RetentionTooShortError: The retention is below 7 days, and nobody has allowed it.
            ReaderLagsError: A flow has not read for a long time.
        """
        policy = condition.policy
        if policy.retention_s < SAFE_RETENTION_S and not policy.allow_short_retention:
            raise RetentionTooShortError(
                f"a retention of {duration_text(policy.retention_s)} is below 7 days",
                facts=("no file was deleted",),
                remedies=self._short_remedies(name),
                params={"table": str(name), "retention_s": policy.retention_s},
            )
        now = datetime.now(UTC)
        for holder in condition.vacuum.holders:
            lag = lag_seconds(holder, condition.table, condition.snapshot, now)
            if lag is not None and lag > policy.reader_lag_s:
                raise _lags(name, holder, lag, condition)

    def _short_remedies(self, name: TableName) -> tuple[str, ...]:
        given = self.options.retention_s
        if given is not None:
            return (f"allow it: repeat the command with --allow-short-retention, for {name.short} alone",)
        return (
            f"allow it:   headrace maintain {name.short} --allow-short-retention",
            "or set `allow_short_retention: true` beside `retention` in the spec",
        )


def _lags(name: TableName, holder: Holder, lag_s: float, condition: TableCondition) -> ReaderLagsError:
    is_unknown = holder.version == UNKNOWN
    at = "to an unknown version" if is_unknown else f"up to version {(holder.first_unread or 1) - 1}"
    held = condition.vacuum
    return ReaderLagsError(
        f"flow {holder.name} has commits of {name.short} to read that are {duration_text(lag_s)} old; "
        f"the limit (`reader_lag`) is {duration_text(condition.policy.reader_lag_s)}",
        facts=(
            f"it has read {at}; the table is at version {condition.snapshot.version}",
            f"for it, {_files(len(held.held), held.held_bytes)} are kept",
            "no file was deleted",
        ),
        remedies=(
            "run the flow:   headrace run",
            f"or ignore the flow; it may need a full refresh later:   headrace maintain {name.short} "
            f"--ignore-reader {holder.name}",
        ),
        params={"table": str(name), "flow": holder.name, "lag_s": round(lag_s)},
    )


def _if_refused(error: HeadraceError) -> HeadraceError | None:
    return error if isinstance(error, ReaderLagsError | RetentionTooShortError) else None


def _due_lines(condition: TableCondition, due: Sequence[CareStep]) -> Iterator[str]:
    """What a command would do."""
    if not due:
        yield f"nothing is due: {_files(condition.files, condition.size_bytes)}"
    if "optimize" in due:
        rest = condition.files - condition.foldable
        yield f"compaction is due: {_files(condition.files, condition.size_bytes)} -> about {max(rest, 1):,}"
    if condition.vacuum.expired and "vacuum" in due:
        found = condition.vacuum
        yield f"a vacuum would delete {_files(len(found.expired), found.expired_bytes)}"
    if condition.vacuum.held and "vacuum" in due:
        yield _held_line(condition)
    if "log" in due:
        yield f"{condition.log.commits:,} commits before version {condition.log.first} would be deleted"


def _held_line(condition: TableCondition) -> str:
    found = condition.vacuum
    names = ", ".join(map(str, found.holders))
    return f"a vacuum keeps {_files(len(found.held), found.held_bytes)} for {names}"


def _change(before: TableCondition, after: TableCondition) -> str:
    pairs = [
        ("", (before.files, before.size_bytes), (after.files, after.size_bytes)),
        (
            "; in the storage ",
            (before.stored_files, before.stored_bytes),
            (after.stored_files, after.stored_bytes),
        ),
    ]
    return "".join(f"{where}{_files(*one)} -> {_files(*two)}" for where, one, two in pairs)


def _files(number: int, size: int) -> str:
    return f"{counted(number, 'file')} ({size_text(size)})"
