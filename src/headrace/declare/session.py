"""``spark`` in pipeline files: the session of the active pipeline."""

from __future__ import annotations

import sys
from typing import Any

from headrace.declare.registry import require_pipeline


class ActiveSession:
    """A proxy of the active pipeline's ``SparkSession``, which starts at the first use.

    Each attribute is looked up in the current session, since a flow runs in a clone of its own.
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
