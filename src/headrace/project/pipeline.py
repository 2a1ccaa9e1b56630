"""A pipeline as a library: load, plan, preview, run, verify. The command line is a thin shell over it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.declare.spec import load_project
from headrace.model.event_forms import Emitter
from headrace.model.project import PREVIEW_RECORDS, ProjectSettings
from headrace.model.remedies import ChosenStart, Remedies
from headrace.plan.modes import REAL_SOURCES, SourceOverrides
from headrace.project.engine import Engine
from headrace.project.stored_pipeline import StoredPipeline
from headrace.project.updating import Update
from headrace.storage.layout import check_complete

if TYPE_CHECKING:
    from headrace.observe.log import LogSettings
    from headrace.plan.stages import Plan
    from headrace.project.erasing import Eraser, ErasurePlan
    from headrace.project.maintenance import MaintenanceOptions, MaintenanceResult
    from headrace.project.orphans import OrphanedTable
    from headrace.project.preview import Preview
    from headrace.project.quarantine import Quarantine
    from headrace.project.refresh import RefreshPlan, ResetPlan, Resetter
    from headrace.run.schedule import RunResult
    from headrace.run.stop import StopSignal
    from headrace.verify.report import Proof


class Pipeline(StoredPipeline):
    """A pipeline on disk.

    One object serves one thread at a time. The first method that needs Spark starts it, or takes the
    classic session that the process already has; `close` stops what was started. All methods raise
    `HeadraceError` with a code. `UsageError`: the pipeline or an argument is wrong. `SetupError`: the machine
    lacks something. `RunError`: the work failed; its subclass `RefusedError`: records could be lost or
    duplicated. `TransientError`: try again. Only `run(progress=True)` prints.

    Args:
        settings: The settings of the spec; `load` reads them.
        overrides: The rows of a test in place of sources; `headrace.testing` creates them.

    Example:
        >>> from headrace import Pipeline
        >>> with Pipeline.load("shop") as pipeline:  # doctest: +SKIP
        ...     pipeline.run()
        ...     assert pipeline.verify().proven
    """

    def __init__(self, settings: ProjectSettings, overrides: SourceOverrides = REAL_SOURCES) -> None:
        check_complete(settings.storage.root)
        super().__init__(settings, Engine(settings, overrides))

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        *,
        profile: str | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """Read a pipeline's spec; its Python files run with each `plan`, `preview` and `run`.

        Args:
            path: Its folder or spec file; by default found from the current folder upward.
            profile: The profile's name; by default ``HEADRACE_PROFILE``, else ``dev``.
            overrides: Values for keys of the spec, by dotted name; they have priority over spec and profile.

        Example:
            >>> Pipeline.load("shop", profile="prod", overrides={"storage": "/tmp/x"})  # doctest: +SKIP
        """
        found = None if path is None else Path(path)
        return cls(load_project(found, profile=profile, overrides=overrides or {}))

    def __repr__(self) -> str:
        settings = self.settings
        return f"<Pipeline {settings.name}: profile {settings.profile}, storage {settings.storage.root}>"

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the Spark that this pipeline started; an existing session is not stopped."""
        self._engine.close()

    def plan(self, datasets: Sequence[str] = (), *, offline: bool = False) -> Plan:
        """Resolve the pipeline; writes nothing. The pipeline's files run again at each call.

        Args:
            offline: Whether to plan without the storage; the plan then has no changes.

        Returns:
            The plan as data: `datasets` and `flows` as they are declared and resolved, `levels` with
            the stages in their order, `changes` that a run would make in the storage, and `refusals`: the
            errors with which a run would stop.

        Example:
            >>> plan = pipeline.plan()  # doctest: +SKIP
            >>> [flow.flow.name for flow in plan.flows], plan.changes  # doctest: +SKIP
        """
        with self._redacted():
            settings = self._engine.reachable(start=False)
            storage, files = settings.storage.read_once()
            plan = self._engine.plan(replace(settings, storage=storage), datasets, offline=offline)
            for one in plan.refreshes:
                # Found while Spark runs, and kept.
                _ = one.strategies and one.strategies.found
            if not offline:
                from headrace.plan.sources import find_sources
                from headrace.run.preflight import find_lasting_refusals

                systems = self._engine.systems(plan.project, asks_once=True)
                with closing(systems):
                    plan = find_sources(plan, systems)
                    plan = find_lasting_refusals(plan, systems, self._engine.read_table, files.forget)
            return replace(
                plan, project=settings, refusals=tuple(map(settings.redactor.error, plan.refusals))
            )

    def preview(
        self,
        dataset: str,
        *,
        records: int = PREVIEW_RECORDS,
        where: str | None = None,
        limit: int = 20,
        columns: Sequence[str] = (),
    ) -> Preview:
        """Compute rows of a query on what its sources hold now; writes nothing.

        Streams become batches over the newest records of a topic, the newest files of a folder, or a
        table as it is. A table that does not exist yet is computed from its own query.

        Args:
            dataset: A dataset of any kind, or one flow of a table.
            records: How many of the newest records of each Kafka source are read.
            where: A condition in SQL.

        Returns:
            The rows as Python values, and what was read of each source.

        Example:
            >>> for row in pipeline.preview("revenue").rows:  # doctest: +SKIP
            ...     print(row)
        """
        from headrace.project.preview import take_preview

        with self._redacted():
            settings, plan = self._engine.reach()
            with closing(self._engine.systems(settings)) as systems:
                return take_preview(
                    self._engine.session(),
                    plan,
                    dataset,
                    systems,
                    records=records,
                    where=where,
                    limit=limit,
                    columns=columns,
                    log_file=self._engine.opened().log_file,
                )

    def recompute(self, proof: Proof, *, sample: float | None = None) -> Proof:
        """Compare each view of a proof with its query over the versions that it was computed from.

        Args:
            proof: What `verify` returns.
            sample: The share of the rows to compare (less than 1), or about how many; all by default.

        Returns:
            The proof with the grade `query` of each view; a row that is missing or extra is a finding.

        Example:
            >>> assert pipeline.recompute(pipeline.verify(["revenue"])).proven  # doctest: +SKIP
        """
        from headrace.project.recomputing import recompute_views

        with self._redacted():
            _, plan = self._engine.reach()
            return recompute_views(
                self._engine.session(), plan, proof, sample, self._engine.opened().log_file
            )

    def run(
        self,
        datasets: Sequence[str] = (),
        *,
        continuous: bool = False,
        remedies: Remedies | None = None,
        progress: bool = False,
        emit: Emitter | None = None,
        stop: StopSignal | None = None,
        log: LogSettings | None = None,
    ) -> RunResult:
        """Bring the tables up to date.

        Works in any thread: no signal handler is set. A `KeyboardInterrupt` in the thread that calls
        stops the flows between two batches and is then raised; the next run continues there.

        Args:
            continuous: Whether to run until `stop` is set; otherwise a run processes what the sources hold
                now.
            remedies: The flows to reset or rename.
            progress: Whether to show the progress: as a table in a notebook or on a terminal, else as
                lines on standard output.
            emit: Takes the events of the update as they happen; called from several threads.
            log: How its log is written; by default as the environment says. A run that finds nothing
                to do leaves none.

        Returns:
            The result of the update: its `outcome`, each flow with its rows, commits and duration, each view,
            and the `errors` of single flows and views.

        Example:
            >>> result = pipeline.run()  # doctest: +SKIP
            >>> for error in result.errors:  # doctest: +SKIP
            ...     raise error
        """
        with self._redacted(), self._showing(progress) as display:
            emitters = [one for one in (emit, display) if one is not None]
            how = remedies or Remedies()
            update = Update(self._engine, emitters, stop, log)
            return update.run(datasets, how, continuous=continuous)

    def plan_reset(self, flows: Sequence[str], start: ChosenStart | None = None) -> ResetPlan:
        """Return where the new checkpoints of `reset` would continue; changes nothing.

        Args:
            start: Where their checkpoints start; by default they continue.
        """
        with self._redacted():
            return self._resetter().plan(flows, start)

    def reset(self, flows: Sequence[str], start: ChosenStart | None = None) -> ResetPlan:
        """Create new checkpoints that continue where the flows have ended; the rows are kept.

        Args:
            start: Where their checkpoints start instead, such as
                ``ChosenStart.parse("orders:0=17", allow_duplicates=True)`` of `headrace.model.remedies`.

        Returns:
            Where each source continues.
        """
        with self._redacted():
            return self._resetter().reset(flows, start)

    def plan_refresh(self, datasets: Sequence[str] | None) -> RefreshPlan:
        """Return what `full_refresh` would remove, and what cannot be read again; changes nothing.

        Returns:
            The plan of the pipeline, the `names` that would be rebuilt, which include the streams that read
            them, and what is `gone`: records that
            topics no longer have, and files that no longer exist.
        """
        from headrace.project.refresh import plan_refresh

        with self._redacted():
            settings, plan = self._engine.reach()
            systems = self._engine.systems(settings)
            with closing(systems):
                return plan_refresh(datasets, plan, systems, self._engine.read_table)

    def full_refresh(
        self,
        datasets: Sequence[str] | None,
        *,
        refresh: Sequence[str] = (),
        accept_loss: Sequence[str] = (),
        emit: Emitter | None = None,
        stop: StopSignal | None = None,
        log: LogSettings | None = None,
    ) -> RunResult:
        """Remove all rows of streaming tables, and read their sources again from the beginning.

        Args:
            datasets: Their names; ``None`` for all. Streams that read them are rebuilt too.
            refresh: Further datasets, which the run that follows updates without removing rows.
            accept_loss: The tables whose rows are removed even if they cannot be read again.
            stop: Set it to stop that run; the next run continues.
            log: How its log is written; by default as the environment says.
        """
        with self._redacted():
            emitters = [] if emit is None else [emit]
            update = Update(self._engine, emitters, stop, log)
            return update.full_refresh(datasets, refresh, accept_loss)

    def plan_erasure(self, table: str, where: str) -> ErasurePlan:
        """Return what `erase` would delete of the rows that match a condition in SQL; changes nothing.

        Returns:
            The tables with the number of rows, notes on what is not deleted, and when a vacuum can remove
            the rows from the storage.
        """
        with self._redacted():
            return self._eraser().plan(table, where)

    def erase(self, planned: ErasurePlan) -> ErasurePlan:
        """Delete rows of a table, of its quarantine, and of the tables that read it.

        Args:
            planned: What to delete, from `plan_erasure`.

        Returns:
            The plan with the numbers of rows that were deleted. Its ``rest`` says which old files and log
            entries still have rows, and when they can be deleted.

        Raises:
            SecondDriverError: Another process runs a flow of one of the tables, or computes a view of them.

        Example:
            >>> planned = pipeline.plan_erasure("orders", "customer = 'ada'")  # doctest: +SKIP
            >>> pipeline.erase(planned).rows  # doctest: +SKIP
        """
        with self._redacted():
            return self._eraser().erase(planned)

    def finish_erasure(self, erased: ErasurePlan) -> ErasurePlan:
        """Wait until old files and log entries with erased rows can be deleted, and delete them.

        By default this takes seven days. It takes longer if a flow has not read the table for so long, or if
        a pinned version or a registered reader needs the files.

        Args:
            erased: The result of `erase`.

        Returns:
            The same without ``rest``. No file of the storage and no entry of a log has the rows, except
            for the tables in ``unchecked``: their maintenance failed, and ``notes`` has the reasons.
        """
        with self._redacted():
            return self._eraser().wait(erased)

    def remove_table(self, table: str) -> OrphanedTable:
        """Remove a table that this pipeline has written, but that its files do not declare any more.

        Its quarantine, its checkpoints and its ledger are removed, too. A table that is registered in a Hive
        metastore is removed from it: only then Spark is started.

        Returns:
            What was removed.

        Raises:
            TableUnknownError: There is no such table.
            TableInUseError: A file declares the table, another pipeline has written it, or a flow reads it.
            SecondDriverError: A process runs a flow of the table.

        Example:
            >>> pipeline.remove_table("old_orders").files  # doctest: +SKIP
        """
        from headrace.project.orphans import remove_orphaned

        with self._redacted():
            return remove_orphaned(self.settings, self.settings.table_name(table), self._engine.session)

    def maintain(
        self,
        datasets: Sequence[str] = (),
        *,
        optimize: bool = True,
        vacuum: bool = True,
        options: MaintenanceOptions | None = None,
        report: Callable[[MaintenanceResult], None] = lambda _: None,
        stop: StopSignal | None = None,
    ) -> tuple[MaintenanceResult, ...]:
        """Compact and vacuum tables where that is due, and clean their logs; starts Spark only to compact.

        What is due follows from ``maintenance`` in the spec. Files and commits that a flow of the storage, a
        pinned version or the ledger still needs are kept. If the flow of a table runs in another process,
        that process compacts the table.

        Args:
            datasets: The tables; all tables of the storage by default.
            report: Takes the result of each table at once.
            stop: Set it to stop after the current table.

        Returns:
            For each table its condition before and after, and a warning or an error if something failed.

        Example:
            >>> [care.steps for care in pipeline.maintain()]  # doctest: +SKIP
        """
        from headrace.observe.read import find_dataset
        from headrace.project.maintenance import MaintenanceOptions, TableMaintenance

        left_out = {"optimize": not optimize, "vacuum": not vacuum}
        names = [find_dataset(name, self.settings) for name in datasets]
        chosen = (options or MaintenanceOptions()).without(
            [name for name, is_out in left_out.items() if is_out]
        )
        maintenance = TableMaintenance(
            settings=self.settings,
            engine=self._engine,
            options=chosen,
            is_stopped=lambda: stop is not None and stop.requested,
        )
        return maintenance.maintain(names or self.settings.storage.find_tables(), report)

    @property
    def quarantine(self) -> Quarantine:
        """The rejected rows: list, show, export, discard and replay them.

        Example:
            >>> pipeline.quarantine.list()  # doctest: +SKIP
        """
        from headrace.project.quarantine import Quarantine

        return Quarantine(self.settings, self._engine)

    def _eraser(self) -> Eraser:
        from headrace.project.erasing import Eraser

        return Eraser(self.settings, self._engine)

    def _resetter(self) -> Resetter:
        from headrace.project.refresh import Resetter

        return Resetter(self.settings, self._engine)

    @contextmanager
    def _showing(self, progress: bool) -> Iterator[Emitter | None]:
        """The display of a run's progress, if it is requested."""
        if not progress:
            yield None
            return
        from headrace.observe.display import open_display

        with open_display(sys.stdout, self.settings.database) as display:
            yield display
