"""Positions in a Delta table that is read as a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from headrace.model.ranges import Position, SourceRange
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.sources.parts import FileParts, file_uri, row_number
from headrace.storage.location import Location
from headrace.storage.table_log import commit_file, follow_commits, read_actions


@dataclass(frozen=True, kw_only=True)
class DeltaPosition(Position):
    table_id: str
    version: int
    index: int  # the last file of it that was read; negative before the first one
    # Whether the files are those of the snapshot that the stream starts with, and not those that the
    # version added
    is_snapshot: bool = False
    format: int | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DeltaPosition:
        try:
            return cls(
                table_id=str(value["reservoirId"]),
                version=int(value["reservoirVersion"]),
                index=int(value["index"]),
                is_snapshot=bool(value.get("isStartingVersion", False)),
                format=value.get("sourceVersion"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a position in a Delta table: {value!r}") from error

    def to_json(self) -> dict[str, Any]:
        # Spark compares positions as text; this is Delta's order.
        return {
            **({} if self.format is None else {"sourceVersion": self.format}),
            "reservoirId": self.table_id,
            "reservoirVersion": self.version,
            "index": self.index,
            "isStartingVersion": self.is_snapshot,
        }

    @property
    def last_version(self) -> int:
        """The last version of which anything was read."""
        return self.version - 1 if self.index < 0 else self.version

    @property
    def first_commit(self) -> int:
        """The first version from here on that is read as a commit, and not as a snapshot."""
        return self.version + 1 if self.is_snapshot else self.version


@dataclass(frozen=True)
class TableFiles:
    """The files of a table between two positions of a stream."""

    session: SparkSession
    index: Any  # delta's index of the files, a ``TahoeBatchFileIndex``

    @classmethod
    def between(
        cls,
        session: SparkSession,
        path: str,
        options: Mapping[str, str],
        one: SourceRange,
        checkpoint: Location,
    ) -> TableFiles:
        """The files that a stream reads in a range."""
        jvm: Any = session._jvm
        # Delta's own stream decides which files are between the positions. It is not started.
        none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        given = {name: value for name, value in options.items() if name.lower() != "path"}
        options_map = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({**given, "path": path})
        stream = jvm.org.apache.spark.sql.delta.sources.DeltaDataSource().createSource(
            session._jsparkSession.sqlContext(), str(checkpoint), none, "delta", options_map
        )
        start = none if one.start is None else jvm.scala.Some(_offset(jvm, one.start))
        frame = stream.getBatch(start, _offset(jvm, one.until))
        return cls(session, frame.queryExecution().analyzed().relation().location())

    @cached_property
    def paths(self) -> list[str]:
        """The files as Spark writes them in ``_metadata.file_path``, in order."""
        return [file_uri(path) for path in self.index.inputFiles()]

    def read(self, parts: FileParts | None = None) -> DataFrame:
        from pyspark.sql import DataFrame

        jvm: Any = self.session._jvm
        files = self.index.addFiles()
        if parts is not None:
            chosen = {*parts.paths}
            kept = [files.apply(n) for n, path in enumerate(self.paths) if path in chosen]
            files = jvm.org.apache.spark.api.python.PythonUtils.toSeq(kept)
        none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        made = self.index.deltaLog().createDataFrame(self.index.snapshot(), files, False, none)
        frame = DataFrame(made, self.session)
        if parts is None:
            return frame
        # Delta has a row index only for tables with deletion vectors. Other files are read whole.
        index = F.col("_metadata.row_index")
        has_index = "row_index" in frame.select("_metadata.*").columns
        return parts.choose(frame, index if has_index else row_number())


def versions_of_files(table: Location, one: SourceRange) -> dict[str, int]:
    """The version that added each file of a range, by the name of the file; without those of a snapshot."""
    start, until = one.start, one.until
    assert isinstance(until, DeltaPosition)
    if until.is_snapshot:
        return {}
    first = start.first_commit if isinstance(start, DeltaPosition) else until.version
    found: dict[str, int] = {}
    for commit in follow_commits(table, first, until.last_version):
        for _, action in read_actions(commit_file(table, commit.version), "add"):
            found[unquote(action["path"]).rpartition("/")[2]] = commit.version
    return found


def _offset(jvm: Any, position: Position) -> Any:
    """A position as Spark's offset log gives it to a stream."""
    assert isinstance(position, DeltaPosition)
    text = json.dumps(position.to_json())
    return jvm.org.apache.spark.sql.execution.streaming.runtime.SerializedOffset(text)
