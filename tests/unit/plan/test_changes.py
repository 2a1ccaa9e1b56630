"""What brings an existing table up to date: one function for what `plan` reports and `run` executes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import SourceLocation
from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.model.names import TableName
from headrace.plan.changes import MAPPING, WIDENING, TableAlterations, find_alterations
from headrace.plan.properties import COORDINATES

HERE = SourceLocation("orders.py", 7)
NAME = TableName("default", "orders")
PLACES = {COORDINATES: '{"topic": "t"}'}


def schema(**columns: str) -> dict[str, Any]:
    listed = [{"name": k, "type": v, "nullable": True, "metadata": {}} for k, v in columns.items()]
    return {"type": "struct", "fields": listed}


@dataclass(frozen=True)
class Held:
    schema: Mapping[str, Any] = field(default_factory=lambda: schema(id="long"))
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None


def alterations(
    held: Held,
    dataset: StreamingTable | MaterializedView | None = None,
    *,
    columns: Mapping[str, Any] | None = None,
    properties: Mapping[str, str] | None = None,
    has_rows: bool = False,
    new_clustering: tuple[str, ...] = (),
) -> TableAlterations:
    return find_alterations(
        dataset or StreamingTable(name=NAME, location=HERE),
        columns or schema(id="long"),
        properties or {},
        held,
        has_rows=has_rows,
        new_clustering=new_clustering,
    )


def test_a_table_that_is_as_declared_is_left_alone() -> None:
    held = Held(properties={"a": "1", "user.own": "x"}, comment="by hand")
    assert alterations(held, properties={"a": "1"}).is_empty


def test_what_differs_is_set() -> None:
    table = StreamingTable(name=NAME, location=HERE, comment="new")
    found = alterations(
        Held(properties={"a": "1", "b": "2"}, comment="old"),
        table,
        columns=schema(ID="long", name="string"),
        properties={"a": "1", "b": "3"},
        new_clustering=("name",),
    )
    assert found.properties == {"b": "3"}
    assert (found.comment, found.cluster_by) == ("new", ("name",))
    assert [path for path, _ in found.new_columns] == [("name",)]


def test_the_coordinate_columns_of_rows_of_an_earlier_query_are_not_named_afterwards() -> None:
    assert alterations(Held(), properties=PLACES).properties == PLACES
    assert alterations(Held(), properties=PLACES, has_rows=True).is_empty
    by_hand = StreamingTable(name=NAME, location=HERE, table_properties=PLACES)
    assert alterations(Held(), by_hand, properties=PLACES, has_rows=True).properties == PLACES


def test_coordinate_columns_that_the_query_lost_are_unset() -> None:
    assert alterations(Held(properties=PLACES)).removed == (COORDINATES,)


def test_a_view_gets_its_columns_with_its_rows() -> None:
    view = MaterializedView(name=NAME, location=HERE)
    found = alterations(
        Held(properties=PLACES), view, columns=schema(id="long", more="string"), properties={"a": "1"}
    )
    assert found == TableAlterations(properties={"a": "1"})


def test_columns_are_renamed_and_dropped_once() -> None:
    table = StreamingTable(
        name=NAME, location=HERE, renamed_columns={"Cust": "customer"}, dropped_columns=("old",)
    )
    now = schema(id="long", customer="string", extra="string")
    before = Held(schema=schema(id="long", cust="string", old="string"))
    found = alterations(before, table, columns=now)
    assert (found.renamed, found.dropped) == ((("Cust", "customer"),), ("old",))
    assert found.properties == {MAPPING: "name"}
    assert [path for path, _ in found.new_columns] == [("extra",)]
    # A process that was killed after the first of them makes the second.
    between = Held(schema=schema(id="long", customer="string", old="string"), properties={MAPPING: "name"})
    found = alterations(between, table, columns=now)
    assert (found.renamed, found.dropped, found.properties) == ((), ("old",), {})
    assert alterations(Held(schema=now), table, columns=now).is_empty


def test_a_field_of_a_struct_is_renamed_in_its_struct() -> None:
    def struct(name: str) -> dict[str, Any]:
        return {"type": "struct", "fields": [{"name": "to", "type": schema(**{name: "long"})}]}

    table = StreamingTable(name=NAME, location=HERE, renamed_columns={"to.zip": "postcode"})
    found = alterations(Held(schema=struct("zip")), table, columns=struct("postcode"))
    assert found.renamed == (("to.zip", "postcode"),) and not found.new_columns
    assert alterations(Held(schema=struct("postcode")), table, columns=struct("postcode")).is_empty


def test_coordinates_of_a_renamed_column_keep_their_meaning() -> None:
    table = StreamingTable(name=NAME, location=HERE, renamed_columns={"t": "topic"})
    held = Held(schema=schema(t="string"), properties=PLACES)
    wanted = {COORDINATES: '{"topic": "topic"}'}
    found = alterations(held, table, columns=schema(topic="string"), properties=wanted, has_rows=True)
    assert found.properties == {MAPPING: "name", **wanted}


def test_columns_get_wider_types_only_where_the_table_allows_it() -> None:
    held, now = Held(schema=schema(id="integer", n="long")), schema(id="long", n="string")
    assert alterations(held, columns=now).widened == ()
    assert alterations(held, columns=now, properties={WIDENING: "true"}).widened == (("id", "BIGINT"),)
