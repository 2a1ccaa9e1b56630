"""Arrow tables of Python rows are those of PyArrow, and need no pandas."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest

from headrace.observe.event_table import event_schema
from headrace.storage.arrow_rows import build_table, empty_table

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("byte", pa.int8()),
        ("long", pa.int64()),
        ("double", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("list", pa.list_(pa.struct([("name", pa.string()), ("counts", pa.list_(pa.int32()))]))),
    ]
)
FULL = {
    "text": "größe \N{SNOWMAN}",
    "flag": True,
    "byte": -128,
    "long": 1 << 62,
    "double": 0.1,
    "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    "list": [{"name": "a", "counts": [1, None]}, None, {"name": None}],
}
ROWS = [
    FULL,
    {},
    {
        "at": datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=5))),
        "list": [],
        "flag": False,
        "text": "",
    },
    *[{"long": number, "flag": number % 3 == 0} for number in range(20)],
]


@pytest.mark.parametrize("rows", [ROWS, [FULL], [{}], [{"text": "x" * (2 << 20)}, FULL], []])
def test_a_table_equals_that_of_pyarrow(rows: list[dict[str, object]]) -> None:
    built = build_table(rows, SCHEMA)
    built.validate(full=True)
    assert built.equals(pa.Table.from_pylist(rows, schema=SCHEMA))


@pytest.mark.parametrize("row", [{"long": "x"}, {"text": 1}, {"flag": 2}, {"byte": 300}, {"text": "\ud800"}])
def test_a_value_that_does_not_fit_is_an_error(row: dict[str, object]) -> None:
    with pytest.raises(pa.ArrowInvalid):
        build_table([row], SCHEMA)


def test_the_table_of_events_needs_no_pandas() -> None:
    code = (
        "import sys\n"
        "from headrace.observe.event_table import event_schema\n"
        "from headrace.storage.arrow_rows import build_table, empty_table\n"
        "schema = event_schema()\n"
        "assert empty_table(schema).num_rows == 0\n"
        "assert build_table([{}], schema).num_rows == 1\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert empty_table(event_schema()).schema == event_schema()
