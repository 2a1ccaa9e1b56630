"""Errors point at the user's own characters."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

import pytest

from headrace.errors import SourceLocation
from headrace.syntax.locations import caller, innermost, pinpoint, pinpoint_sql

SOURCE = '''\
def query(spark):
    return (
        spark.readStream
        .table("order")
    )

def other(spark):
    return spark.sql("""
        SELECT *
        FROM missing
    """)
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "orders.py").write_text(SOURCE)
    linecache.checkcache()
    return tmp_path


def test_a_name_is_found_below_the_line_of_the_call(root: Path) -> None:
    found = pinpoint(SourceLocation("orders.py", 2), "order", root)
    assert found == SourceLocation("orders.py", 4, 17, 5)


def test_a_name_of_another_function_is_not_taken(root: Path) -> None:
    start = SourceLocation("orders.py", 2)
    assert pinpoint(start, "missing", root) == start


def test_sql_is_placed_by_its_own_text(root: Path) -> None:
    sql = "\n        SELECT *\n        FROM missing\n    "
    start = sql.index("missing")
    found = pinpoint_sql(SourceLocation("orders.py", 8), sql, start, start + 6, root)
    assert found == SourceLocation("orders.py", 10, 14, 7)


def test_sql_that_is_put_together_keeps_the_line_of_the_call(root: Path) -> None:
    call = SourceLocation("orders.py", 8)
    assert pinpoint_sql(call, "SELECT * FROM built", 14, 18, root) == call


def test_the_caller_is_the_users_line() -> None:
    found = caller(Path(__file__).parent)
    assert found.path == "test_locations.py"


def test_the_innermost_line_of_the_users_is_named_not_the_librarys() -> None:
    def broken() -> None:
        Path("x").joinpath(object())  # type: ignore[arg-type]

    try:
        broken()
    except TypeError as error:
        found = innermost(error.__traceback__, Path(__file__).parent)
    assert found is not None
    line = broken.__code__.co_firstlineno + 1
    assert (found.path, found.line) == ("test_locations.py", line)
    assert sys.exc_info() == (None, None, None)
