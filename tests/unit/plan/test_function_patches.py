"""Rows of Python lists in columns of another number type."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import FloatType, LongType, StructField, StructType

from headrace.plan.function_patches import accepting_numbers

ROW = StructType([StructField("id", LongType()), StructField("depth", FloatType())])


def create(data: Any, schema: Any = None) -> Any:
    if isinstance(data, list):
        raise PySparkTypeError("the value has another type")
    return data


def test_an_integer_becomes_a_float() -> None:
    table = accepting_numbers(create)([{"id": 1, "depth": 450}], ROW)
    assert table.schema.field("depth").type == pa.float32()
    assert table.to_pylist() == [{"id": 1, "depth": 450.0}]


@pytest.mark.parametrize("data", [[(1, "450")], [("1", 1)]])
def test_another_value_is_refused_as_before(data: list[Any]) -> None:
    with pytest.raises(PySparkTypeError):
        accepting_numbers(create)(data, ROW)
