"""The columns that keep a record's coordinates or a table's values, followed down to the source."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import SourceLocation
from headrace.plan.coordinates import find_coordinates, find_followed
from headrace.plan.logical import Leaf, LogicalPlan, Node
from headrace.sinks.target import Followed
from headrace.sources.delta.source import DeltaSource
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


FEED = ("id", "name", "_source", "_change_type", "_commit_version", "_commit_timestamp")
COLUMNS = tuple(column(name, number) for number, name in enumerate(FEED))
READ = Node(kind="StreamingRelationV2", fields={"output": COLUMNS})


def without(value: str) -> Node:
    """The feed without the rows of a type of change."""
    nodes = [
        {"class": "x.Not", "num-children": 1},
        {"class": "x.EqualTo", "num-children": 2},
        {"class": "x.AttributeReference", "num-children": 0, "name": FEED[3], "exprId": {"id": 3}},
        {"class": "x.Literal", "num-children": 0, "value": value},
    ]
    return Node(kind="Filter", fields={"condition": nodes}, children=(READ,))


def project(*columns: Node, of: Node = READ) -> Node:
    return Node(kind="Project", fields={"projectList": columns}, children=(of,))


def followed(root: Node, **options: str) -> Followed | None:
    leaf = Leaf(index=0, folder=0, read=0, provider="delta")
    source = DeltaSource(
        index=0,
        folder=0,
        location=SourceLocation("orders.py", 1),
        path="/lake/orders",
        options={"readChangeFeed": "true", **options},
    )
    plan = LogicalPlan(root=root, leaves=(leaf,), text="", schema={}, opaque=False, java_plan=None)
    return find_followed(plan, source)


def test_a_change_feed_keeps_the_columns_of_its_table() -> None:
    found = Followed(columns=("id", "name"), is_whole=True, has_preimages=True)
    assert followed(READ) == found
    assert followed(without("update_preimage")) == replace(found, has_preimages=False)
    assert followed(READ, startingVersion="0") == found
    assert followed(READ, startingversion="latest") == replace(found, is_whole=False)
    assert followed(READ, startingTimestamp="2024-01-01") == replace(found, is_whole=False)


def test_a_query_that_may_leave_out_changes_does_not_follow_its_table() -> None:
    assert followed(without("delete")) is None
    assert followed(READ, ignoreDeletes="true") is None
    assert followed(READ, readChangeFeed="false") is None
    assert followed(Node(kind="Generate", fields={}, children=(READ,))) is None
    assert followed(project(*COLUMNS[:3])) is None
    other = Node(kind="Alias", fields={"name": FEED[3], "exprId": {"id": 9}}, children=(COLUMNS[1],))
    assert followed(project(*COLUMNS[:3], other, COLUMNS[4])) is None


def test_only_columns_with_their_own_names_are_the_ones_of_the_table() -> None:
    upper = Node(kind="Alias", fields={"name": "name", "exprId": {"id": 9}}, children=(Node("Upper", {}),))
    swapped = Node(kind="Alias", fields={"name": "name", "exprId": {"id": 9}}, children=(COLUMNS[0],))
    cast = Node(kind="Cast", fields={"dataType": "string"}, children=(COLUMNS[0],))
    text = Node(kind="Alias", fields={"name": "id", "exprId": {"id": 8}}, children=(cast,))
    for changed in (upper, swapped):
        found = followed(project(COLUMNS[0], changed, *COLUMNS[3:]))
        assert found is not None and found.columns == ("id",)
    found = followed(project(text, COLUMNS[1], *COLUMNS[3:]))
    assert found is not None and found.columns == ("name",)
