"""The columns that keep a record's coordinates, followed down to the source."""

from __future__ import annotations

from headrace.plan.coordinates import find_coordinates
from headrace.plan.logical import Leaf, LogicalPlan, Node
from headrace.sources.kafka.position import COORDINATES


def column(name: str, number: int) -> Node:
    return Node(kind="AttributeReference", fields={"name": name, "exprId": {"id": number}})


def test_the_first_column_that_spark_has_numbered_is_followed_too() -> None:
    columns = tuple(column(name, number) for number, name in enumerate(COORDINATES.names))
    source = Node(kind="StreamingRelationV2", fields={"output": columns})
    project = Node(kind="Project", fields={"projectList": columns}, children=(source,))
    leaf = Leaf(index=0, folder=0, read=0, provider="kafka")
    plan = LogicalPlan(root=project, leaves=(leaf,), text="", schema={}, opaque=False, java_plan=None)
    found = find_coordinates(plan, lambda _: None).coordinates
    assert found is not None
    assert found.to_json() == {name: name for name in COORDINATES.names}
