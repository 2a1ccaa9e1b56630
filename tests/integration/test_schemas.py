"""A schema may be text, a StructType or a file, and what is wrong with it is said with its place."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.errors import SchemaInvalidError, SourceLocation
from headrace.sources.schemas import load_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = SourceLocation("orders.py", 3)
JSON = '{"type": "struct", "fields": [\n {"name": "id", "type": "%s", "nullable": true, "metadata": {}}\n]}'


@pytest.fixture
def root(tmp_path: Path, spark: SparkSession) -> Path:
    return tmp_path


def test_text_struct_and_files_mean_the_same(root: Path) -> None:
    text = "id BIGINT, at TIMESTAMP COMMENT 'it -- is'"
    expected = load_schema(text, root, HERE)
    (root / "orders.ddl").write_text(
        "﻿-- orders, as the shop sends them\nid BIGINT, /* when */\nat TIMESTAMP,\n"
    )
    (root / "orders.JSON").write_text(expected.json())
    assert load_schema("orders.ddl", root, HERE).simpleString() == expected.simpleString()
    assert load_schema("orders.JSON", root, HERE) == expected
    assert load_schema(expected, root, HERE) is expected


@pytest.mark.parametrize(
    ("name", "content", "line", "column"),
    [
        ("a.ddl", b"id BIGINT,\nname STRNG", 2, 6),
        ("a.sql", b"-- ids\nid BIGINT name STRING", 2, 11),
        ("a.ddl", b"id BIGINT,\nname \xff STRING", 2, 6),
        ("a.json", b'{"type": "struct",\n "fields": [}', 2, 13),
        ("a.json", (JSON % "lng").encode(), 2, 25),
        ("a.json", b"[1]", 1, None),
        ("a.json", b'{"type": "struct", "fields": []}', 1, 20),
        ("a.ddl", b" -- nothing\n", 1, None),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_line_and_column(
    root: Path, name: str, content: bytes, line: int, column: int | None
) -> None:
    (root / name).write_bytes(content)
    with pytest.raises(SchemaInvalidError) as caught:
        load_schema(name, root, HERE)
    place = caught.value.location
    assert place is not None
    assert (place.path, place.line, place.column) == (name, line, column)


def test_a_file_that_is_not_there_is_named_with_one_that_is(root: Path) -> None:
    (root / "orders.ddl").write_text("id LONG")
    with pytest.raises(SchemaInvalidError) as caught:
        load_schema("order.ddl", root, HERE)
    assert (caught.value.location, caught.value.remedies) == (HERE, ("did you mean orders.ddl?",))
    with pytest.raises(SchemaInvalidError):
        load_schema("orders.avsc", root, HERE)
    with pytest.raises(SchemaInvalidError) as caught:
        load_schema("schemas/sales.json", root, HERE)
    assert caught.value.remedies[-1].endswith("headrace infer sales")


def test_text_in_the_user_s_code_is_pinpointed(root: Path) -> None:
    (root / "orders.py").write_text(
        'import headrace\n\nread("orders", schema="""id LONG,\n  name STRNG""")\n'
    )
    linecache.clearcache()
    with pytest.raises(SchemaInvalidError) as caught:
        load_schema("id LONG,\n  name STRNG", root, HERE)
    assert caught.value.location == SourceLocation("orders.py", 4, 8, 5)
