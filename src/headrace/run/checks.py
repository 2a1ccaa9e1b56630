"""Runs the checks of a whole dataset after each batch or refresh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.contracts.expectations import run_check
from headrace.errors import DatasetCheckFailedError
from headrace.model.declarations import DatasetCheck
from headrace.model.events import DatasetChecked, Emitter
from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.table_log import is_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class DatasetChecks:
    """The checks of one dataset."""

    dataset: TableName
    flow: str  # the flow or view after whose batches or refreshes they run
    checks: Sequence[DatasetCheck]
    storage: Storage
    update: str
    emit: Emitter

    def run(self, session: SparkSession) -> None:
        """Run all checks, and report each.

        Raises:
            DatasetCheckFailedError: A check that stops the flow failed.
        """
        failed: list[tuple[DatasetCheck, str]] = []
        for check in self.checks:
            like = TableName.parse(check.like, self.dataset.schema)
            rows = self._read(session, self.dataset)
            if rows is None:
                continue
            outcome = run_check(check, rows, self._read(session, like) if check.like else None)
            self.emit(
                DatasetChecked(
                    update=self.update,
                    flow=self.flow,
                    dataset=self.dataset,
                    check=check.name,
                    passed=outcome.passed,
                    fact=outcome.fact,
                )
            )
            if check.fails and not outcome.passed:
                failed.append((check, outcome.fact))
        if failed:
            check, fact = failed[0]
            raise DatasetCheckFailedError(
                f"{self.dataset.short} fails the check `{check.name}`",
                location=check.location,
                facts=(fact, "its rows are committed"),
                remedies=("correct its rows or its sources, and run again:   headrace run",),
                params={"dataset": str(self.dataset), "checks": [one.name for one, _ in failed]},
            )

    def _read(self, session: SparkSession, name: TableName) -> DataFrame | None:
        path = self.storage.table(name)
        return session.read.format("delta").load(str(path)) if is_table(path) else None
