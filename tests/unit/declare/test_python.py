"""Decorators: what they register, and what they refuse."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import (
    ArgumentInvalidError,
    DuplicateNameError,
    FormatUnsupportedError,
    SchemaInvalidError,
)
from headrace.model.declarations import (
    AppendFlow,
    Declarations,
    MaterializedView,
    RefreshFlow,
    StreamingTable,
    TemporaryView,
    Trigger,
)
from headrace.model.names import TableName
from headrace.sources.schemas import SchemaFile

Load = Callable[..., Declarations]


def test_a_table_brings_its_flow(load: Load) -> None:
    declared = load(
        """
import headrace as hr

@hr.table(
    cluster_by=["customer"],
    table_properties={"delta.enableChangeDataFeed": "true"},
    spark_conf={"spark.sql.shuffle.partitions": "4"},
    schema="id LONG, customer STRING",
    format="DELTA",
)
def orders():
    \"\"\"One row for each order,
    as the shop sent it.

    More for readers of the code.
    \"\"\"
"""
    )
    (table,) = declared.datasets
    assert isinstance(table, StreamingTable)
    assert table.name == TableName("default", "orders")
    assert table.comment == "One row for each order, as the shop sent it."
    assert table.cluster_by == ("customer",)
    assert table.table_properties == {"delta.enableChangeDataFeed": "true"}
    assert table.schema == "id LONG, customer STRING"
    assert table.format == "delta"
    assert str(table.location) == "transformations/tables.py:11"
    (flow,) = declared.flows
    assert (flow.name, flow.target) == ("orders", table.name)
    assert flow.spark_conf == {"spark.sql.shuffle.partitions": "4"}


@pytest.mark.parametrize(
    ("arguments", "trigger"),
    [
        ("", None),
        ('trigger="30 seconds"', Trigger(interval_s=30)),
        ("trigger=0.5", Trigger(interval_s=0.5)),
        ('trigger="availableNow"', Trigger(available_now=True)),
        ('trigger={"processingTime": "10 seconds"}', Trigger(interval_s=10)),
        ('trigger={"once": True}', Trigger(available_now=True)),
        ('spark_conf={"pipelines.trigger.interval": "1 minute"}', Trigger(interval_s=60)),
        ('spark_conf={"pipelines.trigger.interval": "1 minute"}, trigger="1 s"', Trigger(interval_s=1)),
    ],
)
def test_a_flow_may_have_a_trigger(load: Load, arguments: str, trigger: Trigger | None) -> None:
    declared = load(f"import headrace as hr\n\n@hr.table({arguments})\ndef orders(): ...\n")
    assert declared.flows[0].trigger == trigger


@pytest.mark.parametrize(
    ("declaration", "said"),
    [
        ('@hr.table(trigger={"continuous": "1 second"})', "without a trigger"),
        ('@hr.table(trigger="realTime")', "without a trigger"),
        ('@hr.table(trigger="soon")', "30 seconds"),
        ('@hr.table(trigger={"once": False})', "30 seconds"),
        ('@hr.table(spark_conf={"pipelines.trigger.interval": "soon"})', "pipelines.trigger.interval"),
        ('@hr.materialized_view(trigger="once")', "between two refreshes"),
    ],
)
def test_a_trigger_that_cannot_be_is_refused_with_its_place(load: Load, declaration: str, said: str) -> None:
    with pytest.raises(ArgumentInvalidError) as caught:
        load(f"import headrace as hr\n\n{declaration}\ndef orders(): ...\n")
    assert said in caught.value.summary
    assert str(caught.value.location).startswith("transformations/tables.py:3:")


def test_the_other_declarations(load: Load) -> None:
    declared = load(
        """
from headrace import append_flow, create_streaming_table, materialized_view, temporary_view

create_streaming_table("sales.orders", comment="all of them", partition_cols=["day"])

@append_flow(target="sales.orders")
def from_europe(): ...

@append_flow(target="sales.orders", name="asia", spark_conf={"a": "b"})
def from_asia(): ...

@temporary_view
def large(): ...

@materialized_view(name="main.sales.revenue", comment="by day")
def revenue(): ...
"""
    )
    orders, large, revenue = declared.datasets
    assert isinstance(orders, StreamingTable)
    assert (orders.name, orders.partition_cols) == (TableName("sales", "orders"), ("day",))
    assert str(orders.location) == "transformations/tables.py:4"
    assert isinstance(large, TemporaryView)
    assert isinstance(revenue, MaterializedView)
    assert revenue.name == TableName("main__sales", "revenue")
    assert [(flow.name, str(flow.target)) for flow in declared.flows] == [
        ("from_europe", "sales.orders"),
        ("asia", "sales.orders"),
        ("main__sales.revenue", "main__sales.revenue"),
    ]
    assert [type(flow) for flow in declared.flows] == [AppendFlow, AppendFlow, RefreshFlow]


def test_a_schema_s_file_is_read_with_the_declaration(load: Load) -> None:
    code = 'import headrace as hr\n\n@hr.table(schema="{}")\ndef orders(): ...\n'
    files = {"transformations/tables.py": code.format("schemas/orders.ddl")}
    (table,) = load({**files, "schemas/orders.ddl": "id LONG"}).datasets
    assert isinstance(table, StreamingTable)
    assert table.schema == SchemaFile("schemas/orders.ddl", "id LONG")
    with pytest.raises(SchemaInvalidError) as caught:
        load(code.format("schemas/order.ddl"))
    assert str(caught.value.location) == "transformations/tables.py:4"
    assert caught.value.remedies == ("did you mean orders.ddl?",)


def test_a_flow_outside_of_the_default_schema_has_the_whole_name(load: Load) -> None:
    source = "import headrace as hr\nfor s in ['a', 'b']:\n    hr.table(name=f'{s}.orders')(lambda: None)\n"
    declared = load(source + "hr.table(name='default.orders')(lambda: None)\n")
    assert [flow.name for flow in declared.flows] == ["a.orders", "b.orders", "orders"]


def test_decorated_functions_stay_functions(load: Load) -> None:
    def orders() -> str:
        return "rows"

    # Here, outside of a pipeline, and in every form.
    assert hr.table(orders) is orders
    assert hr.table(name="x")(orders) is orders
    assert hr.materialized_view(orders) is orders
    assert hr.temporary_view()(orders) is orders
    assert hr.append_flow(target="t")(orders) is orders
    source = "import headrace as hr\n@hr.table\ndef a(): return 1\nassert a() == 1\n"
    assert len(load(source).datasets) == 1


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        ("@hr.table\ndef orders(): ...\n", "dataset"),
        ("@hr.materialized_view(name='default.Orders')\ndef x(): ...\n", "dataset"),
        ("@hr.append_flow(target='orders')\ndef orders(): ...\n", "flow"),
    ],
)
def test_a_name_that_is_taken_is_refused_with_both_places(load: Load, second: str, kind: str) -> None:
    with pytest.raises(DuplicateNameError) as caught:
        load(
            {
                "transformations/a.py": "import headrace as hr\n@hr.table\ndef orders(): ...\n",
                "transformations/b.py": "import headrace as hr\n" + second,
            }
        )
    assert caught.value.params["kind"] == kind
    assert caught.value.params["first"] == "transformations/a.py:3"
    assert caught.value.params["second"].startswith("transformations/b.py:3")
    assert 'rders_2"' in caught.value.remedies[0]


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        ("@hr.table('orders')\ndef f(): ...", "name"),
        ("@hr.table(name=5)\ndef f(): ...", "name"),
        ("@hr.table(name='a.b.c.d')\ndef f(): ...", "name"),
        ("@hr.table(name='a-b')\ndef f(): ...", "name"),
        ("@hr.table(name='..')\ndef f(): ...", "name"),
        ("hr.table(lambda: None)", "name"),
        ("@hr.table\ndef f(needed): ...", "function"),
        ("@hr.table\nasync def f(): ...", "function"),
        ("hr.table()(5)", "function"),
        ("@hr.table(comment=5)\ndef f(): ...", "comment"),
        ("@hr.table(table_properties={'a': True})\ndef f(): ...", "table_properties"),
        ("@hr.table(table_properties='a')\ndef f(): ...", "table_properties"),
        ("@hr.table(spark_conf={1: 'a'})\ndef f(): ...", "spark_conf"),
        ("@hr.table(partition_cols='day')\ndef f(): ...", "partition_cols"),
        ("@hr.table(cluster_by=[1])\ndef f(): ...", "cluster_by"),
        ("@hr.table(cluster_by=['a'], partition_cols=['b'])\ndef f(): ...", "cluster_by"),
        ("@hr.table(schema=5)\ndef f(): ...", "schema"),
        ("@hr.temporary_view(name='a.b')\ndef f(): ...", "name"),
        ("@hr.append_flow(target=5)\ndef f(): ...", "target"),
        ("@hr.append_flow(target='t', name='a/b')\ndef f(): ...", "name"),
        ("hr.create_streaming_table(5)", "name"),
    ],
)
def test_a_wrong_argument_is_named(load: Load, call: str, argument: str) -> None:
    with pytest.raises(ArgumentInvalidError) as caught:
        load(f"import headrace as hr\n{call}\n")
    assert caught.value.params["argument"] == argument
    assert caught.value.location is not None
    assert caught.value.location.path == "transformations/tables.py"


@pytest.mark.parametrize("call", ["@hr.table", "@hr.materialized_view"])
def test_a_format_other_than_delta_is_refused(load: Load, call: str) -> None:
    with pytest.raises(FormatUnsupportedError) as caught:
        load(f"import headrace as hr\n{call}(format='parquet')\ndef f(): ...\n")
    assert caught.value.params["format"] == "parquet"


def test_our_decorators_take_every_argument_of_sparks() -> None:
    """The names of `pyspark.pipelines`, read from its source: importing it would load PySpark."""
    import importlib.util
    import inspect

    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / "pipelines" / "api.py").read_text())
    theirs = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name in ("table", "materialized_view", "temporary_view", "append_flow", "create_streaming_table"):
        arguments = theirs[name].args
        expected = {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)}
        ours = set(inspect.signature(getattr(hr, name)).parameters)
        added = {one for one in ours - expected if not one.startswith("expect_all")}
        known = {"trigger", "max_rejected", "maintenance", "checks", "once", "private"}
        known |= {"renamed_columns", "dropped_columns", "refresh_policy"}
        assert expected <= ours and added <= known, name


@pytest.mark.parametrize(
    ("format", "options", "problem"),
    [
        ("console", "{}", "must be one of delta, kafka, parquet, json, csv, orc"),
        ("orc", "{}", "has no path"),
        ("delta", "{'tableName': 'a.b.c'}", "names the table a.b.c, which has no path in headrace.yml"),
    ],
)
def test_a_sink_that_cannot_be_written_is_refused(
    load: Load, format: str, options: str, problem: str
) -> None:
    with pytest.raises(ArgumentInvalidError) as caught:
        load(f"import headrace as hr\nhr.create_sink('a', '{format}', {options})\n")
    assert problem in caught.value.summary


def test_a_sink_to_a_table_of_another_system_has_the_path_of_the_spec(load: Load) -> None:
    options = "{'tableName': 'lake.x.T', 'mergeSchema': 'true'}"
    code = f"import headrace as hr\nhr.create_sink('a', 'delta', {options})\n"
    (sink,) = load(code, "name: shop\ntables: {lake.*: /data}\n").datasets
    assert isinstance(sink, StreamingTable) and sink.sink is not None
    assert sink.sink.options == {"path": "/data/x/T", "mergeSchema": "true"}
