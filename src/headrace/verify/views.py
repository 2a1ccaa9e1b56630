"""Materialized views: recomputed whole, so their proof is what they were computed from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.model.texts import counted
from headrace.verify.balance import RowBalance
from headrace.verify.commits import CommitClaims, Refresh
from headrace.verify.report import Judgement, ViewProof


@dataclass(frozen=True, kw_only=True)
class Input:
    """A table that a view reads, as it is now."""

    table_id: str
    version: int


def judge_view(
    metadata: CommitClaims, balance: RowBalance, find_input: Callable[[str], Input | None], found: Judgement
) -> ViewProof | None:
    """Whether a view is what its last refresh wrote, and whether its inputs have moved on since.

    Args:
        find_input: The table of a name, or ``None`` where the storage has none.
    """
    if not metadata.refreshes:
        return None
    last = metadata.refreshes[-1]
    delta = balance.deltas.get(last.version)
    if delta is not None and last.rows is not None and delta.added != last.rows:
        text = (
            f"the refresh of version {last.version} states that it wrote {counted(last.rows, 'row')}, "
            f"and its files hold {delta.added:,}"
        )
        found.find("COUNTS_DIFFER", text, version=last.version)
    for version, later in sorted(balance.deltas.items()):
        if version > last.version and later.is_foreign:
            text = f"{later.text}; since then it is not what its query gave"
            found.find("VIEW_CHANGED", text, version=version)
    late = _moved_on(last, find_input)
    read = ", ".join(f"{name} v{version}" for name, (_, version) in sorted(last.inputs.items()))
    text = f"recomputed from {read or 'no table'}"
    text += f"; since then {', '.join(late)}" if late else ", the latest" if read else ""
    rows = balance.rows if delta is None else delta.added
    return ViewProof(version=last.version, rows=rows, fresh=not late, text=text)


def _moved_on(last: Refresh, find_input: Callable[[str], Input | None]) -> list[str]:
    late = []
    for name, (table_id, version) in sorted(last.inputs.items()):
        now = find_input(name)
        if now is None:
            late.append(f"{name} is not in the storage any more")
        elif now.table_id != table_id:
            late.append(f"{name} was created again")
        elif now.version > version:
            late.append(f"{name} has v{now.version}")
    return late
