"""Errors about an argument point at the argument, and not at the line of the declaration."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.declare.conftest import Load

from headrace.errors import HeadraceError, SourceLocation
from headrace.model.declarations import StreamingTable
from headrace.plan.validate import check_declarations, check_layout_columns
from headrace.syntax.locations import argument_location, method_location, return_location, udf_declared

SCHEMA = {"fields": [{"name": "id", "type": "long"}, {"name": "page", "type": "string"}]}


def refused(load: Load, declaration: str) -> tuple[str, SourceLocation]:
    """The marked characters of the error for a declaration, and their location."""
    source = f"import headrace as hr\n\n{declaration}\n"
    with pytest.raises(HeadraceError) as caught:
        load(source)
    return marked(source, caught.value.location)


def marked(source: str, location: SourceLocation | None) -> tuple[str, SourceLocation]:
    assert location is not None
    column = (location.column or 1) - 1
    return source.splitlines()[location.line - 1][column : column + (location.length or 99)], location


QUERY = '\ndef extra():\n    return hr.spark.readStream.table("visits")'


@pytest.mark.parametrize(
    ("decorator", "expected", "line"),
    [
        ("@hr.table(cluster_by=5)", "cluster_by=5", 3),
        ('@hr.table(name="é", cluster_by=5)', 'name="é"', 3),
        ('@hr.table(\n    comment="ü", cluster_by=5,\n)', "cluster_by=5", 4),
        ('@hr.expect("é", "id > 0")\n@hr.table(format="parquet")', 'format="parquet"', 4),
        ('@hr.table(partition_cols=["page"], cluster_by=["id"])', 'cluster_by=["id"]', 3),
        ('@hr.table(table_properties={"a": "b", "c": 1})', "c", 3),
        ('@hr.table(maintenance={"small_file": 100})', "small_file", 3),
        ('@hr.table(**{"cluster_by": 5})', '**{"cluster_by": 5}', 3),
    ],
)
def test_the_argument_of_a_decorator_is_marked(load: Load, decorator: str, expected: str, line: int) -> None:
    text, location = refused(load, decorator + QUERY)
    assert (text, location.line) == (expected, line)


def test_the_argument_of_a_call_is_marked(load: Load) -> None:
    call = (
        'for one in ["a", "b"]:\n    hr.create_streaming_table(\n        one,\n        cluster_by=5,\n    )'
    )
    text, location = refused(load, call)
    assert (text, location.line) == ("cluster_by=5", 6)


def test_the_function_is_marked_if_no_argument_is_wrong(load: Load) -> None:
    _, location = refused(load, "@hr.table(comment='c')\ndef extra(page): ...")
    assert str(location) == "transformations/tables.py:4"


def test_a_misspelt_column_of_a_layout_is_marked(load: Load) -> None:
    source = f'import headrace as hr\n\n@hr.table(cluster_by=["id", "pge"]){QUERY}\n'
    (table,) = load(source).datasets
    assert isinstance(table, StreamingTable)
    (error,) = check_layout_columns(table, SCHEMA)
    text, location = marked(source, error.location)
    assert text == "pge"
    assert str(location) == "transformations/tables.py:3:30"


def test_a_forbidden_property_is_marked(load: Load) -> None:
    source = f'import headrace as hr\n\n@hr.table(table_properties={{"headrace.pipeline": "mine"}}){QUERY}\n'
    (error,) = check_declarations(load(source))
    assert error.code == "PROPERTY_FORBIDDEN"
    assert marked(source, error.location)[0] == "headrace.pipeline"


def test_a_location_without_a_loaded_file_stays() -> None:
    location = SourceLocation("a.sql", 1)
    assert argument_location(location, "cluster_by") is location


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("\n    def one(row):\n        return row\n\n    return None", "return None"),
        ("\n    rows = 1", "def extra():"),
    ],
)
def test_the_return_of_a_query_is_marked(load: Load, body: str, expected: str) -> None:
    source = f"import headrace as hr\n\n@hr.table\ndef extra():{body}\n"
    (table,) = load(source).datasets
    text, _ = marked(source, return_location(table.location))
    assert text == expected


@pytest.mark.parametrize(
    ("code", "name", "expected", "remedy"),
    [
        (
            "number = F.udf(call, 'long')",
            "call",
            "F.udf(call, 'long')",
            "F.udf(call, 'long').asNondeterministic()",
        ),
        (
            "@F.udf('long')\ndef call(x):\n    return x",
            "call",
            "F.udf('long')",
            "in a line below it:   call = call.asNondeterministic()",
        ),
        ("number = 1", "call", "def extra():", "F.udf(..).asNondeterministic()"),
    ],
)
def test_the_line_that_declares_a_python_function_to_spark_is_marked(
    load: Load, code: str, name: str, expected: str, remedy: str
) -> None:
    indented = "\n".join(f"    {line}" for line in code.splitlines())
    source = (
        f"import headrace as hr\n\ndef declare():\n{indented}\n\n@hr.table\ndef extra():\n    return None\n"
    )
    (table,) = load(source).datasets
    location, text = udf_declared(table.location, name)
    assert marked(source, location)[0] == expected
    assert text.startswith(f"declare that the result of {name}() changes") and text.endswith(remedy)


CALLS = """\
def query(rows):
    return (
        rows
        .count()
    )

many = [spark.table("é").count(), 1]
"""


def test_the_method_of_a_line_is_marked_with_its_rows(tmp_path: Path) -> None:
    (file := tmp_path / "calls.py").write_text(CALLS)
    found = [method_location(SourceLocation("calls.py", line, file=str(file)), "count") for line in (4, 7, 1)]
    marks = [CALLS.splitlines()[where.line - 1][(where.column or 1) - 1 :] for where, *_ in found]
    assert marks == ["count()", "count(), 1]", "def query(rows):"]
    assert [texts for _, *texts in found] == [
        ["rows", None],
        ['spark.table("é")', 'spark.table("é").count()'],
        [None, None],
    ]
