"""The names of PySpark that Headrace uses, without an import of PySpark before their first use.

`F` and `T` are its functions and types. The classes are for annotations: at run time they are ``Any``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import (
        Column as Column,
        DataFrame as DataFrame,
        DataFrameReader as DataFrameReader,
        Observation as Observation,
        Row as Row,
        SparkSession as SparkSession,
    )
    from pyspark.sql.types import (
        DataType as DataType,
        DecimalType as DecimalType,
        StructField as StructField,
        StructType as StructType,
    )
else:
    Column = DataFrame = DataFrameReader = Observation = Row = SparkSession = Any
    DataType = DecimalType = StructField = StructType = Any


class LazyModule:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # Tools probe for dunder attributes (copy, pickle, doctest).
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


F: Any = LazyModule("pyspark.sql.functions")
T: Any = LazyModule("pyspark.sql.types")
