"""New columns of a source: whether the query can take them, and with which types."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from stores import memory_location

from headrace.errors import (
    PathUnmappedError,
    QueryFailedError,
    RecordDriftedError,
    SchemaInvalidError,
    SourceLocation,
    SourceUnsupportedError,
)
from headrace.model.declarations import Drift
from headrace.model.queries import PythonQuery
from headrace.run.flows import SamePlans, UpdateFlows
from headrace.run.new_columns import ColumnTrial
from headrace.sources.bad_records import Evolving
from headrace.state.kept_schemas import SchemaVersion, SchemaVersions

NOTHING = cast(Any, None)


def schema(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return {"type": "struct", "fields": fields}


def flow_with(query: Any = NOTHING, **types: Any) -> Any:
    flow = SimpleNamespace(name="f", location=None, query=query)
    return SimpleNamespace(flow=flow, schema=schema(**types))


VERSIONS = SchemaVersions(memory_location(), "f topic t")
EVOLVE = Drift("evolve")


def types_after(
    planned: Any, build: Any, replan: Any = lambda: None, drift: Drift = EVOLVE, **new: Any
) -> dict[str, Any]:
    """The types of a source's columns, which had the columns `id` before. `build`: gives the columns of the
    query, as pairs, from the types of the source's columns."""

    def build_ranges(session: Any, planned: Any, ranges: Any, checkpoint: Any) -> Any:
        newest = VERSIONS.newest()
        fields = (newest.schema if newest else schema(id="long"))["fields"]
        found: Sequence[tuple[str, Any]] = build({one["name"]: one["type"] for one in fields})
        built = [field for name, kind in found for field in schema(**{name: kind})["fields"]]
        json = SimpleNamespace(jsonValue=lambda: {"type": "struct", "fields": built})
        return SimpleNamespace(columns=[name for name, _ in found], schema=json)

    version = SchemaVersion(
        number=1,
        schema=schema(id="long", **new),
        added=tuple(new),
        flow="f",
        checkpoint="c",
        batch=0,
        example={"path": "in/2.csv"},
    )
    trial = ColumnTrial(planned=planned, build_ranges=build_ranges, checkpoint=NOTHING, replan=replan)
    stamp: Any = SimpleNamespace(ranges=())
    known: Any = SimpleNamespace(fieldNames=lambda: ["id"])
    evolving = Evolving(versions=VERSIONS, number=0, schema=known, drift=drift)
    fitted = trial.fit(NOTHING, evolving, version, stamp)
    return {one["name"]: one["type"] for one in fitted.schema["fields"]}


def test_a_column_that_the_query_does_not_make_has_the_type_of_its_values() -> None:
    assert types_after(flow_with(id="long"), lambda types: types.items(), coupon="string") == {
        "id": "long",
        "coupon": "string",
    }


def test_a_column_that_replaces_the_query_s_own_has_the_type_that_the_query_gave_it() -> None:
    found = types_after(flow_with(id="long", Size="integer"), lambda types: types.items(), size="long")
    assert found == {"id": "long", "size": "integer"}


def test_a_column_that_the_query_still_makes_itself_has_the_type_of_its_values() -> None:
    def build(types: Any) -> list[tuple[str, str]]:
        return [("id", "long"), ("size", "integer")]

    assert types_after(flow_with(id="long", size="integer"), build, size="string")["size"] == "string"


def test_a_query_that_returns_both_columns_is_refused() -> None:
    def build(types: Any) -> list[tuple[str, str]]:
        return [*types.items(), ("SIZE", "string")]

    with pytest.raises(RecordDriftedError) as caught:
        types_after(flow_with(id="long", SIZE="string"), build, size="string", more="long")
    assert caught.value.params == {"flow": "f", "columns": ["size"], "path": "in/2.csv"}
    assert len(caught.value.remedies) == 2
    # Methods of a DataFrame help in a Python function only.
    query = PythonQuery.__new__(PythonQuery)
    with pytest.raises(RecordDriftedError) as caught:
        types_after(flow_with(query, id="long", SIZE="string"), build, size="string")
    assert len(caught.value.remedies) == 4


def test_a_column_whose_type_the_query_cannot_have_is_refused() -> None:
    def build(types: Any) -> list[tuple[str, str]]:
        return [("id", "long"), ("size", "string")]

    with pytest.raises(RecordDriftedError, match="size"):
        types_after(flow_with(id="long", size="integer"), build, size="long")


def test_a_query_that_cannot_be_resolved_with_the_column_is_refused() -> None:
    def fails(types: Any) -> Any:
        if "size" in types:
            raise QueryFailedError("the query of `f` failed: Reference `size` is ambiguous")
        return types.items()

    with pytest.raises(RecordDriftedError) as caught:
        types_after(flow_with(id="long"), fails, size="long")
    assert "ambiguous" in str(caught.value)


def test_a_query_that_fails_without_the_column_too_is_not_blamed_on_it() -> None:
    def fails(types: Any) -> Any:
        raise QueryFailedError("the query of `f` failed: rates.json is away")

    with pytest.raises(QueryFailedError, match="away"):
        types_after(flow_with(id="long"), fails, size="long")


def test_a_column_that_a_query_behind_the_table_cannot_take_is_refused() -> None:
    place = SourceLocation("silver.py", 7)

    def replan() -> None:
        if VERSIONS.newest() is not None:
            raise SchemaInvalidError("table silver: two columns `op`", location=place, remedies=["drop one"])

    with pytest.raises(RecordDriftedError) as caught:
        types_after(flow_with(id="long"), lambda types: types.items(), replan, op="string")
    assert "the pipeline cannot take: op" in caught.value.summary
    assert "table silver: two columns `op` (silver.py:7)" in caught.value.facts[1]
    first, rescue = caught.value.remedies
    assert first == "drop one" and rescue.endswith('drift={"*": "evolve", "op": "rescue"}')


def test_a_pipeline_that_cannot_be_planned_without_the_column_either_says_why() -> None:
    def replan() -> None:
        raise PathUnmappedError("no entry maps /data")

    with pytest.raises(PathUnmappedError):
        types_after(flow_with(id="long"), lambda types: types.items(), replan, op="string")


@pytest.mark.parametrize(
    ("drift", "argument"),
    [
        (Drift(None, {"size": "evolve", "n": "fail"}), '{"size": "rescue", "n": "fail"}'),
        # Auto Loader has no such argument.
        (Drift("evolve", {"id": "rescue"}), None),
    ],
)
def test_the_remedy_keeps_the_other_actions_of_the_reader(drift: Drift, argument: str | None) -> None:
    def build(types: Any) -> list[tuple[str, str]]:
        return [*types.items(), ("SIZE", "string")]

    with pytest.raises(RecordDriftedError) as caught:
        types_after(flow_with(id="long", SIZE="string"), build, drift=drift, size="string")
    found = [one.partition("drift=")[2] for one in caught.value.remedies if "drift=" in one]
    assert found == ([] if argument is None else [argument])


def test_a_query_whose_sources_cannot_be_read_again_is_left_to_its_next_plan() -> None:
    def fails(types: Any) -> Any:
        raise SourceUnsupportedError("a range cannot be read again")

    assert types_after(flow_with(id="long"), fails, size="long")["size"] == "long"


def planned(kind: str) -> Any:
    flow = SimpleNamespace(name="f", location=None)
    return SimpleNamespace(flow=flow, schema=schema(id=kind), sources=[SimpleNamespace(options={})])


def test_a_flow_that_is_planned_again_and_again_fails() -> None:
    class Flows(UpdateFlows):
        def __init__(self) -> None:
            self.plans = 0
            runner = SimpleNamespace(planned=planned("long"), progress=SimpleNamespace(batches=0))
            self._runners = {"f": cast(Any, runner)}
            self._reports = cast(Any, SimpleNamespace(failed=lambda planned, error, progress: error))

        def _run(self, runner: Any, stop: Any) -> Any:
            return SimpleNamespace(outcome="plan again")

        def _plan_again(self, name: str) -> Any:
            self.plans += 1
            return lambda stop: self._run(None, stop)

    flows = Flows()
    error: Any = flows._run_with_plans("f", NOTHING)
    assert (error.code, error.params, flows.plans) == ("FLOW_FAILED", {"flow": "f"}, 10)


def test_plans_that_change_nothing_have_an_end() -> None:
    plans = SamePlans()
    found = [plans.are_too_many(planned("long"), 0) for _ in range(11)]
    assert found == [False] * 10 + [True]
    assert not plans.are_too_many(planned("string"), 0)
    # A batch was committed.
    assert not any(SamePlans().are_too_many(planned("long"), batches) for batches in range(20))
    plans = SamePlans()
    assert not any(plans.are_too_many(planned("long"), batches) for batches in range(20))
