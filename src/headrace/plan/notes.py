"""Notes of a plan: facts about the declarations that may surprise their author."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headrace.model.declarations import Declarations, TemporaryView
from headrace.plan.names import label_of, shown
from headrace.plan.stages import Note
from headrace.syntax.bindings import ReboundGlobal, find_rebound


def find_notes(declarations: Declarations, root: Path) -> Iterator[Note]:
    """The notes of a pipeline.

    Args:
        declarations: What its files declare.
        root: Its folder.
    """
    yield from _rebound_globals(declarations, root)


def _rebound_globals(declarations: Declarations, root: Path) -> Iterator[Note]:
    """One warning for each helper and global, however many queries call the helper."""
    queries = {label_of(flow): flow.query for flow in declarations.flows}
    views = (one for one in declarations.datasets if isinstance(one, TemporaryView))
    queries |= {shown(view.name): view.query for view in views}
    found: dict[ReboundGlobal, list[str]] = {}
    for name, query in queries.items():
        for rebound in find_rebound(query, root):
            found.setdefault(rebound, []).append(name)
    for rebound, names in found.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Note(
            level="warning",
            text=f"`{rebound.helper}`, which the query of `{names[0]}`{others} calls, reads the global "
            f"`{rebound.name}`; it was assigned again after the query was declared, and the helper sees "
            "the last value",
            location=rebound.location or queries[names[0]].location,
            remedy=f"pass `{rebound.name}` to `{rebound.helper}` as an argument",
        )
