"""Stages come in the order in which datasets read each other."""

from __future__ import annotations

from headrace.errors import SourceLocation
from headrace.model.declarations import AppendFlow, MaterializedView, RefreshFlow, StreamingTable
from headrace.model.names import TableName
from headrace.model.queries import PythonQuery
from headrace.plan.stages import (
    OpenTableStage,
    PlannedFlow,
    PlannedRefresh,
    RefreshViewStage,
    RunFlowStage,
    Stage,
    TableRead,
    build_levels,
)

HERE = SourceLocation("a.py", 1)
EMPTY = {"type": "struct", "fields": []}


def table_name(name: str) -> TableName:
    return TableName("default", name)


def reads_of(*names: str) -> tuple[TableRead, ...]:
    return tuple(TableRead(table=table_name(n), streaming=True, location=HERE, declared=True) for n in names)


def flow(name: str, target: str, *reads: str) -> PlannedFlow:
    return PlannedFlow(
        flow=AppendFlow(name=name, target=table_name(target), query=PythonQuery(lambda: None, HERE)),
        schema=EMPTY,
        reads=reads_of(*reads),
        sources=(),
        stateful=False,
        coordinates=None,
        timestamp=None,
        reads_target=target in reads,
        fingerprint="",
    )


def view(name: str, *reads: str) -> RefreshViewStage:
    declared = MaterializedView(name=table_name(name), location=HERE)
    refresh = RefreshFlow(target=table_name(name), query=PythonQuery(lambda: None, HERE))
    planned = PlannedRefresh(flow=refresh, schema=EMPTY, reads=reads_of(*reads), fingerprint="")
    return RefreshViewStage(view=declared, planned=planned, properties={})


def opened(name: str) -> OpenTableStage:
    table = StreamingTable(name=table_name(name), location=HERE)
    return OpenTableStage(table=table, schema=EMPTY, properties={}, flows=())


def label(stage: Stage) -> str:
    match stage:
        case OpenTableStage():
            return f"open {stage.table.name.name}"
        case RunFlowStage():
            return stage.planned.flow.name
        case RefreshViewStage():
            return stage.view.name.name


def labels(levels: tuple[tuple[Stage, ...], ...]) -> list[list[str]]:
    return [[label(stage) for stage in level] for level in levels]


def test_a_table_is_read_after_all_flows_that_feed_it() -> None:
    levels = build_levels(
        [opened("orders"), opened("big")],
        [flow("big", "big", "orders"), flow("web", "orders"), flow("shop", "orders", "web_orders")],
        [view("revenue", "orders", "big"), view("web_orders")],
    )
    assert labels(levels) == [
        ["open orders", "open big"],
        ["web_orders"],
        ["web", "shop"],
        ["big"],
        ["revenue"],
    ]


def test_tables_of_others_and_of_itself_make_no_order() -> None:
    levels = build_levels([opened("a")], [flow("a", "a", "a", "elsewhere")], [])
    assert labels(levels) == [["open a"], ["a"]]


def test_a_pipeline_of_views_alone_has_no_empty_level() -> None:
    assert labels(build_levels([], [], [view("only")])) == [["only"]]
