"""Runs the checks of a whole dataset: for a view after each refresh, for a table at intervals."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.contracts.expectations import run_check
from headrace.errors import DatasetCheckFailedError, HeadraceError
from headrace.model.declarations import DatasetCheck
from headrace.model.event_forms import Emitter
from headrace.model.names import TableName
from headrace.model.table_events import DatasetChecked
from headrace.run.stop import StopSignal, cancelled_at
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import is_table, newest_version

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 60.0
"""Minimum seconds between two rounds of checks of a table."""
_SHARE = 0.05
"""The highest share of the time that checks take: they read the whole table."""
UNCHECKED = "unchecked.json"
"""A file in a flow's ledger: there are rows that were not checked, or a check that stops the flow fails."""


@dataclass(kw_only=True)
class DatasetChecks:
    dataset: TableName
    flow: str  # the flow or view after whose batches or refreshes they run
    checks: Sequence[DatasetCheck]
    storage: Storage
    update: str
    emit: Emitter
    _next_s: float = field(default=0.0, init=False)
    _is_unchecked: bool = field(default=False, init=False)
    _noting: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while the flag and the file are changed: the batch notes its rows in another thread."""

    def committed(self) -> None:
        """Note that the table has rows that were not checked."""
        with self._noting:
            if self.checks and not self._is_unchecked:
                self._is_unchecked = True
                self._record(unchecked=True)

    def run_due(self, session: SparkSession, stop: StopSignal, *, now: bool = False) -> None:
        """Run the checks of a table if rows were committed since, and it is time.

        The next run repeats checks that a stop has cancelled. `now`: whether it is time in any case, since
        the query has ended.
        """
        began = time.monotonic()
        if not self._is_unchecked or (began < self._next_s and not now):
            return
        # What is committed from here on is checked the next time.
        self._is_unchecked = False
        try:
            with cancelled_at(stop, session):
                self.run(session)
        except Exception as error:
            self._is_unchecked = True
            if not stop.requested or isinstance(error, HeadraceError):
                raise
            _LOG.info("the checks of %s were stopped", self.dataset, exc_info=error)
            return
        ended = time.monotonic()
        self._next_s = ended + max(_INTERVAL_S, (ended - began) / _SHARE)
        with self._noting:
            if not self._is_unchecked:
                self._record(unchecked=False)

    def run_left(self, session: SparkSession, stop: StopSignal) -> None:
        """Run the checks that the flow's last run has not run, or that have stopped it."""
        if not self._file.exists():
            return
        if any(check.fails for check in self.checks):
            self._is_unchecked = True
            self.run_due(session, stop, now=True)
        else:
            self._record(unchecked=False)

    @property
    def _file(self) -> Location:
        return self.storage.ledger(self.dataset, self.flow) / UNCHECKED

    def _record(self, *, unchecked: bool) -> None:
        """Record for the next run whether there are rows that were not checked."""
        try:
            if not unchecked:
                self._file.delete()
            elif any(check.fails for check in self.checks):
                self._file.replace_json({"headrace": 1})
        except (OSError, HeadraceError) as error:
            _LOG.warning("flow %s: the file %s was not written: %s", self.flow, self._file, error)

    def run(self, session: SparkSession) -> None:
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
            version = newest_version(self.storage.table(self.dataset))
            short = self.dataset.short
            again = f"correct the sources, then read them again:   headrace full-refresh {short}"
            if check.kind != "unique":
                again = "correct the rows of the table, then run again:   headrace run"
            raise DatasetCheckFailedError(
                f"{short} fails the check `{check.name}`",
                location=check.location,
                facts=(fact, f"the rows of {short} are committed (v{version})"),
                remedies=(
                    again,
                    "or only warn: remove `fail` from the check, then run again:   headrace run",
                ),
                params={"dataset": str(self.dataset), "checks": [one.name for one, _ in failed]},
            )

    def _read(self, session: SparkSession, name: TableName) -> DataFrame | None:
        path = self.storage.table(name)
        return session.read.format("delta").load(str(path)) if is_table(path) else None
