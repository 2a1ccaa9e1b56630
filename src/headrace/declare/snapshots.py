"""Flows that apply the differences between snapshots to a table by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from headrace.declare.arguments import Arguments, arguments_of
from headrace.declare.cdc import column_list_of, history_columns, text_of
from headrace.declare.python import TriggerArgument, flow_name_of
from headrace.declare.registry import current_pipeline
from headrace.model.declarations import AutoCdcFlow
from headrace.model.queries import PythonQuery
from headrace.model.snapshots import SnapshotFunction, Snapshots, StoredSnapshots

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def create_auto_cdc_from_snapshot_flow(
    target: str,
    source: str | Callable[[Any], tuple[DataFrame, Any] | None],
    keys: Sequence[str] | Sequence[Column],
    stored_as_scd_type: Literal[1, 2, "1", "2"] = 1,
    *,
    track_history_column_list: Sequence[str] | Sequence[Column] | None = None,
    track_history_except_column_list: Sequence[str] | Sequence[Column] | None = None,
    name: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    trigger: TriggerArgument | None = None,
) -> None:
    """Declare a flow that makes a streaming table equal to one snapshot of a source after another.

    A key that a snapshot does not have is deleted. A row changes only if one of its values has changed.
    Snapshots are applied in the order of their versions. A version that is not greater than the last one is
    skipped and reported.

    Args:
        target: The streaming table, as `create_streaming_table` declares it. It can have no other flow.
        source: The name or the path of a Delta table; the path of a folder of snapshots, with a ``/``; or a
            function that returns the next snapshot.

            Each run applies the newest version of a table. A folder has a folder or file for each snapshot,
            named by a whole number, a date or a timestamp: ``2026-01-31``, ``date=2026-01-31``, ``7.csv``.
            The format follows from the names of the files: Parquet, JSON lines or CSV with a header.

            A function gets the version of the last snapshot, first ``None``. It returns the next snapshot and
            its version, ``(DataFrame, version)``, or ``None`` if there is none. A version is a number, text,
            a date or a datetime.
        keys: The columns that identify a row.
        stored_as_scd_type: 1: the table has the current row of each key. 2: it has the history of each key.
            A row is valid from the version in ``__START_AT`` until before that in ``__END_AT``.
        track_history_column_list: With SCD type 2, the columns whose changes begin a new row; by default all
            columns of the table but the keys. A change of other columns replaces them in the row.
        track_history_except_column_list: The columns whose changes do not begin a new row.
        name: The flow's name; by default the table's.
        spark_conf: Spark settings of this flow.
        trigger: When its batches start, as `table` takes it.

    Raises:
        ArgumentInvalidError: An argument has an invalid value.

    Example:
        >>> import headrace as hr
        >>> hr.create_streaming_table("customers")
        >>> hr.create_auto_cdc_from_snapshot_flow(
        ...     target="customers", source="./exports/customers", keys=["id"], stored_as_scd_type=2
        ... )
    """
    active = current_pipeline()
    arguments = arguments_of("hr.create_auto_cdc_from_snapshot_flow")
    lists = (track_history_column_list, track_history_except_column_list)
    history = history_columns(arguments, stored_as_scd_type, None, *lists)
    default_schema = active.settings.database if active else "default"
    table = arguments.table_name("target", target, default_schema)
    snapshots = _snapshots(arguments, source)
    columns = tuple(text_of(one) for one in column_list_of(arguments, "keys", keys))
    conf = arguments.settings("spark_conf", spark_conf)
    if active is None or active.registry is None:
        return
    function: Callable[[], Any] = _nothing
    if isinstance(snapshots, SnapshotFunction):
        # The fingerprint of the declaration follows from the code of the function.
        function = snapshots.function  # type: ignore[assignment]
    active.registry.add_flow(
        AutoCdcFlow(
            name=arguments.flow_name(name if name is not None else flow_name_of(table, default_schema)),
            target=table,
            query=PythonQuery(function, arguments.location),
            keys=columns,
            sequence_by="version",
            null_keys="fail",
            history=history,
            snapshots=snapshots,
            spark_conf=conf,
            trigger=arguments.flow_trigger(trigger, conf),
        )
    )


apply_changes_from_snapshot = create_auto_cdc_from_snapshot_flow
"""The older name of `create_auto_cdc_from_snapshot_flow`."""


def _nothing() -> None:
    """The query of a flow whose rows are the differences between snapshots."""


def _snapshots(arguments: Arguments, source: Any) -> Snapshots:
    if callable(source):
        return SnapshotFunction(source)
    name = arguments.text("source", source)
    if not name.strip():
        raise arguments.invalid("source", "must not be empty")
    active = current_pipeline()
    if active is None:
        return StoredSnapshots(name)
    if "/" in name:
        return StoredSnapshots(active.settings.paths.map(name))
    mapped = active.settings.tables.find(tuple(part.strip("`") for part in name.split(".")))
    return StoredSnapshots(name if mapped is None or mapped.path is None else mapped.path)
