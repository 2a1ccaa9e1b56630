"""``spark`` in pipeline files: the active pipeline's session, asked for at each use."""

from __future__ import annotations

import sys
from typing import Any

from headrace.declare.registry import require_pipeline


class ActiveSession:
    """Stands for the active pipeline's ``SparkSession``, and starts it only when it is used.

    Each attribute is looked up in the session of the moment, since a flow runs on a clone of its own.
    """

    def __getattr__(self, name: str) -> Any:
        # Tools probe for dunder attributes (copy, pickle, inspect); none of them may start a JVM.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(require_pipeline("spark").session(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(require_pipeline("spark").session(), name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """``SparkSession`` where PySpark is loaded, so that ``isinstance`` answers as users expect."""
        pyspark_sql = sys.modules.get("pyspark.sql")
        return ActiveSession if pyspark_sql is None else pyspark_sql.SparkSession

    def __repr__(self) -> str:
        return "<spark: the active pipeline's session>"


spark = ActiveSession()
