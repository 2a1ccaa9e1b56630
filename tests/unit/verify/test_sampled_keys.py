"""Keys of records have the values that the columns of the table have, so that none of them counts as lost."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.verify.sampled_keys import _json, _plain, _read_value, _rows_of
from headrace.verify.stored import StoredPath

FLOAT = 0.10000000149011612


@pytest.mark.parametrize(
    ("kind", "column", "text", "value"),
    [
        ("decimal(38,18)", pa.decimal128(38, 18), "12345678901234567890.123456789012345678", None),
        ("decimal(12,2)", pa.decimal128(12, 2), "1.235", "1.24"),
        ("decimal(12,2)", pa.decimal128(12, 2), '"-0.00"', "0"),
        ("float", pa.float32(), "0.1", FLOAT),
        ("float", pa.float32(), "NaN", math.nan),
        ("double", pa.float64(), "0.1", 0.1),
        ("double", pa.float64(), "-0.0", 0.0),
        ("double", pa.float64(), "0.0", -0.0),
        ("double", pa.float64(), "NaN", math.nan),
    ],
)
def test_the_row_of_a_key_is_found(tmp_path: Path, kind: str, column: Any, text: str, value: Any) -> None:
    held = Decimal(text if value is None else value) if kind.startswith("decimal") else value
    write_deltalake(tmp_path / "t", pa.table({"key": pa.array([held], column), "at": [7]}))
    key = (_read_value(kind, _json(text)),)
    assert _plain(held) == key[0] or key[0] is math.nan
    assert _rows_of(StoredPath.at(str(tmp_path / "t")), 0, ["key", "at"], {key}) == {key: 7}


def test_a_number_that_a_column_cannot_have_is_no_key() -> None:
    nothing = _read_value("long", _json("1.5"))
    assert _read_value("decimal(38,18)", _json("1e300")) is nothing
    assert _read_value("decimal(38,18)", _json('"Infinity"')) is nothing
    assert _json("1e99999999999999999999") is nothing
