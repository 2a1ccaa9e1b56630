"""The table properties that Headrace gives to the tables of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import PropertyInvalidError
from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.model.project import ProjectSettings
from headrace.plan.lineage import CoordinateColumns, named_places
from headrace.plan.stages import Coordinates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE: Final = "headrace.pipeline"
DATASET: Final = "headrace.dataset"
KIND: Final = "headrace.kind"
COORDINATES: Final = "headrace.coordinates"
TIMESTAMP: Final = "headrace.timestamp"

USER_SETTABLE: Final = frozenset({COORDINATES, TIMESTAMP})
"""Properties under our own prefix that a user may set."""

FORBIDDEN: Final[Mapping[str, str]] = {
    "delta.setTransactionRetentionDuration": (
        "Delta would forget which batches the table holds, and a repeated batch would be added twice"
    ),
}

STREAMING_TABLE_DEFAULTS: Final[Mapping[str, str]] = {
    # A commit that also writes Delta's checkpoint makes its records wait; a thread of the run
    # writes them beside the commits. This interval is for when that thread cannot.
    "delta.checkpointInterval": "1000",
}
MATERIALIZED_VIEW_DEFAULTS: Final[Mapping[str, str]] = {
    # Each refresh replaces all files, so the log of a view stays short to replay.
    "delta.checkpointInterval": "100",
}


def table_properties(
    dataset: StreamingTable | MaterializedView, settings: ProjectSettings, places: CoordinateColumns
) -> dict[str, str]:
    """The properties of a dataset's table; the user's own win over defaults."""
    streaming = isinstance(dataset, StreamingTable)
    properties = dict(STREAMING_TABLE_DEFAULTS if streaming else MATERIALIZED_VIEW_DEFAULTS)
    properties[PIPELINE] = settings.name
    properties[DATASET] = str(dataset.name)
    properties[KIND] = "streaming_table" if streaming else "materialized_view"
    if places.coordinates is not None:
        properties[COORDINATES] = json.dumps(places.coordinates.to_json())
    if places.timestamp is not None:
        properties[TIMESTAMP] = places.timestamp
    return {**properties, **dataset.table_properties}


def check_delta_properties(session: SparkSession, dataset: StreamingTable | MaterializedView) -> None:
    """Ask Delta whether it knows the properties of its own that a dataset sets, and their values.

    Raises:
        PropertyInvalidError: It does not.
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
            said = str(error).partition("If you are sure")[0].partition("JVM stacktrace")[0]
            raise PropertyInvalidError(
                f"Delta does not take the table property {key} = {value}",
                location=dataset.location,
                facts=[" ".join(said.split())[:300]],
                remedies=["correct its name and value, or leave it out"],
                params={"dataset": str(dataset.name), "property": key, "value": value},
            ) from error


def places_of(properties: Mapping[str, str]) -> CoordinateColumns:
    """The places that a table's properties name.

    Raises:
        PropertyInvalidError: `headrace.coordinates` is not what it must be.
    """
    text = properties.get(COORDINATES)
    return named_places(None if text is None else _coordinates(text), properties.get(TIMESTAMP))


def _coordinates(text: str) -> Coordinates:
    try:
        value: Any = json.loads(text)
        return Coordinates(
            topic=str(value["topic"]), partition=str(value["partition"]), offset=str(value["offset"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise PropertyInvalidError(
            f"{COORDINATES} is not a JSON object of three columns",
            facts=[f"it is {text}"],
            remedies=['write {"topic": "topic", "partition": "partition", "offset": "offset"}'],
            params={"property": COORDINATES, "value": text},
        ) from error
