"""Rows of Python lists whose values are of another number type than the columns."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.runtime.lazy_pyspark import T


def accepting_numbers(create: Callable[..., Any]) -> Callable[..., Any]:
    """A `createDataFrame` that puts an integer into a column of FLOAT or DOUBLE, as Spark Connect does.

    Spark's own pipelines and Databricks run queries over Spark Connect; a classic session refuses the value.
    """

    @functools.wraps(create)
    def create_frame(*args: Any, **kwargs: Any) -> Any:
        from pyspark.errors import PySparkTypeError

        try:
            return create(*args, **kwargs)
        except PySparkTypeError:
            bound = inspect.signature(create).bind(*args, **kwargs)
            data, schema = bound.arguments["data"], bound.arguments.get("schema")
            table = _convert(data, schema) if isinstance(data, list | tuple) else None
            if table is None:
                raise
            bound.arguments["data"] = table
            return create(*bound.args, **bound.kwargs)

    return create_frame


def _convert(data: list[Any] | tuple[Any, ...], schema: Any) -> Any:
    """The rows as an Arrow table; ``None`` if a value does not fit into its column."""
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql.conversion import LocalDataToArrowConversion

    with suppress(PySparkException, pa.ArrowException, ValueError, TypeError):
        struct = T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
        if isinstance(struct, T.StructType):
            return LocalDataToArrowConversion.convert(data, struct, False)
    return None
