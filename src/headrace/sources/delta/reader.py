"""The rows of a table, as a preview shows them."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import SourceLocation
from headrace.runtime.lazy_pyspark import DataFrame, F
from headrace.sources.answers import Sample, SourceSeen
from headrace.sources.delta.options import reader_options, require_table
from headrace.sources.delta.starting import reads_feed
from headrace.sources.reader import Reader
from headrace.sources.requests import ReaderDefaults, ReadRequest, Sampling, SourceRead


def sample_table(read: SourceRead) -> Sample:
    """The rows of a table, or its changes, as far as the reader asks for them."""
    path = read.paths[0]
    seen = SourceSeen(kind="table", name=path)
    whole = read.session.read.format("delta").load(path)
    if reads_feed(read.request.options):
        return Sample(changes_of(whole, f"delta.`{path}`", read.request.options), seen)
    return Sample(whole, seen)


def changes_of(whole: DataFrame, table: str, options: Mapping[str, str]) -> DataFrame:
    """The changes of a table that a new stream of its change feed would give."""
    chosen = {key.lower(): value for key, value in options.items()}
    version = chosen.get("startingversion", "latest")
    if version == "latest" and "startingtimestamp" not in chosen:
        # What such a stream gives at its start: the table as it is.
        return as_inserts(whole)
    reader = whole.sparkSession.read.option("readChangeFeed", "true")
    for key in ("startingVersion", "startingTimestamp"):
        if key.lower() in chosen:
            reader = reader.option(key, chosen[key.lower()])
    return reader.table(table)


def as_inserts(frame: DataFrame) -> DataFrame:
    """The rows of a table as its change feed gives those that were inserted."""
    return frame.withColumns(
        {
            "_change_type": F.lit("insert"),
            "_commit_version": F.lit(0).cast("long"),
            "_commit_timestamp": F.current_timestamp(),
        }
    )


class DeltaReader(Reader):
    """Readers of Delta tables."""

    has_path = True
    reads_tables = True
    stand_in = "table"

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        return reader_options(request, location)

    def check_path(self, path: str, location: SourceLocation) -> None:
        require_table(path, location)

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        return sample_table(read)
