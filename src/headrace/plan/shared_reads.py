"""Equal streaming reads of one table in a query, which are one read; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.plan.intercept import LOCATION_OPTION
from headrace.plan.logical import Leaf
from headrace.sources.registry import kind_for


def share_reads(leaves: Sequence[Leaf], stands_for_table: Callable[[str], bool]) -> tuple[Leaf, ...]:
    """The streaming relations of a query, in which equal reads of a table have one number.

    Spark runs such a query as one that reads the table once into a variable, and uses that several times.
    `stands_for_table`: whether a folder is an empty one in the place of a table.
    """
    firsts: dict[object, int] = {}
    found = []
    for leaf in leaves:
        if kind_for(leaf.provider).reader.reads_tables or stands_for_table(leaf.options.get("path", "")):
            options = {name: value for name, value in leaf.options.items() if name != LOCATION_OPTION}
            key = leaf.provider, frozenset(options.items())
            leaf = replace(leaf, read=firsts.setdefault(key, leaf.read))
        found.append(leaf)
    return tuple(found)
