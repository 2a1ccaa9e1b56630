"""The properties of tables that follow from a declaration and the spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.declare.spec import load_project
from headrace.errors import SourceLocation
from headrace.model.declarations import MaterializedView, RefreshPolicy
from headrace.model.names import TableName
from headrace.plan.coordinates import CoordinateColumns
from headrace.plan.properties import kept_plain_for, table_properties


@pytest.mark.parametrize(
    ("policy", "readers", "expected"),
    [
        ("auto", "", (None, ())),
        ("auto", "duckdb, polars", (None, ())),
        ("auto", "duckdb, delta-rs", (None, ("delta-rs",))),
        ("incremental", "delta-rs", ("true", ())),
        ("full", "delta-rs", (None, ())),
    ],
)
def test_a_view_gets_no_deletion_vectors_by_itself_if_a_reader_cannot_read_them(
    tmp_path: Path, policy: RefreshPolicy, readers: str, expected: tuple[str | None, tuple[str, ...]]
) -> None:
    (tmp_path / "headrace.yml").write_text(f"name: shop\nreaders: [{readers}]\n")
    place = SourceLocation("a.py", 1)
    view = MaterializedView(name=TableName("default", "sums"), location=place, refresh_policy=policy)
    project = load_project(tmp_path / "headrace.yml")
    properties = table_properties(view, project, CoordinateColumns())
    assert (properties.get("delta.enableDeletionVectors"), kept_plain_for(view, project)) == expected
