"""The final sort of a streaming aggregation, which says nothing about a table."""

from __future__ import annotations

from typing import Any

from headrace.runtime.gateway import frame_of_plan
from headrace.runtime.lazy_pyspark import DataFrame

_KEEPS_ROWS = frozenset({"Project", "Filter", "SubqueryAlias", "View"})
"""The nodes that give the same rows for rows in another order."""


def without_final_sort(frame: DataFrame) -> DataFrame | None:
    """The query without the sort of its result; ``None`` if it does not sort its result."""
    node: Any = frame._jdf.queryExecution().analyzed()
    above = []
    while (kind := str(node.nodeName())) in _KEEPS_ROWS:
        above.append(node)
        node = node.child()
    if kind != "Sort":
        return None
    jvm: Any = frame.sparkSession._jvm
    node = node.child()
    for parent in reversed(above):
        node = parent.withNewChildren(jvm.PythonUtils.toSeq([node]))
    return frame_of_plan(frame.sparkSession, node)
