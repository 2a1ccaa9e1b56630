"""Isolated Spark sessions, whose catalog has an empty table for each dataset."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from headrace.model.names import TableName
from headrace.plan import columns
from headrace.plan.intercept import LOCATION_OPTION, suspended
from headrace.plan.modes import TableAccess
from headrace.runtime.gateway import kept_active_session
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession, T
from headrace.sources.delta.reader import CHANGE_FEED
from headrace.storage.location import Location

_CHANGE_COLUMNS = {"_change_type": "string", "_commit_version": "long", "_commit_timestamp": "timestamp"}
_FIRST_DEFAULT, _LAST_ARGUMENT = 6, 22
"""`CatalogTable` has 22 fields in Spark 4.2; those behind the provider take their defaults."""


class StandIns:
    """Empty tables with the columns of the datasets, for batch and streaming reads."""

    def __init__(self, session: SparkSession, scratch: Path) -> None:
        self._session = session
        self._folder = scratch
        self._names: dict[str, TableName] = {}
        self._schemas: set[str] = set()
        self._registrar = Registrar(session)

    def add(self, name: TableName, schema: columns.Schema) -> None:
        if name in self._names.values():
            return
        folder = self._folder / f"{len(self._names):04d}"
        folder.mkdir()
        self.open_schema(name.schema)
        jvm: Any = self._session._jvm
        struct = jvm.org.apache.spark.sql.types.DataType.fromJson(json.dumps(schema))
        self._registrar.add(name, folder.as_uri(), "parquet", struct.asNullable())
        self._names[folder.name] = name

    def add_stored(self, name: TableName, path: Location) -> None:
        """Register an existing Delta table; its columns come from its log."""
        self.open_schema(name.schema)
        jvm: Any = self._session._jvm
        self._registrar.add(name, path.uri, "delta", jvm.org.apache.spark.sql.types.StructType())

    def changes(self, name: TableName, schema: columns.Schema, access: TableAccess) -> DataFrame:
        """The change data feed of an empty table: its columns, and those that Delta adds."""
        folder = next(folder for folder, known in self._names.items() if known == name)
        struct = T.StructType.fromJson(dict(schema))
        for column, kind in _CHANGE_COLUMNS.items():
            struct = struct.add(column, kind)
        with suspended():
            reader = self._session.readStream if access.streaming else self._session.read
            # The options in Spark's plan identify the read and its source location.
            asked = {key: value for key, value in access.options.items() if key.lower() != "path"}
            reader = reader.schema(struct).options(**{**asked, CHANGE_FEED[0]: "true"})
            reader = reader.option(LOCATION_OPTION, str(access.location))
            return reader.parquet(str(self._folder / folder))

    def copy_from(self, other: SparkSession, name: TableName) -> bool:
        """Register a table of another session's catalog; ``False`` if that catalog does not have it."""
        theirs = other._jsparkSession.sharedState().externalCatalog()
        schema, table = name.schema.lower(), name.name.lower()
        if not theirs.tableExists(schema, table):
            return False
        ours = self._session._jsparkSession.sharedState().externalCatalog()
        self.open_schema(name.schema)
        if not ours.tableExists(schema, table):
            ours.createTable(theirs.getTable(schema, table), True)
        return True

    def open_schema(self, schema: str) -> None:
        schema = schema.lower()
        if schema in self._schemas:
            return
        self._schemas.add(schema)
        catalog = self._session._jsparkSession.sharedState().externalCatalog()
        if catalog.databaseExists(schema):
            return
        jvm: Any = self._session._jvm
        uri = jvm.java.net.URI((self._folder / f"{schema}.db").as_uri())
        empty = jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap())
        catalogs = jvm.org.apache.spark.sql.catalyst.catalog
        catalog.createDatabase(catalogs.CatalogDatabase(schema, "", uri, empty), True)

    def name_of(self, path: str) -> TableName | None:
        """The dataset whose empty table is in this folder."""
        folder = Path(path.removeprefix("file:"))
        return self._names.get(folder.name) if folder.parent == self._folder else None


class Registrar:
    """Registers tables in a session's catalog without running statements.

    ``CREATE TABLE`` takes 2 s in a fresh JVM, most of it to load what plans such statements; this
    takes 0.4 s.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def add(self, name: TableName, uri: str, provider: str, schema: Any) -> None:
        """Register an external table; its schema (database) must exist."""
        jvm: Any = self._session._jvm
        some = jvm.scala.Some
        external, storage, defaults = self._parts
        # Spark looks names up in lower case, and its own statements register them so.
        identifier = jvm.org.apache.spark.sql.catalyst.TableIdentifier(
            name.name.lower(), some(name.schema.lower())
        )
        table = jvm.org.apache.spark.sql.catalyst.catalog.CatalogTable(
            identifier, external, storage(jvm.java.net.URI(uri)), schema, some(provider), *defaults
        )
        self._session._jsparkSession.sharedState().externalCatalog().createTable(table, False)

    @cached_property
    def _parts(self) -> tuple[Any, Callable[[Any], Any], tuple[Any, ...]]:
        """The type, the storage and the last fields of a table whose files the catalog does not own."""
        jvm: Any = self._session._jvm
        catalogs, some = jvm.org.apache.spark.sql.catalyst.catalog, jvm.scala.Some
        empty = catalogs.CatalogStorageFormat.empty()
        formats = (empty.inputFormat(), empty.outputFormat(), empty.serde())
        rest = (False, empty.properties(), empty.serdeName())
        positions = range(_FIRST_DEFAULT, _LAST_ARGUMENT + 1)
        return (
            catalogs.CatalogTableType.EXTERNAL(),
            lambda location: empty.copy(some(location), *formats, *rest),
            tuple(getattr(catalogs.CatalogTable, f"apply$default${n}")() for n in positions),
        )


@contextmanager
def isolated_session(spark: SparkSession, default_schema: str) -> Iterator[tuple[SparkSession, StandIns]]:
    """A session with the settings, functions and temporary views of ``spark``, and its own empty catalog."""
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory(prefix="headrace-plan-") as folder, suspended():
        # Spark resolves symbolic links in the location of a table.
        scratch = Path(folder).resolve()
        jvm: Any = spark._jvm
        parent = spark._jsparkSession
        options = jvm.PythonUtils.toScalaMap(
            {"spark.sql.catalogImplementation": "in-memory", "spark.sql.warehouse.dir": str(scratch / "db")}
        )
        java_session = jvm.org.apache.spark.sql.classic.SparkSession(
            spark.sparkContext._jsc.sc(),
            jvm.scala.Option.empty(),
            jvm.scala.Some(parent.sessionState()),
            parent.extensions(),
            options,
            jvm.PythonUtils.toScalaMap({}),
        )
        ui = spark.sparkContext._jsc.sc().ui()
        tabs = int(ui.get().getTabs().size()) if ui.isDefined() else 0
        java_session.sharedState()
        session = SparkSession(spark.sparkContext, java_session)
        stand_ins = StandIns(session, scratch)
        stand_ins.open_schema(default_schema)
        java_session.sessionState().catalog().setCurrentDatabase(default_schema.lower())
        try:
            with kept_active_session(spark):
                yield session, stand_ins
        finally:
            _forget(spark, java_session, tabs)


def _forget(spark: SparkSession, java_session: Any, tabs: int) -> None:
    """Remove a closed session's listener, which would keep it in memory, and its tab in Spark's web UI."""
    context = spark.sparkContext._jsc.sc()
    listener = java_session.sharedState().statusStore().listener()
    if listener.isDefined():
        context.listenerBus().removeListener(listener.get())
    if context.ui().isDefined():
        ui = context.ui().get()
        shown = ui.getTabs()
        for tab in [shown.apply(n) for n in range(tabs, shown.size())]:
            ui.detachTab(tab)
