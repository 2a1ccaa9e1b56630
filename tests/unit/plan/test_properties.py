"""The properties of tables that follow from a declaration and the spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.declare.spec import load_project
from headrace.errors import SourceLocation
from headrace.model.declarations import MaterializedView, RefreshPolicy
from headrace.model.names import TableName
from headrace.plan.coordinates import CoordinateColumns
from headrace.plan.properties import table_properties


@pytest.mark.parametrize(
    ("policy", "readers", "expected"),
    [
        ("auto", "", None),
        ("auto", "duckdb, polars", None),
        ("auto", "duckdb, delta-rs", "false"),
        ("incremental", "delta-rs", "true"),
    ],
)
def test_a_view_gets_no_deletion_vectors_by_itself_if_a_reader_cannot_read_them(
    tmp_path: Path, policy: RefreshPolicy, readers: str, expected: str | None
) -> None:
    (tmp_path / "headrace.yml").write_text(f"name: shop\nreaders: [{readers}]\n")
    place = SourceLocation("a.py", 1)
    view = MaterializedView(name=TableName("default", "sums"), location=place, refresh_policy=policy)
    found = table_properties(view, load_project(tmp_path / "headrace.yml"), CoordinateColumns())
    assert found.get("delta.enableDeletionVectors") == expected
