"""Declarations in Python, under the names of Spark's own declarative pipelines.

Decorators register frozen records with the active pipeline, and return the function: it stays an
ordinary function, which a test may call. Outside of a pipeline they register nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from headrace.declare.arguments import arguments_of, checked_care
from headrace.declare.expectations import Conditions, DeclaredCheck, build_expectations, declared_checks
from headrace.declare.registry import Registry, current_pipeline
from headrace.model.declarations import (
    Action,
    AppendFlow,
    Dataset,
    Flow,
    MaterializedView,
    RefreshFlow,
    StreamingTable,
    TemporaryView,
)
from headrace.model.names import TableName
from headrace.model.queries import PythonQuery
from headrace.runtime.lazy_pyspark import StructType
from headrace.syntax.bindings import bind
from headrace.syntax.sql import SqlText
from headrace.syntax.statements import HAS_CLAUSES, TableClauses
from headrace.syntax.tokens import Cursor, SqlTokenError

QueryT = TypeVar("QueryT", bound=Callable[[], Any])
ArgumentsT = ParamSpec("ArgumentsT")
TriggerArgument = str | float | Mapping[str, Any]


class _Decorator(Protocol[ArgumentsT]):
    @overload
    def __call__(self, query_function: QueryT, /) -> QueryT: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, *args: ArgumentsT.args, **kwargs: ArgumentsT.kwargs) -> Callable[[QueryT], QueryT]: ...


def _also_bare(declaring: Callable[ArgumentsT, Callable[[Any], Any]]) -> _Decorator[ArgumentsT]:
    """Let a decorator with arguments also be used without parentheses."""

    @functools.wraps(declaring)
    def decorate(query_function: Any = None, /, *args: ArgumentsT.args, **kwargs: ArgumentsT.kwargs) -> Any:
        decorator = declaring(*args, **kwargs)
        return decorator if query_function is None else decorator(query_function)

    own = inspect.signature(declaring)
    bare = inspect.Parameter("query_function", inspect.Parameter.POSITIONAL_ONLY, default=None)
    decorate.__signature__ = own.replace(parameters=[bare, *own.parameters.values()])  # type: ignore[attr-defined]
    return decorate


@_also_bare
def table(
    *,
    name: str | None = None,
    comment: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    table_properties: Mapping[str, str] | None = None,
    partition_cols: Sequence[str] | None = None,
    cluster_by: Sequence[str] | None = None,
    schema: StructType | str | None = None,
    format: str | None = None,
    trigger: TriggerArgument | None = None,
    max_rejected: str | int | None = None,
    maintenance: Mapping[str, Any] | None = None,
    private: bool = False,
    renamed_columns: Mapping[str, str] | None = None,
    dropped_columns: Sequence[str] | None = None,
) -> Callable[[QueryT], QueryT]:
    """Declare a streaming table, fed by the decorated function's streaming query.

    Args:
        name: The table's name; by default the function's.
        comment: What the table holds; by default the function's docstring.
        spark_conf: Spark settings of this flow.
        table_properties: Properties of the Delta table.
        partition_cols: Columns that partition the table's files.
        cluster_by: Columns that the table is clustered by (liquid clustering).
        schema: The table's columns, as a DDL string, a ``StructType`` or a file; by default the query's.
        format: ``delta``, which is also the default.
        trigger: The minimum time between two batches (``"30 seconds"``), or ``"available_now"`` to read
            the records that exist at the start and end. The default is the trigger of the spec; if the
            spec has none, a batch starts when the previous batch has ended.
        max_rejected: The maximum share (``"5%"``) or number of rejected records in a batch. A batch above the
            limit stops the flow. ``"5% of 20 batches"`` limits a batch together with the 19 batches before
            it. The default is ``max_rejected`` of the spec; if the spec has none, there is no limit.
        maintenance: How the table is maintained, with the keys of ``maintenance`` in the spec:
            ``{"small_files": 100, "retention": "30 days"}``.
        private: Whether ``SHOW TABLES`` leaves the table out. Its rows are stored as those of other tables.
        renamed_columns: New names for columns of an existing table, by their old names:
            ``{"cust": "customer", "address.zip": "postcode"}``. No file is rewritten.
        dropped_columns: Columns to drop from an existing table; their values can no longer be read.

    Example:
        >>> import headrace as hr
        >>> @hr.table(cluster_by=["customer"])
        ... def orders():
        ...     return hr.read_kafka("orders", format="json", schema="id LONG, customer STRING")
    """

    def declare(function: Any, scope: Scope) -> None:
        target = scope.table_name(name)
        stored = scope.stored(target, comment, table_properties, partition_cols, cluster_by, schema, format)
        stored |= scope.treated(max_rejected, maintenance, private)
        dataset = StreamingTable(**stored, **scope.changed_columns(renamed_columns, dropped_columns))
        flow = AppendFlow(
            name=target.within(scope.default_schema),
            target=target,
            query=scope.query,
            **scope.flow_settings(spark_conf, trigger),
        )
        scope.register(dataset, flow)

    return _decorate("@hr.table", declare)


@_also_bare
def materialized_view(
    *,
    name: str | None = None,
    comment: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    table_properties: Mapping[str, str] | None = None,
    partition_cols: Sequence[str] | None = None,
    cluster_by: Sequence[str] | None = None,
    schema: StructType | str | None = None,
    format: str | None = None,
    trigger: TriggerArgument | None = None,
    max_rejected: str | int | None = None,
    maintenance: Mapping[str, Any] | None = None,
    private: bool = False,
    refresh_policy: str | None = None,
) -> Callable[[QueryT], QueryT]:
    """Declare a table that always equals the result of the decorated function's batch query.

    It takes the same arguments as `table`; ``trigger`` is the minimum time between two refreshes of a
    continuous update, and ``max_rejected`` limits the rejected rows of a refresh. ``refresh_policy``:
    ``auto``, the default, computes what costs less, ``full`` the whole view, ``incremental`` only what has
    changed, where that is possible, and ``incremental_strict`` never the whole view, but for the first time.

    Example:
        >>> import headrace as hr
        >>> @hr.materialized_view
        ... def revenue():
        ...     return hr.spark.read.table("orders").groupBy("customer").sum("amount")
    """

    def declare(function: Any, scope: Scope) -> None:
        target = scope.table_name(name)
        stored = scope.stored(target, comment, table_properties, partition_cols, cluster_by, schema, format)
        policy = scope.arguments.refresh_policy(refresh_policy)
        treated = scope.treated(max_rejected, maintenance, private)
        dataset = MaterializedView(**stored, **treated, refresh_policy=policy)
        flow = RefreshFlow(
            target=target,
            query=scope.query,
            spark_conf=scope.arguments.settings("spark_conf", spark_conf),
            trigger=scope.arguments.view_trigger(trigger, spark_conf or {}),
        )
        scope.register(dataset, flow)

    return _decorate("@hr.materialized_view", declare)


@_also_bare
def temporary_view(
    *, name: str | None = None, comment: str | None = None, spark_conf: Mapping[str, str] | None = None
) -> Callable[[QueryT], QueryT]:
    """Declare a named query for other queries of the pipeline; its rows are not stored.

    Example:
        >>> import headrace as hr
        >>> @hr.temporary_view
        ... def large_orders():
        ...     return hr.spark.read.table("orders").where("amount > 1000")
    """

    def declare(function: Any, scope: Scope) -> None:
        target = scope.table_name(name)
        given = name if name is not None else getattr(function, "__name__", "")
        if "." in given:
            raise scope.arguments.invalid(
                "name", f"must have one part for a temporary view, not several: `{given}`"
            )
        dataset = TemporaryView(
            name=target,
            query=scope.query,
            comment=scope.comment(comment),
            spark_conf=scope.arguments.settings("spark_conf", spark_conf),
        )
        scope.register(dataset)

    return _decorate("@hr.temporary_view", declare)


def append_flow(
    *,
    target: str,
    name: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    trigger: TriggerArgument | None = None,
    once: bool = False,
) -> Callable[[QueryT], QueryT]:
    """Declare one more query that appends to a streaming table.

    Args:
        target: The streaming table, as `create_streaming_table` or `table` declares it.
        name: The flow's name, unique in the pipeline; by default the function's. It is part of the
            checkpoint's path, so a flow that has run is renamed with ``headrace run --rename-flow OLD=NEW``.
        spark_conf: Spark settings of this flow.
        trigger: When its batches start, as `table` takes it.
        once: Whether the query is a batch query, such as ``spark.read.parquet("history")``, whose rows are
            appended once. A full refresh of the table appends them again.

    Example:
        >>> import headrace as hr
        >>> hr.create_streaming_table("orders")
        >>> @hr.append_flow(target="orders")
        ... def orders_of_europe():
        ...     return hr.read_kafka("orders-eu")
    """

    def declare(function: Any, scope: Scope) -> None:
        given = name if name is not None else getattr(function, "__name__", None)
        flow = AppendFlow(
            name=scope.arguments.flow_name(given),
            target=scope.arguments.table_name("target", target, scope.default_schema),
            query=scope.query,
            **scope.flow_settings(spark_conf, trigger, once=once),
        )
        scope.register(flow)

    return _decorate("@hr.append_flow", declare)


def create_streaming_table(
    name: str,
    *,
    comment: str | None = None,
    table_properties: Mapping[str, str] | None = None,
    partition_cols: Sequence[str] | None = None,
    cluster_by: Sequence[str] | None = None,
    schema: StructType | str | None = None,
    format: str | None = None,
    expect_all: Conditions | None = None,
    expect_all_or_drop: Conditions | None = None,
    expect_all_or_quarantine: Conditions | None = None,
    expect_all_or_fail: Conditions | None = None,
    checks: Sequence[DeclaredCheck] = (),
    max_rejected: str | int | None = None,
    maintenance: Mapping[str, Any] | None = None,
    private: bool = False,
    renamed_columns: Mapping[str, str] | None = None,
    dropped_columns: Sequence[str] | None = None,
) -> None:
    """Declare a streaming table without a query; flows of `append_flow` or `create_auto_cdc_flow` feed it.

    It has the arguments of `table`. Expectations on the rows of all its flows are dicts of conditions by
    name. ``checks`` is a list of `expect_unique`, `expect_row_count` and `expect_fresh`; they run after each
    batch of each flow.

    Example:
        >>> import headrace as hr
        >>> hr.create_streaming_table("orders", cluster_by=["customer"], checks=[hr.expect_unique("id")])
    """
    scope = Scope("hr.create_streaming_table", None)
    target = scope.arguments.table_name("name", name, scope.default_schema)
    stored = scope.stored(target, comment, table_properties, partition_cols, cluster_by, schema, format)
    stored |= scope.treated(max_rejected, maintenance, private)
    stored |= scope.changed_columns(renamed_columns, dropped_columns)
    given: dict[str, tuple[Action, Conditions | None]] = {
        "expect_all": ("warn", expect_all),
        "expect_all_or_drop": ("drop", expect_all_or_drop),
        "expect_all_or_quarantine": ("quarantine", expect_all_or_quarantine),
        "expect_all_or_fail": ("fail", expect_all_or_fail),
    }
    expectations = tuple(
        one
        for argument, (action, conditions) in given.items()
        if conditions is not None
        for one in build_expectations(scope.arguments, argument, action, conditions)
    )
    found = declared_checks(scope.arguments, checks)
    scope.register(StreamingTable(expectations=expectations, checks=found, **stored))


class Scope:
    """One declaration: its source location, the checks of its arguments, and the registry."""

    def __init__(self, call: str, function: Any) -> None:
        active = current_pipeline()
        self.function = function
        self._root = active.settings.root if active else None
        self.default_schema = active.settings.database if active else "default"
        self.arguments = arguments_of(call, function)
        self.location = self.arguments.location
        self._registry: Registry | None = active.registry if active else None

    @functools.cached_property
    def query(self) -> PythonQuery:
        """The function with the values that its names have now; outside of a pipeline as it is."""
        if self._registry is None:
            return PythonQuery(self.function, self.location)
        return bind(self.function, self.location)

    def table_name(self, name: str | None) -> TableName:
        given = name if name is not None else getattr(self.function, "__name__", None)
        return self.arguments.table_name("name", given, self.default_schema)

    def stored(
        self,
        name: TableName,
        comment: Any,
        table_properties: Any,
        partition_cols: Any,
        cluster_by: Any,
        schema: Any,
        format: Any,
    ) -> dict[str, Any]:
        """The checked arguments of a dataset that is stored as a table."""
        partitions, clusters = self.arguments.layout(partition_cols, cluster_by)
        return {
            "name": name,
            "location": self.location,
            "comment": self.comment(comment),
            "table_properties": self.arguments.settings("table_properties", table_properties),
            "partition_cols": partitions,
            "cluster_by": clusters,
            "schema": self._without_keys(name, self.arguments.schema(schema, self._root)),
            "format": self.arguments.delta(format),
        }

    def _without_keys(self, name: TableName, schema: Any) -> Any:
        """The columns of a DDL string; primary and foreign keys have no effect, as in SQL."""
        if not isinstance(schema, str) or not HAS_CLAUSES.search(schema):
            return schema
        try:
            cursor = Cursor(SqlText(schema, self.location))
        except SqlTokenError:
            # Spark's parser reports it.
            return schema
        clauses = TableClauses(cursor, "streaming table")
        clauses.read_columns(cursor)
        found = clauses.found()
        for one in found["constraints"]:
            function = "expect_all" if one.action == "warn" else f"expect_all_or_{one.action}"
            given = f"{{{one.name!r}: {one.condition!r}}}"
            is_decorator = self.arguments.call.startswith("@")
            remedy = f"write @dp.{function}({given})" if is_decorator else f"write {function}={given}"
            raise self.arguments.invalid("schema", f"has the expectation `{one.name}`", remedy)
        active = current_pipeline()
        for clause, location in found["ignored"]:
            if active is not None:
                active.note(f"{clause} of `{name.short}` has no effect", location)
        return found["columns"]

    def treated(self, max_rejected: Any, maintenance: Any, private: Any) -> dict[str, Any]:
        """The checked arguments that only Headrace has for stored datasets."""
        given = {} if maintenance is None else {"maintenance": checked_care(self.arguments, maintenance)}
        limit = self.arguments.rejection_limit(max_rejected)
        return {"max_rejected": limit, "is_private": bool(private), **given}

    def changed_columns(self, renamed: Any, dropped: Any) -> dict[str, Any]:
        """The checked arguments ``renamed_columns`` and ``dropped_columns``."""
        names = self.arguments.settings("renamed_columns", renamed)
        columns = self.arguments.columns("dropped_columns", dropped)
        return {"renamed_columns": names, "dropped_columns": columns}

    def flow_settings(self, spark_conf: Any, trigger: Any, *, once: bool = False) -> dict[str, Any]:
        conf = self.arguments.settings("spark_conf", spark_conf)
        found = self.arguments.flow_trigger(trigger, conf, once=once)
        return {"spark_conf": conf, "trigger": found, "once": once}

    def comment(self, comment: str | None) -> str | None:
        given = self.arguments.optional_text("comment", comment)
        if given is not None or not getattr(self.function, "__doc__", None):
            return given
        # The first paragraph: the rest of a docstring is for the readers of the code.
        paragraph = str(self.function.__doc__).strip().split("\n\n")[0]
        return " ".join(paragraph.split()) or None

    def register(self, *declared: Dataset | Flow) -> None:
        if self._registry is None:
            return
        for item in declared:
            if isinstance(item, Flow):
                self._registry.add_flow(item)
            else:
                self._registry.add_dataset(item, self.function)


def _decorate(call: str, declare: Callable[[Any, Scope], None]) -> Callable[[QueryT], QueryT]:
    def decorator(function: QueryT) -> QueryT:
        scope = Scope(call, function)
        declare(scope.arguments.query(function), scope)
        return function

    return decorator
