"""Calls of Spark that are refused with the line of the user, before Spark is asked. No JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ActionInQueryError, FeatureUnsupportedError, WriteInFileError
from headrace.model.project import ProjectSettings
from headrace.plan.intercept import Interception, in_force
from headrace.plan.modes import Loading, Planning
from headrace.plan.patches import install
from headrace.sources.requests import RegisteredAvro, reading_formats
from headrace.storage.layout import Storage

SETTINGS = ProjectSettings(
    name="shop", file=Path("headrace.yml"), profile="dev", storage=Storage.at(Path("lake")), libraries=()
)


def no_session() -> Any:
    raise AssertionError("no session is needed")


LOADING, PLANNING = Loading(session=no_session), Planning()


@pytest.mark.parametrize(("mode", "error"), [(LOADING, WriteInFileError), (PLANNING, ActionInQueryError)])
@pytest.mark.parametrize("what", ["write", "writeStream", "writeTo()"])
def test_a_write_is_refused_before_it_begins(mode: Any, error: Any, what: str) -> None:
    install()
    from pyspark.sql.classic.dataframe import DataFrame

    frame = DataFrame.__new__(DataFrame)
    with in_force(Interception(settings=SETTINGS, mode=mode)), pytest.raises(error) as caught:
        frame.writeTo("x") if what == "writeTo()" else getattr(frame, what)
    assert caught.value.params["action"] == what
    assert caught.value.location.path.endswith("test_patched_calls.py")
    assert not any("module level" in one for one in caught.value.remedies)


@pytest.mark.parametrize(("mode", "error"), [(LOADING, WriteInFileError), (PLANNING, ActionInQueryError)])
def test_a_delta_table_is_not_changed_by_a_file_or_a_query(mode: Any, error: Any) -> None:
    install()
    from delta.tables import DeltaTable

    table = DeltaTable.__new__(DeltaTable)
    for what in ("delete", "update", "merge", "restoreToVersion", "vacuum"):
        with in_force(Interception(settings=SETTINGS, mode=mode)), pytest.raises(error) as caught:
            getattr(table, what)()
        assert caught.value.params["action"] == f"DeltaTable.{what}()"


@pytest.mark.parametrize("name", ["executeCompaction", "executeZOrderBy"])
def test_a_query_does_not_maintain_a_table(name: str) -> None:
    install()
    from delta.tables import DeltaOptimizeBuilder

    builder = DeltaOptimizeBuilder.__new__(DeltaOptimizeBuilder)
    interception = Interception(settings=SETTINGS, mode=PLANNING)
    with in_force(interception), pytest.raises(ActionInQueryError) as caught:
        getattr(builder, name)()
    assert caught.value.params["action"] == f"DeltaTable.optimize().{name}()"


def test_from_json_without_a_schema_is_refused() -> None:
    install()
    from pyspark.sql import functions as F

    interception = Interception(settings=SETTINGS, mode=PLANNING)
    with in_force(interception), pytest.raises(FeatureUnsupportedError) as caught:
        F.from_json("value", None, {"schemaLocationKey": "x"})  # type: ignore[arg-type]
    assert caught.value.summary.endswith("F.from_json without a schema")


def test_from_avro_takes_a_registry_by_position_and_by_name() -> None:
    install()
    from pyspark.sql.avro import functions

    from_avro: Any = functions.from_avro
    seen: list[RegisteredAvro] = []

    def decode(call: RegisteredAvro) -> Any:
        seen.append(call)

    options = {"mode": "PERMISSIVE"}
    with reading_formats({}, decode):
        from_avro("c", "orders-value", "http://r", options)
        from_avro("c", "orders-value", "http://r")
        from_avro(data="c", subject="orders-value", schemaRegistryAddress="http://r", options=options)
    assert [(one.data, one.subject, one.address, one.schema) for one in seen] == [
        ("c", "orders-value", "http://r", None)
    ] * 3
    assert [one.options for one in seen] == [options, {}, options]
