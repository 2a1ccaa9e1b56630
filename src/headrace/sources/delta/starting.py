"""Delta tables as streaming sources: what their options mean, and whether a table can serve them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import ChangeFeedMissingError, SourceLocation, StartInvalidError
from headrace.runtime.lazy_pyspark import F, SparkSession
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
        raise ChangeFeedMissingError(
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
        raise StartInvalidError(
            f"the log of {name} does not hold startingVersion {version}",
            location=location,
            facts=(f"it holds the versions {known[0]} to {known[-1]}",),
            remedies=("set startingVersion to one of these versions",),
            params={"table": name, "version": version, "versions": [known[0], known[-1]]},
        )
    if since is not None and version < since:
        raise StartInvalidError(
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
    """The version at which Delta starts a stream with ``startingTimestamp``."""
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
