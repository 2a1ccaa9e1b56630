"""Flows that apply change records to a table by key, under the names that Lakeflow and Spark give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from headrace.contracts.changes import ChangeColumns, as_changes
from headrace.contracts.expectations import text_of_column
from headrace.declare.arguments import Arguments
from headrace.declare.python import Scope, TriggerArgument
from headrace.declare.registry import current_pipeline, spark
from headrace.errors import FeatureUnsupportedError
from headrace.model.declarations import AutoCdcFlow
from headrace.model.names import ALL_COLUMNS, ChosenColumns
from headrace.model.queries import PythonQuery, Query, SqlQuery
from headrace.model.snapshots import SnapshotFunction, Snapshots, StoredSnapshots
from headrace.runtime.lazy_pyspark import Column, DataFrame
from headrace.syntax.locations import located_at


def create_auto_cdc_flow(
    target: str,
    source: str | SqlQuery,
    keys: Sequence[str] | Sequence[Column],
    sequence_by: str | Column,
    *,
    ignore_null_updates: bool = False,
    ignore_null_updates_column_list: Sequence[str] | Sequence[Column] | None = None,
    ignore_null_updates_except_column_list: Sequence[str] | Sequence[Column] | None = None,
    apply_as_deletes: str | Column | None = None,
    apply_as_truncates: str | Column | None = None,
    column_list: Sequence[str] | Sequence[Column] | None = None,
    except_column_list: Sequence[str] | Sequence[Column] | None = None,
    stored_as_scd_type: Literal[1, 2, "1", "2"] = 1,
    track_history_column_list: Sequence[str] | Sequence[Column] | None = None,
    track_history_except_column_list: Sequence[str] | Sequence[Column] | None = None,
    name: str | None = None,
    null_keys: Literal["quarantine", "fail"] = "quarantine",
    spark_conf: Mapping[str, str] | None = None,
    trigger: TriggerArgument | None = None,
    once: bool = False,
) -> None:
    """Declare a flow that applies change records to a streaming table by key.

    For each key the table holds the record with the greatest sequence. The order in which records arrive does
    not matter. If two records of a key have equal sequences, the later position in the source wins (Kafka:
    partition, then offset). The table gets a column ``_sequence`` with the sequence and the position of each
    row's record.

    Args:
        target: The streaming table, as `create_streaming_table` declares it.
        source: The table or temporary view with the change records; it is read as a stream. SQL files give a
            query.
        keys: The columns that identify a row.
        sequence_by: A column, SQL text or a Column (also a struct) that orders the records of a key.
        ignore_null_updates: Whether a column keeps its value where a record has NULL. The table gets a
            column ``_sequences`` with the sequence of each value that is older than its row.
        ignore_null_updates_column_list: The columns that keep their values; by default all but the keys.
        ignore_null_updates_except_column_list: The columns that do not.
        apply_as_deletes: The condition of records that delete the row of their key, as SQL text or a Column.
            If it is NULL, the record is an upsert. Tombstones of deleted keys are kept for two days (table
            property ``pipelines.cdc.tombstoneGCThresholdInSeconds``), so that an older record that arrives
            later does not restore the row.
        apply_as_truncates: The condition of records that delete all older rows.
        column_list: The columns of the table; by default all columns of the source but ``_source``.
        except_column_list: Columns of the source that the table does not have.
        stored_as_scd_type: 1: the table has the current row of each key. 2: it has the history of each key.
            A row is valid from the sequence in ``__START_AT`` until before that in ``__END_AT``, which is
            NULL for the current row.
        track_history_column_list: With SCD type 2, the columns whose changes begin a new row; by default all
            columns of the table but the keys. A change of other columns replaces them in the row.
        track_history_except_column_list: The columns whose changes do not begin a new row.
        name: The flow's name; by default the table's.
        null_keys: What happens to a record with a NULL in a key or in the sequence: ``"quarantine"`` moves
            it to the quarantine table, ``"fail"`` stops the flow.
        spark_conf: Spark settings of this flow.
        trigger: When its batches start, as `table` takes it.
        once: Whether the source is read as a batch, and its records are applied once. A full refresh of the
            table applies them again.

    Raises:
        ArgumentInvalidError: An argument has an invalid value.
        FeatureUnsupportedError: An argument asks for what this version cannot do yet.

    Example:
        >>> import headrace as hr
        >>> hr.create_streaming_table("customers")
        >>> hr.create_auto_cdc_flow(
        ...     target="customers",
        ...     source="customer_changes",
        ...     keys=["id"],
        ...     sequence_by="changed_at",
        ...     apply_as_deletes="op = 'd'",
        ... )
    """
    scope = Scope("AUTO CDC" if isinstance(source, SqlQuery) else "hr.create_auto_cdc_flow", None)
    arguments = scope.arguments
    lists = (given(track_history_column_list), given(track_history_except_column_list))
    history = history_columns(arguments, stored_as_scd_type, apply_as_truncates, *lists)
    arguments.flag("ignore_null_updates", ignore_null_updates)
    lists = (given(ignore_null_updates_column_list), given(ignore_null_updates_except_column_list))
    column_list, except_column_list = given(column_list), given(except_column_list)
    kept_if_null = _chosen(arguments, "ignore_null_updates", *lists)
    if kept_if_null is None and ignore_null_updates:
        kept_if_null = ALL_COLUMNS
    if kept_if_null is not None and apply_as_truncates is not None:
        raise FeatureUnsupportedError(
            f"{arguments.call}: this version does not support ignore_null_updates together with"
            " apply_as_truncates",
            location=arguments.location,
            remedies=["remove one of them"],
            params={"what": "ignore_null_updates"},
        )
    table = arguments.table_name("target", target, scope.default_schema)
    if null_keys not in ("quarantine", "fail"):
        raise arguments.invalid("null_keys", f'must be "quarantine" or "fail", not {null_keys!r}')
    if column_list is not None and except_column_list is not None:
        raise arguments.invalid("column_list", "cannot be used together with except_column_list")
    columns = ChangeColumns(
        keys=column_list_of(arguments, "keys", keys),
        sequence_by=_expression(arguments, "sequence_by", sequence_by),
        deletes=_expression(arguments, "apply_as_deletes", apply_as_deletes, optional=True),
        truncates=_expression(arguments, "apply_as_truncates", apply_as_truncates, optional=True),
        included=None if column_list is None else column_list_of(arguments, "column_list", column_list),
        excluded=()
        if except_column_list is None
        else column_list_of(arguments, "except_column_list", except_column_list),
        tracked=history,
        kept_if_null=kept_if_null,
    )
    read = arguments.text("source", source) if not isinstance(source, SqlQuery) else ""

    def changes() -> DataFrame:
        with located_at(arguments.location):
            records = spark.read.table(read) if once else spark.readStream.table(read)
        return as_changes(records, columns)

    query: Query = PythonQuery(changes, arguments.location)
    if isinstance(source, SqlQuery):
        query = replace(source, then=partial(as_changes, columns=columns))

    scope.register(
        AutoCdcFlow(
            name=arguments.flow_name(name if name is not None else table.within(scope.default_schema)),
            target=table,
            query=query,
            keys=tuple(text_of(one) for one in columns.keys),
            sequence_by=text_of(columns.sequence_by),
            truncates=columns.truncates is not None,
            null_keys=null_keys,
            history=history,
            kept_if_null=kept_if_null,
            **scope.flow_settings(spark_conf, trigger, once=once),
        )
    )


apply_changes = create_auto_cdc_flow  # the older name of `create_auto_cdc_flow`


def given(columns: Any) -> Any:
    """A list of columns; an empty list means that none is given, as on Databricks."""
    return None if isinstance(columns, Sequence) and not columns else columns


def history_columns(
    arguments: Arguments, scd_type: Any, truncates: Any, included: Any, excluded: Any
) -> ChosenColumns | None:
    """The tracked columns of a table with histories; ``None`` for SCD type 1."""
    if str(scd_type).lower() == "bitemporal":
        raise FeatureUnsupportedError(
            f"{arguments.call}: this version does not support bitemporal histories",
            location=arguments.location,
            remedies=["keep a history with one time: stored_as_scd_type=2, without system_sequence_by"],
            params={"what": "bitemporal"},
        )
    if str(scd_type) not in ("1", "2"):
        raise arguments.invalid("stored_as_scd_type", f"must be 1 or 2, not {scd_type!r}")
    chosen = _chosen(arguments, "track_history", included, excluded)
    if str(scd_type) == "1":
        if chosen is not None:
            argument = "track_history_column_list" if included else "track_history_except_column_list"
            raise arguments.invalid(argument, "needs stored_as_scd_type=2")
        return None
    if truncates is not None:
        raise arguments.invalid("apply_as_truncates", "cannot be used with stored_as_scd_type=2")
    return chosen or ALL_COLUMNS


def _chosen(arguments: Arguments, prefix: str, included: Any, excluded: Any) -> ChosenColumns | None:
    """The columns of a column list or of an except list; ``None`` if neither is given."""
    lists = {f"{prefix}_column_list": included, f"{prefix}_except_column_list": excluded}
    found = {
        name: tuple(text_of(one) for one in column_list_of(arguments, name, given))
        for name, given in lists.items()
        if given is not None
    }
    if len(found) > 1:
        raise arguments.invalid(
            f"{prefix}_column_list", f"cannot be used together with {prefix}_except_column_list"
        )
    match list(found.items()):
        case []:
            return None
        case [(name, columns)] if "except" in name:
            return ChosenColumns(excluded=columns)
        case _:
            return ChosenColumns(included=next(iter(found.values())))


def column_list_of(arguments: Arguments, argument: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, str):
        raise arguments.invalid(
            argument, "must be a list of columns, not text", f'write {argument}=["{given}"]'
        )
    if not isinstance(given, Sequence) or not given or not all(_is_column(one) for one in given):
        raise arguments.invalid(argument, "must be a list of column names or Columns, with at least one")
    return tuple(given)


def _expression(arguments: Arguments, argument: str, given: Any, *, optional: bool = False) -> Any:
    if (given is None and optional) or _is_column(given):
        return given
    raise arguments.invalid(argument, "must be SQL text or a Column")


def _is_column(given: Any) -> bool:
    return (isinstance(given, str) and bool(given.strip())) or hasattr(given, "_jc")


def text_of(given: Any) -> str:
    if isinstance(given, str):
        return given
    return text_of_column(str(given).removeprefix("Column<'").removesuffix("'>"))


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

    Example:
        >>> import headrace as hr
        >>> hr.create_streaming_table("customers")
        >>> hr.create_auto_cdc_from_snapshot_flow(
        ...     target="customers", source="./exports/customers", keys=["id"], stored_as_scd_type=2
        ... )
    """
    scope = Scope("hr.create_auto_cdc_from_snapshot_flow", None)
    arguments = scope.arguments
    lists = (given(track_history_column_list), given(track_history_except_column_list))
    history = history_columns(arguments, stored_as_scd_type, None, *lists)
    table = arguments.table_name("target", target, scope.default_schema)
    snapshots = _snapshots(arguments, source)
    columns = tuple(text_of(one) for one in column_list_of(arguments, "keys", keys))
    # The flow has no query of its own. If its source is a function, its fingerprint follows from that code.
    function: Any = snapshots.function if isinstance(snapshots, SnapshotFunction) else lambda: None
    scope.register(
        AutoCdcFlow(
            name=arguments.flow_name(name if name is not None else table.within(scope.default_schema)),
            target=table,
            query=PythonQuery(function, arguments.location),
            keys=columns,
            sequence_by="version",
            null_keys="fail",
            history=history,
            snapshots=snapshots,
            **scope.flow_settings(spark_conf, trigger),
        )
    )


apply_changes_from_snapshot = create_auto_cdc_from_snapshot_flow
"""The older name of `create_auto_cdc_from_snapshot_flow`."""


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
