"""Makes a table from a topic and brings it up to date: `headrace ingest` as a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.declare.spec import load_project_anywhere
from headrace.errors import HeadraceError
from headrace.project.engine import Engine
from headrace.project.ingest_code import IngestedTopic, Mode
from headrace.project.ingesting import IngestFolder, IngestRequest, prepare
from headrace.project.pipeline import Pipeline

if TYPE_CHECKING:
    from headrace.project.maintenance import MaintenanceResult
    from headrace.run.stop import StopSignal
    from headrace.run.update import RunResult


@dataclass(frozen=True, kw_only=True)
class IngestResult:
    """What `ingest` has done.

    Args:
        topic: The topic and its table.
        columns: The columns of the payload with their types as DDL.
        update: The result of the update: its flows with their rows, and their errors.
        maintenance: What was done to the files of the tables.
    """

    topic: IngestedTopic
    columns: Mapping[str, str]
    update: RunResult
    maintenance: tuple[MaintenanceResult, ...] = ()


def ingest(
    topic: str,
    *,
    mode: Mode | None = None,
    keys: Sequence[str] | None = None,
    sequence_by: str | None = None,
    partition_by: Sequence[str] | None = None,
    cluster_by: Sequence[str] | None = None,
    table: str | None = None,
    keep_raw: bool | None = None,
    schema: str | Path | None = None,
    update_schema: bool = False,
    trial: bool = False,
    continuous: bool = False,
    optimize: bool = True,
    vacuum: bool = True,
    path: str | Path | None = None,
    profile: str | None = None,
    overrides: Mapping[str, str] | None = None,
    progress: bool = False,
    stop: StopSignal | None = None,
) -> IngestResult:
    """Make a table from a topic of JSON records, and bring it up to date.

    Args:
        topic: The topic.
        mode: ``append`` (the default), ``upsert`` for the newest record of each key, ``cdc`` for Debezium.
        keys: The columns that identify a row; by default the key of the records.
        sequence_by: The record of a key with the greatest value wins; by default Kafka's timestamp.
        partition_by: Columns that partition the table.
        cluster_by: Columns that cluster the table.
        table: The name of the table; ``{topic}`` in it stands for the topic.
        keep_raw: Whether a second table keeps the records as they are.
        schema: A file with the columns of the records; by default the schema is inferred and kept.
        update_schema: Whether new fields of the records are added to the kept schema.
        trial: Whether to write a new table ``NAME_trial``, and nothing else.
        continuous: Whether to run until `stop` is set.
        optimize: Whether to compact the tables where that is due; not if `continuous` or `trial`.
        vacuum: Whether to delete files that the tables no longer need, where that is due.
        path: A pipeline whose storage and Kafka cluster are used; by default that of the current folder, or
            ``./lake`` and the embedded broker.
        profile: The profile of that pipeline.
        overrides: Values for keys of its spec, by dotted name.
        progress: Whether to show the progress.
        stop: Set it to stop.

    Raises:
        HeadraceError: The topic cannot be ingested; errors of the flow are in the result's `update`.

    Example:
        >>> import headrace as hr
        >>> hr.ingest("customers", mode="upsert", keys=["id"]).update.outcome  # doctest: +SKIP
    """
    settings = load_project_anywhere(
        None if path is None else Path(path), profile=profile, overrides=overrides
    )
    given: dict[str, Any] = {
        "mode": mode,
        "keys": None if keys is None else tuple(keys),
        "sequence_by": sequence_by,
        "partition_by": None if partition_by is None else tuple(partition_by),
        "cluster_by": None if cluster_by is None else tuple(cluster_by),
        "table": table,
        "keep_raw": keep_raw,
    }
    request = IngestRequest(
        given={name: value for name, value in given.items() if value is not None},
        schema=None if schema is None else Path(schema),
        update_schema=update_schema,
        trial=trial,
    )
    folder = IngestFolder(settings, trial=trial)
    try:
        reached = Engine(settings).reachable(start=True)
        prepared = prepare(topic, request, folder, reached)
    except HeadraceError as error:
        raise settings.redactor.error(error) from error.__cause__
    with Pipeline(folder.open([prepared])) as pipeline:
        update = pipeline.run(continuous=continuous, progress=progress, stop=stop)
        result = IngestResult(topic=prepared.ingested, columns=prepared.columns, update=update)
        if update.outcome == "failed" or trial or continuous or not (optimize or vacuum):
            return result
        tables = prepared.ingested.tables
        return replace(result, maintenance=pipeline.maintain(tables, optimize=optimize, vacuum=vacuum))
