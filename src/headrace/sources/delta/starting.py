"""Delta tables as streaming sources: what their options mean, and whether a table can serve them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ChangeFeedMissingError, SourceLocation, StartInvalidError
from headrace.state.table_log import property_since, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGE_FEED = ("readChangeFeed", "readChangeData")
"""Options that ask for the change feed of a table and not for its rows."""
ERASURES_ONLY = "headrace.changes"
"""An option that Spark does not know: it marks streams which pass over what others erase, and over
nothing else; a user who sets Delta's own options has decided otherwise."""
_FEED_PROPERTY = "delta.enableChangeDataFeed"


def check_table_start(
    options: Mapping[str, str],
    path: Path,
    *,
    name: str,
    properties: Mapping[str, str],
    location: SourceLocation,
) -> None:
    """Whether a new stream of a table can start where its options say.

    Args:
        options: The stream's options.
        path: Where the table lies.
        name: The table, as users name it.
        properties: The table's properties.
        location: Where the query reads it.

    Raises:
        ChangeFeedMissingError: Its change feed is asked for, and it records none.
        StartInvalidError: It has no such version, or has it no more, or recorded no changes yet at it.
    """
    chosen = {key.lower(): value.strip().lower() for key, value in options.items()}
    asks_feed = any(chosen.get(option.lower()) == "true" for option in CHANGE_FEED)
    if asks_feed and properties.get(_FEED_PROPERTY, "false").lower() != "true":
        raise ChangeFeedMissingError(
            f"the change feed of {name} is read, and the table records none",
            location=location,
            remedies=(
                f'give it the table property {_FEED_PROPERTY} = "true"',
                "or leave out readChangeFeed, and read its rows",
            ),
            params={"table": name},
        )
    text = chosen.get("startingversion", "latest")
    known = versions(path)
    if not (text.isdigit() and known):
        return
    version, since = int(text), property_since(path, _FEED_PROPERTY) if asks_feed else None
    if not known[0] <= version <= known[-1]:
        raise StartInvalidError(
            f"startingVersion {version} is no version of {name}",
            location=location,
            facts=(f"its log holds the versions {known[0]} to {known[-1]}",),
            remedies=("correct startingVersion",),
            params={"table": name, "version": version, "versions": [known[0], known[-1]]},
        )
    if since is not None and version < since:
        raise StartInvalidError(
            f"startingVersion {version} lies before the change feed of {name}",
            location=location,
            facts=(f"the table records its changes from version {since} on",),
            remedies=(f"start at version {since} or later", "or leave out readChangeFeed, and read its rows"),
            params={"table": name, "version": version, "versions": [since, known[-1]]},
        )


def starting_version(spark: SparkSession, table: Path, timestamp: str) -> int:
    """The version that a stream with ``startingTimestamp`` begins with, as Delta tells it.

    Args:
        spark: Any session; the text is read in its time zone, as Delta does.
        table: The table.
        timestamp: The option's value.
    """
    from pyspark.sql import functions as F

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
