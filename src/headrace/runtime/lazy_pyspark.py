"""PySpark's functions and types as modules that are imported at their first use.

Commands that need no Spark import no PySpark, and no function has to import these names again.
"""

from __future__ import annotations

import importlib
from typing import Any


class _LazyModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # Tools probe for dunder attributes (copy, pickle, doctest).
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


F: Any = _LazyModule("pyspark.sql.functions")
T: Any = _LazyModule("pyspark.sql.types")
