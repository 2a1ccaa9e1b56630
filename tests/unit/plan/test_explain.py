"""What `headrace plan` shows, from a plan made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checked_json import check_data
from headrace.errors import SourceLocation
from headrace.model.declarations import (
    AppendFlow,
    AutoCdcFlow,
    MaterializedView,
    RefreshFlow,
    RejectionLimit,
    Sink,
    StreamingTable,
    TemporaryView,
)
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.names import ALL_COLUMNS, ChosenColumns, TableName
from headrace.model.project import ProjectSettings
from headrace.model.queries import PythonQuery
from headrace.plan.drawing import Graph, Node, draw_text
from headrace.plan.explain import Explanation, type_text
from headrace.plan.stages import (
    Change,
    Coordinates,
    OpenTableStage,
    Plan,
    PlannedFlow,
    PlannedRefresh,
    PlannedView,
    RefreshViewStage,
    RunFlowStage,
    TableRead,
)
from headrace.sources.bad_records import VALUE_LIMIT
from headrace.sources.delta.source import DeltaSource
from headrace.sources.kafka.position import COORDINATES
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.requests import Found
from headrace.sources.source import Source
from headrace.storage.layout import Storage

ROOT = Path("/home/me/shop")


def name(text: str) -> TableName:
    return TableName.parse(text, "default")


def place(line: int) -> SourceLocation:
    return SourceLocation("transformations/shop.py", line)


def schema(**fields: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


ORDERS = schema(id="long", amount="decimal(10,2)", _source={"type": "struct", "fields": []})
REVENUE = schema(customer="string", revenue="double")


def table(text: str, line: int) -> StreamingTable:
    return StreamingTable(name=name(text), location=place(line))


def flow(text: str, line: int, source: Source, columns: dict[str, Any], **more: Any) -> PlannedFlow:
    declared = AppendFlow(
        name=text, target=more.pop("target", name(text)), query=PythonQuery(lambda: None, place(line))
    )
    values: dict[str, Any] = {"stateful": False, "coordinates": None, **more}
    return PlannedFlow(
        flow=declared,
        schema=columns,
        reads=(),
        sources=(source,),
        timestamp=None,
        reads_target=False,
        fingerprint="f",
        **values,
    )


def kafka(topic: str) -> KafkaSource:
    options = {"startingOffsets": "earliest", "kafka.sasl.password": "secret"}
    return KafkaSource(index=0, folder=0, location=place(7), topics=(topic,), options=options)


def delta(text: str) -> DeltaSource:
    return DeltaSource(index=0, folder=0, location=place(9), table=name(text), path="/lake/x")


def build_plan(
    changes: tuple[Change, ...] | None = None, found: dict[tuple[str, int], Found] | None = None
) -> Plan:
    columns = {name: f"_source.{name}" for name in COORDINATES.names}
    coordinates = Coordinates(columns=columns, record=COORDINATES)
    orders = flow("orders", 6, kafka("orders"), ORDERS, coordinates=coordinates)
    big = flow("big_orders", 9, delta("orders"), ORDERS)
    europe = flow("europe", 20, kafka("orders-eu"), ORDERS, target=name("big_orders"), stateful=True)
    large_read = TableRead(table=name("orders"), streaming=False, location=place(13), declared=True)
    large = TemporaryView(name=name("large"), query=PythonQuery(lambda: None, place(12)))
    view = MaterializedView(name=name("revenue"), location=place(15), comment="by customer")
    refresh = RefreshFlow(target=name("revenue"), query=PythonQuery(lambda: None, place(15)))
    reads = (
        TableRead(table=name("orders"), streaming=False, location=place(16), declared=True),
        TableRead(table=name("crm.customers"), streaming=False, location=place(16), declared=False),
    )
    planned = PlannedRefresh(
        flow=refresh, schema=REVENUE, reads=reads, fingerprint="v", through=(name("large"),)
    )
    datasets = (table("orders", 6), table("big_orders", 9), large, view)
    opened = [
        OpenTableStage(table=one, schema=ORDERS, properties={}, flows=())
        for one in datasets
        if isinstance(one, StreamingTable)
    ]
    return Plan(
        project=ProjectSettings(
            name="shop", file=ROOT / "headrace.yml", profile="dev", storage=Storage.at(ROOT / "lake"),
            libraries=(),
            kafka=KafkaConnection(
                {"bootstrap.servers": "kafka.example:9092"},
                {"bootstrap.servers": SourceLocation("headrace.yml", 3, 23)},
            ),
        ),
        datasets=datasets,
        views=(PlannedView(view=large, schema=ORDERS, reads=(large_read,), sources=(), fingerprint="t"),),
        all_levels=(
            tuple(opened),
            (RunFlowStage(planned=orders),),
            (RunFlowStage(planned=big), RunFlowStage(planned=europe)),
            (RefreshViewStage(view=view, planned=planned, properties={}),),
        ),
        changes=changes,
        found=found or {},
    )  # fmt: skip


def created(text: str) -> Change:
    return Change(kind="create", dataset=name(text), text="create the table")


TEXT = """\
shop · 4 datasets, 3 flows · storage ./lake (new)

  kafka orders ─▶ orders ─┬─▶ big_orders
                          └─▶ large (temporary) ─▶ revenue (view)
  kafka orders-eu ─▶ big_orders
  table crm.customers ─▶ revenue (view)

  + orders      streaming table    transformations/shop.py:6
                id LONG, amount DECIMAL(10,2), _source STRUCT<…>
                from Kafka orders, 4 partitions, earliest · append · keeps topic, partition and
                offset
  + big_orders  streaming table    transformations/shop.py:9
                same columns as orders
                from orders · append
                flow europe (transformations/shop.py:20): from Kafka orders-eu, 1 partition,
                earliest · append · stateful
    large       temporary view     transformations/shop.py:12
                same columns as orders
                reads orders
  + revenue     materialized view  transformations/shop.py:15
                by customer
                customer STRING, revenue DOUBLE
                recomputed when orders or crm.customers has a new version
Nothing was written. `headrace run` does this."""


def test_a_new_pipeline_as_text() -> None:
    changes = (created("orders"), created("big_orders"), created("revenue"))
    found = {("orders", 0): Found("4 partitions"), ("europe", 0): Found("1 partition")}
    assert Explanation(build_plan(changes, found)).to_text() == TEXT
    warning = "cannot reach kafka.example:9092 (headrace.yml:3); topics were not checked"
    away = replace(build_plan(changes), unchecked=(warning,))
    assert Explanation(away).to_text().splitlines()[-2] == f"warning: {warning}"
    assert Explanation(away).to_json()["warnings"] == [warning]
    assert Explanation(build_plan(changes, found)).to_json()["warnings"] == []


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({}, "merged by id, the greatest at wins"),
        (
            {"kept_if_null": ChosenColumns(excluded=("b",))},
            "merged by id, the greatest at wins · a NULL changes nothing, in all but b",
        ),
        ({"kept_if_null": ALL_COLUMNS}, "merged by id, the greatest at wins · a NULL changes nothing"),
        ({"history": ALL_COLUMNS}, "history of id by at"),
        ({"history": ChosenColumns(included=("a", "b"))}, "history of id by at, tracks a, b"),
    ],
)
def test_what_change_records_do_is_said(columns: dict[str, Any], text: str) -> None:
    declared = AutoCdcFlow(
        name="orders",
        target=name("orders"),
        query=PythonQuery(lambda: None, place(6)),
        keys=("id",),
        sequence_by="at",
        **columns,
    )
    planned = replace(flow("orders", 6, kafka("orders"), ORDERS), flow=declared)
    levels = ((OpenTableStage(table=table("orders", 6), schema=ORDERS, properties={}, flows=()),),)
    plan = replace(
        build_plan(),
        datasets=(table("orders", 6),),
        views=(),
        all_levels=(*levels, (RunFlowStage(planned=planned),)),
    )
    shown = " ".join(Explanation(plan).to_text(width=200).split())
    assert f"from Kafka orders, earliest · {text} " in f"{shown} "


def test_a_stream_has_its_edge_at_the_temporary_view_that_reads_it_and_a_sink_is_no_table() -> None:
    records = TemporaryView(name=name("records"), query=PythonQuery(lambda: None, place(4)))
    view = PlannedView(view=records, schema=ORDERS, reads=(), sources=(kafka("orders"),), fingerprint="t")
    orders = flow("orders", 6, kafka("orders"), ORDERS, through=(name("records"),))
    alerts = flow("alerts", 9, kafka("orders"), ORDERS, through=(name("records"),))
    sink = replace(table("alerts", 9), sink=Sink(format="kafka", options={"topic": "alerts"}))
    plan = replace(
        build_plan(),
        datasets=(records, table("orders", 6), sink),
        views=(view,),
        all_levels=((RunFlowStage(planned=orders), RunFlowStage(planned=alerts)),),
    )
    assert draw_text(Explanation(plan).graph()) == [
        "kafka orders ─▶ records (temporary) ─┬─▶ orders",
        "                                     └─▶ alerts (sink)",
    ]
    assert '[["alerts (sink)"]]' in Explanation(plan).draw("mermaid")


def test_the_limits_of_rejected_records_and_of_values_are_shown() -> None:
    plan = build_plan()
    limit = RejectionLimit.parse("5% of 20 batches")
    source = replace(kafka("orders"), options={VALUE_LIMIT: "100000"})
    orders = replace(plan.flows[0], sources=(source,), max_rejected=limit)
    view = replace(plan.datasets[3], max_rejected=RejectionLimit.parse(7))
    levels = ((RunFlowStage(planned=orders),), *plan.all_levels[2:])
    shown = Explanation(replace(plan, datasets=(*plan.datasets[:3], view), all_levels=levels))
    text = " ".join(shown.to_text().split())
    assert "latest, values up to 100,000 bytes · append" in text
    assert "max_rejected: 5% of 20 batches" in text
    assert "has a new version · max_rejected: 7" in text


def test_a_pattern_shows_its_matches_and_a_start_its_moment() -> None:
    plan = build_plan()
    options = {"startingTimestamp": "1767225600000"}
    source = KafkaSource(
        index=0,
        folder=0,
        location=place(7),
        pattern="^(?:orders-.*)$",
        options=options,
        on_data_loss="record",
    )
    orders = replace(plan.flows[0], sources=(source,))
    found = {("orders", 0): Found("4 partitions", names=("orders-eu", "orders-us"))}
    levels = tuple(
        tuple(
            RunFlowStage(planned=orders)
            if isinstance(stage, RunFlowStage) and stage.planned.flow.name == "orders"
            else stage
            for stage in level
        )
        for level in plan.levels
    )
    plan = replace(plan, all_levels=levels, found=found)
    text = " ".join(Explanation(plan).to_text().split())
    assert "from Kafka topics like orders-.* (orders-eu, orders-us), 4 partitions" in text
    assert "(lost records are recorded), from 2026-01-01 00:00:00 UTC" in text
    assert "kafka orders-.*" in text


def test_changes_to_a_storage_that_exists() -> None:
    changes = (
        Change(kind="alter", dataset=name("orders"), text="gains the column amount DECIMAL(10,2)"),
        Change(kind="recompute", dataset=name("revenue"), text="its query has changed"),
        Change(kind="remove", dataset=name("old"), text="declared by no file; its table stays"),
    )
    lines = Explanation(build_plan(changes)).to_text().splitlines()
    assert "(new)" not in lines[0]
    assert "  ~ orders      streaming table    transformations/shop.py:6" in lines
    assert "                gains the column amount DECIMAL(10,2)" in lines
    assert "    big_orders  streaming table    transformations/shop.py:9" in lines
    assert "  - old         declared by no file; its table stays" in lines


def test_offline_says_that_the_storage_was_not_looked_at() -> None:
    explained = Explanation(build_plan(None))
    assert explained.to_text().endswith("(--offline).")
    assert explained.to_json()["changes"] is None
    check_data("plan", explained.to_json())


def test_a_part_of_a_pipeline_shows_that_part() -> None:
    plan = build_plan()
    part = Explanation(replace(plan, selected=frozenset([name("revenue")])))
    assert [str(one.name) for one in part.datasets()] == ["default.large", "default.revenue"]
    assert draw_text(part.graph())[0] == "orders ─▶ large (temporary) ─▶ revenue (view)"


def test_json_has_the_same_facts_and_no_secrets() -> None:
    data = Explanation(build_plan((created("orders"),))).to_json()
    check_data("plan", data)
    orders, *_, revenue = data["datasets"]
    (source,) = orders["flows"][0]["sources"]
    assert (source["index"], source["kind"], source["topics"]) == (0, "kafka", ["orders"])
    assert orders["flows"][0]["coordinates"]["offset"] == "_source.offset"
    assert revenue["reads"] == ["default.large", "crm.customers"]
    assert ["kafka orders", "default.orders"] in data["edges"]
    assert data["changes"] == [
        {
            "kind": "create",
            "dataset": "default.orders",
            "part": "table",
            "name": None,
            "text": "create the table",
        }
    ]
    assert data["would_change"] is True
    assert "secret" not in str(data) + Explanation(build_plan()).to_text()


def test_the_picture_has_each_thing_once() -> None:
    lines = Explanation(build_plan()).draw("mermaid").splitlines()
    assert lines[0] == "flowchart LR"
    assert sum('"revenue (view)"' in line for line in lines) == 1
    assert sum("-->" in line for line in lines) == 6


def test_what_several_things_lead_to_is_drawn_whole_once() -> None:
    nodes = tuple(Node(key, key, "table") for key in "abcde")
    graph = Graph(nodes, (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "e"), ("a", "e")))
    assert draw_text(graph) == ["a ─┬─▶ b ─▶ d ─▶ e", "   ├─▶ c ─▶ d (above)", "   └─▶ e"]


def test_types_read_like_sql() -> None:
    array = {"type": "array", "elementType": {"type": "struct", "fields": []}}
    assert type_text("decimal(10,2)") == "DECIMAL(10,2)"
    assert type_text(array) == "ARRAY<STRUCT<…>>"
    assert type_text({"type": "map", "keyType": "string", "valueType": array}) == (
        "MAP<STRING, ARRAY<STRUCT<…>>>"
    )
