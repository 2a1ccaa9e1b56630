"""The table properties that Headrace sets on the tables of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import PropertyInvalidError
from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.model.project import ProjectSettings
from headrace.plan.coordinates import CoordinateColumns, named_columns
from headrace.plan.stages import Coordinates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE: Final = "headrace.pipeline"
DATASET: Final = "headrace.dataset"
KIND: Final = "headrace.kind"
COORDINATES: Final = "headrace.coordinates"
TIMESTAMP: Final = "headrace.timestamp"

USER_SETTABLE: Final = frozenset({COORDINATES, TIMESTAMP})
"""Properties under the prefix `headrace.` that a user may set."""

FORBIDDEN: Final[Mapping[str, str]] = {
    "delta.setTransactionRetentionDuration": (
        "Delta would remove transaction ids of committed batches, and a replayed batch could be added twice"
    ),
}

STREAMING_TABLE_DEFAULTS: Final[Mapping[str, str]] = {
    # A commit that also writes Delta's checkpoint delays its records; a thread of the run writes the
    # checkpoints beside the commits. This interval is for the case that the thread cannot.
    "delta.checkpointInterval": "1000",
}
MATERIALIZED_VIEW_DEFAULTS: Final[Mapping[str, str]] = {
    # Each refresh replaces all files, so the log of a view is short to replay.
    "delta.checkpointInterval": "100",
}


def table_properties(
    dataset: StreamingTable | MaterializedView, settings: ProjectSettings, kept: CoordinateColumns
) -> dict[str, str]:
    """The properties of a dataset's table; the user's replace the defaults."""
    streaming = isinstance(dataset, StreamingTable)
    properties = dict(STREAMING_TABLE_DEFAULTS if streaming else MATERIALIZED_VIEW_DEFAULTS)
    properties[PIPELINE] = settings.name
    properties[DATASET] = str(dataset.name)
    properties[KIND] = "streaming_table" if streaming else "materialized_view"
    if kept.coordinates is not None:
        properties[COORDINATES] = json.dumps(kept.coordinates.to_json())
    if kept.timestamp is not None:
        properties[TIMESTAMP] = kept.timestamp
    return {**properties, **dataset.table_properties}


def check_delta_properties(session: SparkSession, dataset: StreamingTable | MaterializedView) -> None:
    """Check the `delta.` properties of a dataset, and their values, with Delta itself.

    Raises:
        PropertyInvalidError: Delta refuses one.
    """
    from pyspark.errors import PySparkException

    jvm: Any = session._jvm
    for key, value in dataset.table_properties.items():
        if not key.lower().startswith("delta."):
            continue
        try:
            one = jvm.PythonUtils.toScalaMap({key: value})
            jvm.org.apache.spark.sql.delta.DeltaConfigs.validateConfigurations(one)
        except PySparkException as error:
            text = str(error).partition("If you are sure")[0].partition("JVM stacktrace")[0]
            raise PropertyInvalidError(
                f"Delta refuses the table property {key} = {value}",
                location=dataset.location,
                facts=[" ".join(text.split())[:300]],
                remedies=["correct the name or the value, or remove the property"],
                params={"dataset": str(dataset.name), "property": key, "value": value},
            ) from error


def coordinates_of(properties: Mapping[str, str]) -> CoordinateColumns:
    """The coordinate columns that a table's properties name.

    Raises:
        PropertyInvalidError: `headrace.coordinates` is not a JSON object of three columns.
    """
    text = properties.get(COORDINATES)
    return named_columns(None if text is None else _coordinates(text), properties.get(TIMESTAMP))


def _coordinates(text: str) -> Coordinates:
    try:
        value: Any = json.loads(text)
        return Coordinates(
            topic=str(value["topic"]), partition=str(value["partition"]), offset=str(value["offset"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise PropertyInvalidError(
            f"the table property {COORDINATES} is not a JSON object with three columns",
            facts=[f"its value: {text}"],
            remedies=['write {"topic": "topic", "partition": "partition", "offset": "offset"}'],
            params={"property": COORDINATES, "value": text},
        ) from error
