"""Declarations that are wrong by themselves are found before any query is looked at."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import HeadraceError, SourceLocation
from headrace.model.declarations import AppendFlow, Dataset, Declarations, MaterializedView, StreamingTable
from headrace.model.names import TableName
from headrace.model.queries import PythonQuery
from headrace.plan.validate import check_declarations, check_query_kind

HERE = SourceLocation("orders.py", 7)


def table(name: str = "orders", **given: Any) -> StreamingTable:
    return StreamingTable(name=TableName("default", name), location=HERE, **given)


def view(name: str = "revenue", **given: Any) -> MaterializedView:
    return MaterializedView(name=TableName("default", name), location=HERE, **given)


def feeding(target: str) -> AppendFlow:
    return AppendFlow(name="web", target=TableName("default", target), query=PythonQuery(lambda: None, HERE))


def faults(*datasets: Dataset, target: str | None = "orders") -> list[HeadraceError]:
    flows = () if target is None else (feeding(target),)
    return check_declarations(Declarations(datasets, flows))


def only(errors: list[HeadraceError]) -> HeadraceError:
    assert [error.location for error in errors] == [HERE]
    return errors[0]


def test_what_is_right_has_no_faults() -> None:
    properties = {"headrace.coordinates": '{"topic":"t","partition":"p","offset":"o"}', "team": "sales"}
    assert faults(table(table_properties=properties, cluster_by=("id",)), view()) == []


def test_a_table_without_a_flow() -> None:
    error = only(faults(table(), target=None))
    assert (error.code, error.params["dataset"]) == ("TABLE_WITHOUT_FLOW", "default.orders")


def test_a_flow_into_an_unknown_table_suggests_the_one_meant() -> None:
    errors = faults(table(), target="order")
    assert [error.code for error in errors] == ["TARGET_INVALID", "TABLE_WITHOUT_FLOW"]
    assert errors[0].remedies == ("did you mean `orders`?",)


def test_a_flow_into_a_view() -> None:
    error = only(faults(view(), target="revenue"))
    assert (error.code, error.params["flow"]) == ("TARGET_INVALID", "web")


@pytest.mark.parametrize(
    ("dataset", "key"),
    [
        (table(table_properties={"delta.setTransactionRetentionDuration": "interval 1 day"}), "orders"),
        (table(table_properties={"DELTA.settransactionretentionduration": "interval 1 day"}), "orders"),
        (table(table_properties={"headrace.checkpoint.orders": "c"}), "orders"),
        (view(table_properties={"delta.appendOnly": "true"}), None),
    ],
)
def test_properties_that_break_the_protocol(dataset: Dataset, key: str | None) -> None:
    error = only(faults(dataset, target=key))
    assert error.code == "PROPERTY_FORBIDDEN"


def test_coordinates_that_are_no_coordinates() -> None:
    error = only(faults(table(table_properties={"headrace.coordinates": '{"topic": "t"}'})))
    assert error.code == "PROPERTY_INVALID"


@pytest.mark.parametrize(
    ("dataset", "streams", "is_sql", "advice"),
    [
        (table(), False, True, ("FROM STREAM name", "CREATE MATERIALIZED VIEW")),
        (table(), False, False, ("spark.readStream", "@hr.materialized_view")),
        (view(), True, True, ("without STREAM", "CREATE STREAMING TABLE")),
        (view(), True, False, ("spark.read", "@hr.table")),
    ],
)
def test_a_query_of_the_other_kind_has_advice_in_its_language(
    dataset: StreamingTable | MaterializedView, streams: bool, is_sql: bool, advice: tuple[str, str]
) -> None:
    resolved: Any = SimpleNamespace(plan=SimpleNamespace(streaming=streams), reads=(), views=())
    with pytest.raises(HeadraceError) as caught:
        check_query_kind(resolved, dataset, replace(HERE, is_sql=is_sql))
    assert all(word in one for word, one in zip(advice, caught.value.remedies, strict=True))
