"""Delta tables as sources: what their options mean, whether a table can serve them, and a preview's rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from headrace import errors
from headrace.errors import SourceLocation
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.sources.requests import (
    ADAPTIVE,
    LIMITS,
    KnownOptions,
    Reader,
    ReaderDefaults,
    ReadRequest,
    Sample,
    Sampling,
    SourceRead,
    SourceSeen,
    refuse_silent_loss,
)
from headrace.storage.layout import locate, locate_supported
from headrace.storage.location import Location
from headrace.storage.table_log import property_since, versions

CHANGE_FEED = ("readChangeFeed", "readChangeData")
"""Options that read the change data feed of a table in place of its rows."""
ERASURES_ONLY = "headrace.changes"
"""An option of Headrace: the stream skips commits that only delete rows, unless the query sets Delta's own
options for that."""
FEED_PROPERTY = "delta.enableChangeDataFeed"
"""The property of tables that record a change data feed."""
_PIPELINE = "headrace.pipeline"
_OTHER_SPEC = 'configuration: {spark.databricks.delta.properties.defaults.enableChangeDataFeed: "true"}'
"""The line of the spec that sets the property for all tables of a pipeline."""
_STARTS = ("startingVersion", "startingTimestamp")
_CHANGE_OPTIONS = ("skipChangeCommits", "ignoreDeletes", "ignoreChanges", *CHANGE_FEED)
_BOTH = ("path", "readChangeFeed", "readChangeData", "startingVersion", "startingTimestamp")
_SIZE = re.compile(r"0*[1-9][0-9]*([bkmgtp]|[kmgtp]b)?")
_VALUES: Mapping[str, tuple[re.Pattern[str], str]] = {
    "maxFilesPerTrigger": (re.compile(r"0*[1-9][0-9]*"), "a whole number above 0"),
    "maxBytesPerTrigger": (_SIZE, "a size above 0 such as 64mb"),
    **dict.fromkeys(
        ("ignoreDeletes", "ignoreChanges", "ignoreFileDeletion", "skipChangeCommits", *CHANGE_FEED),
        (re.compile("true|false"), "true or false"),
    ),
}
"""The values of options that Spark would refuse only when the stream starts."""
_KNOWN = KnownOptions(
    stream=(
        *_BOTH,
        *("maxFilesPerTrigger", "maxBytesPerTrigger", "ignoreDeletes", "ignoreChanges", "ignoreFileDeletion"),
        *("skipChangeCommits", "excludeRegex", "failOnDataLoss", "withEventTimeOrder"),
        *("schemaTrackingLocation", "schemaLocation", "streamingSourceTrackingId"),
        *("allowSourceColumnDrop", "allowSourceColumnRename", "allowSourceColumnTypeChange"),
        *("allowSourceColumnRenameAndDrop",),
    ),
    batch=(*_BOTH, "endingVersion", "endingTimestamp", "versionAsOf", "timestampAsOf"),
    prefixes=("fs.", "dfs.", "hadoop."),
    marks=frozenset({"headrace.location", ADAPTIVE, ERASURES_ONLY}),
)
DELTA_MAX_BYTES_PER_TRIGGER: Final = 64 << 20
"""Bytes of a first batch. Spark's own default has no such limit: one version of a table holds anything."""
DELTA_MAX_FILES_PER_TRIGGER: Final = 1000
"""Delta's own default, which it drops as soon as a limit of bytes is set."""


def reads_feed(options: Mapping[str, str]) -> bool:
    """Whether the options of a reader ask for the change data feed of a table, and not for its rows."""
    names = {name.lower() for name in CHANGE_FEED}
    return any(key.lower() in names and value.strip().lower() == "true" for key, value in options.items())


def skips_changes(options: Mapping[str, str]) -> bool:
    """Whether the options of a reader ask to pass over commits that change or remove rows."""
    return any(
        key.lower() == "skipchangecommits" and value.strip().lower() == "true"
        for key, value in options.items()
    )


def check_table_start(
    options: Mapping[str, str],
    path: Location,
    *,
    name: str,
    is_outside: bool,
    properties: Mapping[str, str],
    location: SourceLocation,
) -> None:
    """Check that a new stream of a table can start at the version in its options. `is_outside`: whether the
    table is not one of the pipeline."""
    chosen = {key.lower(): value.strip().lower() for key, value in options.items()}
    asks_feed = reads_feed(options)
    if asks_feed and properties.get(FEED_PROPERTY, "false").lower() != "true":
        writer = properties.get(_PIPELINE) if is_outside else None
        remedy = f'set the table property {FEED_PROPERTY} = "true"'
        if is_outside and writer is None:
            sets = f"SET TBLPROPERTIES ({FEED_PROPERTY} = true)"
            remedy = f"enable it in a Spark session with Delta:   ALTER TABLE delta.`{path.resolve()}` {sets}"
        other = f"add this line to the spec of the pipeline {writer}, and run it:   {_OTHER_SPEC}"
        raise errors.ChangeFeedMissingError(
            f"a stream reads the change data feed of {name}, which is not enabled",
            location=location,
            facts=(
                *((f"the pipeline {writer} writes this table",) if writer else ()),
                "a stream of changes begins with the rows that the table has, as inserts",
            ),
            remedies=(
                *((other, f"or {remedy} in the declaration of the table") if writer else (remedy,)),
                f'or read only its rows:   hr.read_table_stream("{name}")',
            ),
            params={"table": name} | ({"writer": writer} if writer else {}),
        )
    text = chosen.get("startingversion", "latest")
    known = versions(path)
    if not (text.isdigit() and known):
        return
    version, since = int(text), property_since(path, FEED_PROPERTY) if asks_feed else None
    if not known[0] <= version <= known[-1]:
        raise errors.StartInvalidError(
            f"the log of {name} does not hold startingVersion {version}",
            location=location,
            facts=(f"it holds the versions {known[0]} to {known[-1]}",),
            remedies=("set startingVersion to one of these versions",),
            params={"table": name, "version": version, "versions": [known[0], known[-1]]},
        )
    if since is not None and version < since:
        raise errors.StartInvalidError(
            f"the change data feed of {name} starts after startingVersion {version}",
            location=location,
            facts=(f"the feed was enabled in version {since}",),
            remedies=(
                f"set startingVersion to {since} or later",
                "or read the rows of the table: hr.read_table_stream",
            ),
            params={"table": name, "version": version, "versions": [since, known[-1]]},
        )


def starting_version(spark: SparkSession, table: Location, timestamp: str) -> int:
    jvm: Any = spark._jvm
    moment = spark.range(1).select(F.unix_micros(F.lit(timestamp).cast("timestamp"))).head()
    assert moment is not None
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(table))
    at = jvm.java.sql.Timestamp(moment[0] // 1000)
    at.setNanos((moment[0] % 1_000_000) * 1000)
    source = getattr(jvm.org.apache.spark.sql.delta.sources, "DeltaSource$")
    found = getattr(source, "MODULE$").getStartingVersionFromTimestamp(
        spark._jsparkSession, log, jvm.scala.Option.empty(), at, True
    )
    return int(found)


def _invalid(problem: str, remedy: str, location: SourceLocation) -> errors.OptionInvalidError:
    return errors.OptionInvalidError(
        f"a stream of a Delta table: {problem}",
        location=location,
        remedies=[remedy],
        params={"problem": problem},
    )


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
    """The rows of a table, in the form of inserted rows of its change feed."""
    return frame.withColumns(
        {
            "_change_type": F.lit("insert"),
            "_commit_version": F.lit(0).cast("long"),
            "_commit_timestamp": F.current_timestamp(),
        }
    )


class DeltaReader(Reader):
    has_path = True
    reads_tables = True
    stand_in = "table"

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        _KNOWN.refuse_unknown(request, location)
        if not request.streaming:
            return {}
        refuse_silent_loss(request, location)
        for name, (pattern, wanted) in _VALUES.items():
            value = request.value(name)
            if value is not None and not pattern.fullmatch(value.strip().lower()):
                raise _invalid(f"{name} must be {wanted}, not {value!r}", f"write {wanted}", location)
        if path := request.path or request.value("path"):
            # A flow reads the log of a table that it streams, so its kind of storage must be supported.
            locate(path, source=location)
        options: dict[str, str] = {}
        if not request.has(*LIMITS) and defaults.whole_commits and request.has(*CHANGE_FEED):
            # With a limit, one batch could have the new rows of a commit, and a later one its deleted rows.
            options["maxFilesPerTrigger"] = str(2**31 - 1)
        elif not request.has(*LIMITS):
            options["maxFilesPerTrigger"] = str(DELTA_MAX_FILES_PER_TRIGGER)
            options["maxBytesPerTrigger"] = str(DELTA_MAX_BYTES_PER_TRIGGER)
            options[ADAPTIVE] = "adaptive"
        if not request.has(*_CHANGE_OPTIONS):
            # The log may lack the commits of an erasure. The guard refuses every other gap.
            options |= {"skipChangeCommits": "true", ERASURES_ONLY: "erasures", "failOnDataLoss": "false"}
        # Spark would refuse these values, too, only when the stream starts.
        version, moment = map(request.value, _STARTS)
        if version is not None and moment is not None:
            raise _invalid("startingVersion and startingTimestamp are both set", "remove one", location)
        if version is not None and not (version.strip().isdigit() or version.strip().lower() == "latest"):
            problem = f"startingVersion must be a table version or `latest`, not {version.strip()!r}"
            raise _invalid(problem, 'write the number of a version, such as "0", or "latest"', location)
        return options

    def check_path(self, path: str, location: SourceLocation) -> None:
        """Check that a table with a local path exists; other paths are left to Spark."""
        folder = locate_supported(path)
        if folder is None or (folder / "_delta_log").exists():
            return
        raise errors.TableNotFoundError(
            f"there is no Delta table at {folder}",
            location=location,
            facts=["the folder has no _delta_log" if folder.exists() else "the folder does not exist"],
            remedies=["correct the path, or run the pipeline that creates the table"],
            params={"path": str(folder)},
        )

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        """The rows of a table, or its changes, as far as the reader asks for them."""
        path = read.paths[0]
        rows = read.session.read.format("delta").load(path)
        if reads_feed(read.request.options):
            rows = changes_of(rows, f"delta.`{path}`", read.request.options)
        return Sample(rows, SourceSeen("table", path))
