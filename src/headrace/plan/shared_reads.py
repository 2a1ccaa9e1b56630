"""Equal streaming reads of one table in a query, which are one read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.plan.intercept import LOCATION_OPTION
from headrace.plan.logical import STREAMING_LEAVES, provider_and_options, reader_id
from headrace.runtime.gateway import frame_of_plan
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sources.registry import kind_for
from headrace.syntax.sql import items


def share_reads(
    session: SparkSession, frame: DataFrame, stands_for_table: Callable[[str], bool] = lambda _: False
) -> DataFrame:
    """The query, in which equal streaming reads of a table are uses of the first one.

    The result is the query that reads the table once into a variable, and uses that several times.
    `stands_for_table`: whether a folder is an empty one in the place of a table.
    """
    if not frame.isStreaming:
        return frame
    plan: Any = frame._jdf.queryExecution().analyzed()
    leaves = [leaf for leaf in items(plan.collectLeaves()) if str(leaf.nodeName()) in STREAMING_LEAVES]
    if len(leaves) < 2:
        return frame
    firsts: dict[Any, Any] = {}
    shared: list[Any | None] = []
    for leaf in leaves:
        key = _key(session, leaf, stands_for_table)
        first = leaf if key is None else firsts.setdefault(key, leaf)
        # Two reads can be equal objects, and still be two.
        is_own = key is None or _reader(session, first) == _reader(session, leaf)
        shared.append(None if is_own else _with_source(session, leaf, first.dataSource()))
    if not any(shared):
        return frame
    return frame_of_plan(session, _replaced(session, plan, iter(shared)))


def _key(session: SparkSession, leaf: Any, stands_for_table: Callable[[str], bool]) -> Any:
    """What two equal reads have in common; ``None`` if a read is not one of a table."""
    kind = str(leaf.nodeName())
    if kind != "StreamingRelation":
        return None
    provider, options = provider_and_options(session, kind, leaf)
    options.pop(LOCATION_OPTION, None)
    path = options.get("path", "")
    if not (kind_for(provider).reader.reads_tables or stands_for_table(path)):
        return None
    return provider, frozenset(options.items()), str(leaf.schema().json())


def _reader(session: SparkSession, leaf: Any) -> int:
    return reader_id(session, str(leaf.nodeName()), leaf)


def _with_source(session: SparkSession, leaf: Any, source: Any) -> Any:
    gateway: Any = session.sparkContext._gateway
    arguments = gateway.new_array(gateway.jvm.java.lang.Object, leaf.productArity())
    for index in range(leaf.productArity()):
        arguments[index] = leaf.productElement(index) if index else source
    return leaf.makeCopy(arguments)


def _replaced(session: SparkSession, node: Any, shared: Any) -> Any:
    """The plan with other streaming leaves, which come from left to right."""
    children = list(items(node.children()))
    if not children:
        replaced = next(shared) if str(node.nodeName()) in STREAMING_LEAVES else None
        return replaced or node
    jvm: Any = session._jvm
    return node.withNewChildren(
        jvm.PythonUtils.toSeq([_replaced(session, child, shared) for child in children])
    )
