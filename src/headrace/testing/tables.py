"""What a overrides leaves: the tables of the pipeline, as rows or as DataFrames."""

from __future__ import annotations

import difflib
import shutil
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import DatasetUnknownError
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.observe.read import read_rows
from headrace.project.pipeline import Pipeline
from headrace.runtime.active_session import new_frame
from headrace.storage.locate import locate
from headrace.storage.table_log import is_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.run.update import RunResult
    from headrace.verify.report import Proof

Row = dict[str, Any]


class Tables(Mapping[str, list[Row]]):
    """The tables of a pipeline after its updates, by name; rows are dicts of plain Python values.

    Timestamps are in UTC, structs and maps are dicts. Which row comes first is up to the table's files.
    The files are removed with the object, unless the storage was named.

    Args:
        settings: The pipeline's settings, with the storage of the overrides.
        names: The stored datasets of the pipeline.
        results: What became of each update: one after each batch.
        temporary: A folder to remove with the object.

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
        self._names = {self._short(name): name for name in names}
        self.results = results
        self._removal = None
        if temporary is not None:
            self._removal = weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)

    @property
    def storage(self) -> Path:
        """The storage's folder."""
        return self._settings.storage.root.local_path

    def __getitem__(self, name: str) -> list[Row]:
        """The rows of a table.

        Raises:
            DatasetUnknownError: The pipeline stores no dataset of this name.
        """
        found = read_rows(locate(self._path(name)))
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
        self._path(name)
        found = self._find(name)
        assert found is not None
        path = self._settings.storage.quarantine(found)
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
        stored = spark.read.format("delta").load(str(self._path(name)))
        return new_frame(spark, stored.toArrow(), stored.schema)

    def verify(self) -> Proof:
        """The proof that every row of the sources is in the tables exactly once."""
        return Pipeline(self._settings).verify()

    def close(self) -> None:
        """Remove the files, unless the storage was named."""
        if self._removal is not None:
            self._removal()

    def _path(self, name: str) -> Path:
        found = self._find(name)
        if found is not None:
            return self._settings.storage.table(found).local_path
        near = difflib.get_close_matches(name, list(self._names), n=1)
        raise DatasetUnknownError(
            f"the pipeline {self._settings.name} stores no table `{name}`",
            facts=(f"its tables: {', '.join(self._names)}",),
            remedies=(f"did you mean `{near[0]}`?",) if near else (),
            params={"dataset": name},
        )

    def _find(self, name: str) -> TableName | None:
        wanted = str(self._settings.table_name(name)).casefold()
        return next((known for known in self._names.values() if str(known).casefold() == wanted), None)

    def _short(self, name: TableName) -> str:
        return name.name if name.schema == self._settings.database else str(name)
