"""The table properties that Headrace sets on the tables of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from headrace.errors import PropertyInvalidError, did_you_mean
from headrace.model.declarations import AutoCdcFlow, Groups, MaterializedView, StreamingTable
from headrace.model.maintenance import LOG_CLEANUP, LOG_RETENTION, POLICY_PROPERTY, TARGET_SIZE, parse_bytes
from headrace.model.names import KEPT_PROPERTY
from headrace.model.notes import Note
from headrace.model.project import ProjectSettings
from headrace.plan import columns
from headrace.plan.coordinates import CoordinateColumns, named_columns
from headrace.plan.stages import Coordinates, OpenTableStage, RefreshViewStage
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sources.delta.reader import FEED_PROPERTY
from headrace.sources.registry import STREAM_COORDINATES, widest_coordinates
from headrace.syntax.locations import argument_location

PIPELINE: Final = "headrace.pipeline"
DATASET: Final = "headrace.dataset"
KIND: Final = "headrace.kind"
PRIVATE: Final = "headrace.private"
REPLAYABLE: Final = "headrace.replayable"  # ``true`` if each record of the sources gives one change
COORDINATES: Final = "headrace.coordinates"
TIMESTAMP: Final = "headrace.timestamp"
KEYS: Final = "headrace.keys"  # the keys by which changes are applied to a table, as a JSON array
SCD_TYPE: Final = "headrace.scd_type"
"""``1``: the table has the current row of each key. ``2``: it has the history of each key."""

PROPERTY_DEFAULTS: Final = "spark.databricks.delta.properties.defaults."
"""The prefix of the settings that give new tables a property."""
_FEED_DEFAULT = f"{PROPERTY_DEFAULTS}enableChangeDataFeed"

USER_SETTABLE: Final = frozenset({COORDINATES, TIMESTAMP})
"""Properties under the prefix `headrace.` that a user may set."""

FORBIDDEN: Final[Mapping[str, str]] = {
    "delta.setTransactionRetentionDuration": (
        "Delta would remove transaction ids of committed batches, and a replayed batch could be added twice"
    )
}

STREAMING_TABLE_DEFAULTS: Final[Mapping[str, str]] = {
    # A commit that also writes Delta's checkpoint delays its records; a thread of the run writes the
    # checkpoints beside the commits. This interval is for the case that the thread cannot.
    "delta.checkpointInterval": "1000",
    # Delta would delete commits that the ledger does not have, or that a stopped flow has not read.
    LOG_CLEANUP: "false",
}
KEYED_TABLE_DEFAULTS: Final[Mapping[str, str]] = {
    # A change marks the old row as deleted; without these vectors it would write the row's file again.
    "delta.enableDeletionVectors": "true"
}
MATERIALIZED_VIEW_DEFAULTS: Final[Mapping[str, str]] = {
    # Each refresh replaces all files, so the log of a view is short to replay.
    "delta.checkpointInterval": "100",
    # Otherwise, Delta would delete commits that a pinned version needs.
    LOG_CLEANUP: "false",
}


def table_properties(
    dataset: StreamingTable | MaterializedView,
    settings: ProjectSettings,
    kept: CoordinateColumns,
    *,
    changes: AutoCdcFlow | None = None,
    groups: Groups | None = None,
    replayable: bool = False,
    needs_feed: bool = False,
) -> dict[str, str]:
    """The properties of a dataset's table; the user's replace the defaults."""
    streaming = isinstance(dataset, StreamingTable)
    properties = dict(STREAMING_TABLE_DEFAULTS if streaming else MATERIALIZED_VIEW_DEFAULTS)
    properties[PIPELINE] = settings.name
    properties[DATASET] = str(dataset.name)
    properties[KIND] = "streaming_table" if streaming else "materialized_view"
    if dataset.is_private:
        properties[PRIVATE] = "true"
    if changes is not None:
        properties |= KEYED_TABLE_DEFAULTS
        properties[KEYS] = json.dumps(changes.keys)
        properties[SCD_TYPE] = "1" if changes.history is None else "2"
        if replayable:
            properties[REPLAYABLE] = "true"
    if isinstance(dataset, MaterializedView) and dataset.refresh_policy.startswith("incremental"):
        # A view with the policy AUTO has them from the first refresh on that removes some of its rows.
        properties |= KEYED_TABLE_DEFAULTS
    if groups is not None:
        properties |= KEYED_TABLE_DEFAULTS
        properties[KEYS] = json.dumps(groups.keys)
    if kept.coordinates is not None:
        properties[COORDINATES] = json.dumps(kept.coordinates.to_json())
    if kept.timestamp is not None:
        properties[TIMESTAMP] = kept.timestamp
    if care := _care_of(dataset):
        properties[POLICY_PROPERTY] = json.dumps(care)
    if needs_feed:
        properties[FEED_PROPERTY] = "true"
    given = {key: value for key, value in dataset.table_properties.items() if not _is_ours(key)}
    # Delta gives new tables the properties of such settings; the feed is also for tables that exist.
    feed = settings.configuration.get(_FEED_DEFAULT)
    return {**({} if feed is None else {FEED_PROPERTY: feed}), **properties, **given}


_DELTA_PROPERTIES: Final = tuple(
    f"delta.{name}"
    for name in (
        *("appendOnly", "checkpointInterval", "checkpointPolicy", "columnMapping.mode"),
        *("checkpoint.writeStatsAsJson", "checkpoint.writeStatsAsStruct", "isolationLevel"),
        *("dataSkippingNumIndexedCols", "dataSkippingStatsColumns", "deletedFileRetentionDuration"),
        *("enableChangeDataFeed", "enableDeletionVectors", "enableExpiredLogCleanup", "enableRowTracking"),
        *("enableTypeWidening", "logRetentionDuration", "setTransactionRetentionDuration"),
    )
)
"""The properties that users set, for suggestions."""


def check_delta_properties(session: SparkSession, dataset: StreamingTable | MaterializedView) -> None:
    """Check the `delta.` properties of a dataset, and their values, with Delta itself; and how long its
    tombstones are kept."""
    from pyspark.errors import PySparkException

    jvm: Any = session._jvm
    given = {
        key: value
        for key, value in dataset.table_properties.items()
        if key.lower().startswith("delta.") and not _is_ours(key)
    }
    kept = dataset.table_properties.get(KEPT_PROPERTY, "0")
    if not kept.isdecimal():
        problem = f"the table property {KEPT_PROPERTY} = {kept} is not a number of seconds"
        raise _invalid(dataset, KEPT_PROPERTY, problem, f"write whole seconds:   {KEPT_PROPERTY} = 172800")
    for key, value in given.items():
        # Delta compares the retention of the log with the retention of the files.
        checked = {key: value} if key.lower() != LOG_RETENTION.lower() else given
        try:
            one = jvm.PythonUtils.toScalaMap(checked)
            jvm.org.apache.spark.sql.delta.DeltaConfigs.validateConfigurations(one)
        except PySparkException as error:
            text = str(error)
            for advice in ("If you are sure", "To disable this check", "JVM stacktrace"):
                text = text.partition(advice)[0]
            problem = f"Delta refuses the table property {key} = {value}"
            remedy = "correct the name or the value, or remove the property"
            facts = [" ".join(text.split())[:300]]
            if "UNKNOWN_CONFIGURATION" in text:
                problem, facts = f"Delta has no table property `{key}`", []
                (remedy,) = did_you_mean(key, _DELTA_PROPERTIES, "remove the property, or correct its name")
            elif "INVALID_INTERVAL" in text:
                problem, facts = f"the table property {key} = {value} is not a time", []
                is_sql = dataset.location.is_sql
                remedy = f"'{key}' = 'interval 30 days'" if is_sql else f'"{key}": "interval 30 days"'
                remedy = f"write a time such as:   {remedy}"
            raise _invalid(dataset, key, problem, remedy, *facts) from error


def _invalid(
    dataset: StreamingTable | MaterializedView, key: str, problem: str, remedy: str, *facts: str
) -> PropertyInvalidError:
    return PropertyInvalidError(
        problem,
        location=argument_location(dataset.location, "table_properties", key),
        facts=facts,
        remedies=[remedy],
        params={"dataset": str(dataset.name), "property": key, "value": dataset.table_properties[key]},
    )


def _is_ours(key: str) -> bool:
    """Whether a property of Databricks is one that Delta Lake does not know, and Headrace does."""
    return key.lower() == TARGET_SIZE.lower()


def _care_of(dataset: StreamingTable | MaterializedView) -> Mapping[str, Any]:
    found = dict(dataset.maintenance)
    for key, value in dataset.table_properties.items():
        if _is_ours(key):
            try:
                found.setdefault("target_file_size", parse_bytes(value))
            except ValueError as error:
                problem = f"the table property {key} = {value} {error}"
                raise _invalid(dataset, key, problem, f"write a size:   {key} = 128mb") from error
    return found


def coordinates_of(properties: Mapping[str, str]) -> CoordinateColumns:
    """The coordinate columns that a table's properties name."""
    text = properties.get(COORDINATES)
    return named_columns(None if text is None else _coordinates(text), properties.get(TIMESTAMP))


def keys_of(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The keys by which changes are applied to a table; empty if rows are appended."""
    return tuple(json.loads(properties.get(KEYS, "[]")))


def keeps_history(properties: Mapping[str, str]) -> bool:
    """Whether the table has the history of each key (SCD type 2)."""
    return properties.get(SCD_TYPE) == "2"


def _coordinates(text: str) -> Coordinates:
    try:
        value: Any = json.loads(text)
        record = widest_coordinates(value, STREAM_COORDINATES)
        if record is None:
            raise ValueError("its keys are not the coordinates of a kind of source")
        return Coordinates(columns={name: str(value[name]) for name in record.names}, record=record)
    except (ValueError, TypeError) as error:
        raise PropertyInvalidError(
            f"the table property {COORDINATES} is not a JSON object with the columns of coordinates",
            facts=[f"its value: {text}"],
            remedies=[f"write {json.dumps({n: n for n in one.names})}" for one in STREAM_COORDINATES],
            params={"property": COORDINATES, "value": text},
        ) from error


_CHECKPOINTS = ("delta.checkpointPolicy", ("v2",), "checkpoints of version 2")
_MAPPING = ("delta.columnMapping.mode", ("name", "id"), "column mapping")
_VECTORS = ("delta.enableDeletionVectors", ("true",), "deletion vectors")
_WIDENING = ("delta.enableTypeWidening", ("true",), "type widening")

_CANNOT_READ: Mapping[str, tuple[tuple[str, tuple[str, ...], str], ...]] = {
    "duckdb": (),
    "polars": (_CHECKPOINTS, _MAPPING, _WIDENING),
    "delta-rs": (_CHECKPOINTS, _MAPPING, _VECTORS, _WIDENING),
}
"""The properties, their values and what they turn on, that a reader cannot read.

Tried with DuckDB 1.5.5, Polars 2.1, delta-rs 1.6.6 (`to_pyarrow_table`, which has NULLs for mapped columns).
"""

_WITHOUT_VARIANT = frozenset({"polars", "delta-rs"})


def find_unreadable(
    stages: Iterable[OpenTableStage | RefreshViewStage], settings: ProjectSettings
) -> Iterator[Note]:
    """A warning for each table that a reader of the spec cannot read."""
    for stage in stages if settings.readers else ():
        match stage:
            case OpenTableStage(table=dataset, schema=schema):
                pass
            case RefreshViewStage(view=dataset, planned=planned):
                schema = planned.schema
        for reader in settings.readers:
            for found, remedy in _unreadable(reader, stage.properties, schema):
                yield Note(
                    level="warning",
                    text=f"{reader} cannot read `{dataset.name.short}`, which has {found}",
                    location=dataset.location,
                    remedy=remedy,
                )


def cannot_read(key: str, value: str) -> tuple[str, ...]:
    """The names of the readers that cannot read a table with a property."""
    return tuple(
        reader
        for reader, found in _CANNOT_READ.items()
        if any(key == name and value.lower() in values for name, values, _ in found)
    )


def kept_plain_for(view: MaterializedView, settings: ProjectSettings) -> tuple[str, ...]:
    """The readers of the spec for which a refresh by the policy AUTO gives a view no deletion vectors."""
    if view.refresh_policy != "auto" or _VECTORS[0] in view.table_properties:
        return ()
    return tuple(one for one in cannot_read(_VECTORS[0], "true") if one in settings.readers)


def _unreadable(
    reader: str, properties: Mapping[str, str], schema: columns.Schema
) -> Iterator[tuple[str, str]]:
    """What a reader cannot read, and the remedy."""
    for key, values, what in _CANNOT_READ[reader]:
        if properties.get(key, "").lower() in values:
            without = "none" if key == _MAPPING[0] else "classic" if key == _CHECKPOINTS[0] else "false"
            yield what, f'set table_properties={{"{key}": "{without}"}}, or remove {reader} from `readers`'
    if reader in _WITHOUT_VARIANT:
        for one in columns.fields(schema):
            if _has_variant(one["type"]):
                remedy = f"store `{one['name']}` as text, or remove {reader} from `readers`"
                yield f"the VARIANT column `{one['name']}`", remedy


def _has_variant(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind == "variant"
    inner = [kind.get(name) for name in ("elementType", "keyType", "valueType")]
    inner += [field["type"] for field in kind.get("fields", ())]
    return any(one is not None and _has_variant(one) for one in inner)
