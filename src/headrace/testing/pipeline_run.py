"""Runs a pipeline on rows in place of its sources, and gives its tables."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ArgumentInvalidError, DatasetUnknownError, HeadraceError, did_you_mean
from headrace.model.declarations import TemporaryView
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.observe.read import read_rows
from headrace.plan.modes import SourceOverrides
from headrace.project.pipeline import Pipeline
from headrace.runtime.gateway import new_frame
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.runtime.session import RunningSpark, open_spark
from headrace.storage.layout import Storage
from headrace.storage.table_log import is_table
from headrace.testing.fake_sources import FakeSources
from headrace.testing.rows import Batches, Given, checked_sources

if TYPE_CHECKING:
    from headrace.plan.stages import Plan
    from headrace.run.schedule import RunResult
    from headrace.verify.report import Proof


_NOWHERE = KafkaConnection({"bootstrap.servers": "127.0.0.1:9"})
"""An address for queries that need one; no broker is contacted."""

_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    # For a few rows, interpreting a query is faster than generating and compiling code for it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""A test has few rows; the pipeline's own configuration wins."""

SOURCES = "rehearsed-sources"
"""The folder of the test's rows in the storage of a test; no other storage has one of this name."""

Keep = Callable[[Callable[[], None]], object]
"""Takes what ends a Spark that was started, for later."""


def run(
    pipeline: str | Path | Pipeline,
    rows: Mapping[str, Given | Batches],
    *,
    profile: str | None = None,
    storage: str | Path | None = None,
    keep: Keep = atexit.register,
) -> Tables:
    """Run a pipeline on rows in place of its sources, in a separate storage. An update runs on the first
    batch of every source, then one on the second, and so on. Queries, tables, checkpoints, watermarks and
    state are real. No broker is started or contacted, and nothing outside of the storage is written.

    Args:
        pipeline: The pipeline, or its folder.
        rows: The batches of each source that the pipeline reads, each a list of rows. A topic goes by
            its name: a row is a dict (the JSON value), text or bytes (the value as it is), or a
            `Record`. A Delta table goes by its name or path, and a folder of files by its path; rows are
            dicts, or the lines of a file.
        profile: The profile of the spec; by default ``HEADRACE_PROFILE``, else ``dev``.
        storage: A folder to keep the tables in. A further `run` there goes on with what the first
            has left. By default a temporary one, which is removed with the tables.
        keep: Takes what stops Spark. The first `run` of a process starts Spark, unless the process has
            a session, and the later ones use it; by default it stops with the process.

    Returns:
        The tables after the last update.

    Raises:
        HeadraceError: Whatever is wrong with the pipeline or its rows, or makes a flow or a view fail.

    Example:
        >>> first, late = [{"id": 1, "amount": 5}], [{"id": 2, "amount": 7}]
        >>> run("shop", {"orders": [first, late]})["revenue"]  # doctest: +SKIP
    """
    given = checked_sources(rows)
    loaded = _loaded(pipeline, profile)
    real = loaded.settings.storage
    root = Path(tempfile.mkdtemp(prefix="headrace-test-")) if storage is None else _kept(storage, real)
    settings = replace(
        loaded.settings,
        storage=Storage.at(root.resolve()),
        kafka=_NOWHERE,
        consumer_groups=False,
        configuration={**_SETTINGS, **loaded.settings.configuration},
    )
    try:
        return _run(settings, real, given, root if storage is None else None, keep)
    except BaseException:
        if storage is None:
            shutil.rmtree(root, ignore_errors=True)
        raise


def _loaded(pipeline: str | Path | Pipeline, profile: str | None) -> Pipeline:
    if not isinstance(pipeline, Pipeline):
        return Pipeline.load(pipeline, profile=profile)
    if profile is not None:
        raise ArgumentInvalidError(
            f"run: the pipeline was already loaded with the profile {pipeline.settings.profile}",
            remedies=("pass the folder of the pipeline, or remove the argument profile",),
            params={"argument": "profile", "value": profile},
        )
    return pipeline


def _kept(storage: str | Path, real: Storage) -> Path:
    """The storage of a test, which may hold only tables of tests."""
    location, own = Storage.at(storage).root, real.root
    root = location.local_path
    foreign = (root / "tables").exists() and not (root / SOURCES).exists()
    within = location == own or bool(location.below(own) or own.below(location))
    if foreign or within or any((above / "_delta_log").is_dir() for above in (root, *root.parents)):
        raise ArgumentInvalidError(
            f"run: the storage {root} is not a storage of tests",
            facts=("the rows of a test would be mixed with those of real runs; nothing was written",),
            remedies=("use a new folder, or remove the argument storage",),
            params={"argument": "storage", "value": str(root)},
        )
    return root


def _run(
    settings: ProjectSettings, real: Storage, given: Mapping[str, Batches], temporary: Path | None, keep: Keep
) -> Tables:
    from headrace.plan.catalog import isolated_session

    running = _opened(settings, keep)
    with isolated_session(running.spark, settings.database) as (session, catalog):
        _configure(session, settings)

        def elsewhere(name: object) -> bool:
            return catalog.copy_from(running.spark, name)  # type: ignore[arg-type]

        names: list[TableName] = []

        def check(plan: Plan) -> None:
            stage.check()
            names[:] = [one.name for one in plan.datasets if not isinstance(one, TemporaryView)]

        stage = FakeSources(settings.storage.root.local_path / SOURCES, given, settings, real, elsewhere)
        overrides = SourceOverrides(
            running=RunningSpark(session, owned=False, log_file=running.log_file),
            sources=stage.read,
            ranges=stage.read_again,
            as_records=stage.as_topics,
            folders=stage.folder,
            find_table=stage.find_table,
            check=check,
        )
        pipeline = Pipeline(settings, overrides)
        results = []
        # A pipeline without rows still has views to compute.
        for number in range(max(1, stage.batches)):
            stage.feed(number + 1)
            results.append(_update(pipeline))
        return Tables(settings, tuple(names), tuple(results), temporary)


def _opened(settings: ProjectSettings, keep: Keep) -> RunningSpark:
    # `_configure` sets the settings of `_SETTINGS` in the session, so that all tests can share one JVM.
    own = {key: value for key, value in settings.configuration.items() if _SETTINGS.get(key) != value}
    conf = {key: value for key, value in own.items() if key.startswith("spark.")}
    running = open_spark(
        settings.name,
        conf=conf,
        master=settings.master,
        memory=settings.memory,
        # Also so that a test uses the engine of the pipeline's commands.
        redactor=settings.redactor,
    )
    if running.owned:
        keep(running.stop)
    return running


def _configure(session: SparkSession, settings: ProjectSettings) -> None:
    """Set the pipeline's settings and the defaults of Headrace that a running session can still change."""
    from headrace.runtime.defaults import build_session_settings, find_named_master
    from headrace.runtime.storage_support import CHECKPOINT_FILES

    chosen = build_session_settings(find_named_master(session.sparkContext))
    for key, value in {**chosen, **settings.configuration}.items():
        # The checkpoint files for object storage also work on a local disk.
        is_free = key != CHECKPOINT_FILES or key in settings.configuration
        if not key.startswith("spark.") or (is_free and session.conf.isModifiable(key)):
            session.conf.set(key, value)


def _update(pipeline: Pipeline) -> RunResult:
    result = pipeline.run()
    first, *others = result.errors or (None,)
    if first is None:
        return result
    for other in others:
        assert isinstance(other, HeadraceError)
        first.add_note(f"also: {other}")
    raise first


Row = dict[str, Any]


class Tables(Mapping[str, list[Row]]):
    """The tables of a pipeline after its updates, by name; rows are dicts of plain Python values.

    Timestamps are in UTC, structs and maps are dicts. Which row comes first is up to the table's files.
    The files are removed with the object, unless the storage was named. ``results`` has the result of each
    update, one for each batch.

    Example:
        >>> sorted(tables["revenue"], key=lambda row: row["customer"])  # doctest: +SKIP
    """

    def __init__(
        self,
        settings: ProjectSettings,
        names: tuple[TableName, ...],
        results: tuple[RunResult, ...],
        temporary: Path | None,
    ) -> None:
        self._settings = settings
        database = settings.database
        self._names = {one.within(database): one for one in names}
        self.results = results
        self._removal = None
        if temporary is not None:
            self._removal = weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)

    @property
    def storage(self) -> Path:
        return self._settings.storage.root.local_path

    def __getitem__(self, name: str) -> list[Row]:
        """The rows of a table.

        Raises:
            DatasetUnknownError: The pipeline stores no dataset of this name.
        """
        found = read_rows(self._settings.storage.table(self._name(name)))
        return [dict(zip(found.columns, row, strict=True)) for row in found.rows]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"Tables({', '.join(self._names)})"

    def quarantine(self, name: str) -> list[Row]:
        """The rejected rows and bad records of a table or a view, as rows of its quarantine table.

        Raises:
            DatasetUnknownError: The pipeline stores no dataset of this name.
        """
        path = self._settings.storage.quarantine(self._name(name))
        if not is_table(path):
            return []
        rows = read_rows(path)
        return [dict(zip(rows.columns, row, strict=True)) for row in rows.rows]

    def frame(self, name: str) -> DataFrame:
        """A table as a DataFrame of this process's session; it can be used after the files were removed.

        Raises:
            DatasetUnknownError: The pipeline stores no dataset of this name.
        """
        from headrace.runtime.session import open_spark

        spark = open_spark(self._settings.name).spark
        stored = spark.read.format("delta").load(str(self._settings.storage.table(self._name(name))))
        return new_frame(spark, stored.toArrow(), stored.schema)

    def verify(self) -> Proof:
        """The proof that every row of the sources is in the tables exactly once."""
        return Pipeline(self._settings).verify()

    def close(self) -> None:
        """Remove the files, unless the storage was named."""
        if self._removal is not None:
            self._removal()

    def _name(self, name: str) -> TableName:
        found = self._find(name)
        if found is not None:
            return found
        raise DatasetUnknownError(
            f"the pipeline {self._settings.name} stores no table `{name}`",
            facts=(f"its tables: {', '.join(self._names)}",),
            remedies=did_you_mean(name, list(self._names)),
            params={"dataset": name},
        )

    def _find(self, name: str) -> TableName | None:
        wanted = str(self._settings.table_name(name)).casefold()
        return next((known for known in self._names.values() if str(known).casefold() == wanted), None)
