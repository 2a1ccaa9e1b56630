"""New columns for a schema whose records have changed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from headrace.contracts.evolution import evolve, from_variant
from headrace.model.declarations import Drift

EVOLVES = Drift("evolve")


def _schema(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return {"type": "struct", "fields": fields}


def _types(schema: Any) -> dict[str, Any]:
    return {one["name"]: one["type"] for one in schema["fields"]}


def test_spark_s_text_of_a_schema_becomes_columns() -> None:
    found = from_variant(
        "OBJECT<amount: DECIMAL(3,1), big: DECIMAL(20,0), flag: BOOLEAN, id: BIGINT, mixed: VARIANT, "
        "none: VOID, tags: ARRAY<STRING>, `with ``tick`: DOUBLE, within: OBJECT<a: BIGINT, b: OBJECT<>>>"
    )
    types = _types(found)
    assert types["amount"] == "double"
    assert types["big"] == "decimal(38,0)"
    assert types["mixed"] == "string"
    assert types["tags"] == {"type": "array", "elementType": "string", "containsNull": True}
    assert types["with `tick"] == "double"
    assert _types(types["within"])["a"] == "long"


def test_records_that_are_no_objects_have_no_fields() -> None:
    assert from_variant("ARRAY<OBJECT<id: BIGINT>>")["fields"] == []


def test_new_fields_come_after_those_that_are_there() -> None:
    found = evolve(_schema(id="long", name="string"), _schema(city="string", id="long", age="long"), EVOLVES)
    assert list(_types(found.schema)) == ["id", "name", "city", "age"]
    assert found.added == ("city", "age")


def test_fields_of_structs_and_of_arrays_of_structs_are_added() -> None:
    def array(kind: Any) -> Any:
        return {"type": "array", "elementType": kind, "containsNull": True}

    before = _schema(within=_schema(a="long"), items=array(_schema(sku="string")))
    records = _schema(within=_schema(a="long", b="string"), items=array(_schema(sku="string", count="long")))
    found = evolve(before, records, EVOLVES)
    assert found.added == ("within.b", "items.count")
    assert _types(_types(found.schema)["within"]) == {"a": "long", "b": "string"}


def test_a_field_without_values_is_not_added_yet() -> None:
    found = evolve(_schema(id="long"), _schema(later="void", empty=_schema(inner="void")), EVOLVES)
    assert not found.changes


def test_a_name_that_no_column_can_have_is_refused_with_the_reason() -> None:
    found = evolve(_schema(id="long"), _schema(ID="long", **{"two words": "string"}), EVOLVES)
    assert not found.changes
    assert dict(found.refused) == {
        "ID": "another column has this name in other letter case",
        "two words": "Delta does not allow its name",
    }


def test_only_columns_that_evolve_are_added() -> None:
    drift = Drift("evolve", {"secret": "quarantine"})
    found = evolve(_schema(id="long"), _schema(secret="string", city="string"), drift)
    assert found.added == ("city",)


def test_an_action_by_dotted_name_is_that_of_the_nested_field() -> None:
    def added(columns: dict[str, Any], default: Any = None) -> set[str]:
        known = _schema(to=_schema(city="string"), plain="long")
        found = _schema(to=_schema(zip="long", street="string"), fresh=_schema(a="long", b="long"))
        return {*evolve(known, found, Drift(default, columns)).added}

    assert added({}, "evolve") == {"to.zip", "to.street", "fresh"}
    assert added({"to.zip": "evolve"}) == {"to.zip"}
    assert added({"to.zip": "quarantine"}, "evolve") == {"to.street", "fresh"}
    assert added({"to": "evolve", "to.zip": "fail"}) == {"to.street"}
    assert added({"to": "quarantine", "to.zip": "evolve"}, "evolve") == {"to.zip", "fresh"}
    found = evolve(
        _schema(id="long"), _schema(fresh=_schema(a="long", b="long")), Drift("evolve", {"fresh.a": "fail"})
    )
    assert [one["name"] for one in _types(found.schema)["fresh"]["fields"]] == ["b"]
    # A name with a dot is a name of its own.
    other = evolve(
        _schema(to=_schema(city="string")), _schema(**{"to.zip": "long"}), Drift(None, {"to": "evolve"})
    )
    assert other.added == ()


def test_the_same_records_change_a_schema_once() -> None:
    records = _schema(city="string", within=_schema(a="long"))
    once = evolve(_schema(id="long"), records, EVOLVES)
    assert not evolve(once.schema, records, EVOLVES).changes


_NAMES = st.sampled_from(["id", "name", "city", "Name", "a b"])
_SIMPLE = st.sampled_from(["long", "double", "string", "boolean", "void"])
_TYPES = st.recursive(
    _SIMPLE,
    lambda inner: st.one_of(
        st.dictionaries(_NAMES, inner, max_size=3).map(lambda types: _schema(**types)),
        inner.map(lambda kind: {"type": "array", "elementType": kind, "containsNull": True}),
    ),
    max_leaves=6,
)
_SCHEMAS = st.dictionaries(_NAMES, _TYPES, max_size=4).map(lambda types: _schema(**types))


def _paths(kind: Any, path: str = "") -> set[str]:
    """The paths of all fields that could be columns: by lower case, without those that have no value."""
    if isinstance(kind, str):
        return set()
    if kind["type"] == "array":
        return _paths(kind["elementType"], path)
    found: set[str] = set()
    for name, inner in _types(kind).items():
        if " " not in name and _has_values(inner):
            found |= {f"{path}{name.lower()}"} | _paths(inner, f"{path}{name.lower()}.")
    return found


def _has_values(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind != "void"
    if kind["type"] == "array":
        return _has_values(kind["elementType"])
    return any(_has_values(inner) for name, inner in _types(kind).items() if " " not in name)


@given(_SCHEMAS)
def test_no_field_of_the_records_is_lost(records: Any) -> None:
    found = evolve(_schema(), records, EVOLVES)
    refused = {path.lower() for path, _ in found.refused}
    missing = _paths(records) - _paths(found.schema)
    assert all(any(path == one or path.startswith(f"{one}.") for one in refused) for path in missing)


@given(_SCHEMAS, _SCHEMAS)
def test_columns_keep_their_place_and_type(before: Any, records: Any) -> None:
    after = _types(evolve(before, records, EVOLVES).schema)
    assert list(after)[: len(_types(before))] == list(_types(before))
    for name, kind in _types(before).items():
        assert after[name] == kind or isinstance(kind, dict)


@given(_SCHEMAS, _SCHEMAS)
def test_a_schema_does_not_change_a_second_time(before: Any, records: Any) -> None:
    once = evolve(before, records, EVOLVES)
    assert not evolve(once.schema, records, EVOLVES).changes


def test_names_that_the_reader_uses_are_refused() -> None:
    records = _schema(_source="string", city="string", _Rescued_data="string")
    found = evolve(_schema(id="long"), records, EVOLVES)
    assert found.added == ("city",)
    assert [name for name, _ in found.refused] == ["_source", "_Rescued_data"]


def test_names_within_a_new_object_are_checked_too() -> None:
    attrs = {"first name": "string", "Name": "string", "name": "string", "a": "long"}
    records = _schema(attrs=_schema(**attrs))
    found = evolve(_schema(id="long"), records, EVOLVES)
    assert _types(_types(found.schema)["attrs"]) == {"Name": "string", "a": "long"}
    assert [name for name, _ in found.refused] == ["attrs.first name", "attrs.name"]
