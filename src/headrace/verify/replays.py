"""Replays: commits that moved rejected rows from the quarantine into the table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from headrace.model.texts import counted
from headrace.verify.balance import RowBalance
from headrace.verify.commits import Replay
from headrace.verify.equations import RowCounts
from headrace.verify.quarantine import Quarantine
from headrace.verify.report import Judgement


def judge_replays(
    replays: Sequence[Replay], balance: RowBalance, quarantine: Quarantine, found: Judgement
) -> str:
    """Judge the replays of one flow.

    Returns:
        The sum of their equations, for people; empty if there are none.
    """
    for one in replays:
        place = {"replay": one.id, "version": one.version}
        for equation in one.counts.broken:
            found.find("COUNTS_UNBALANCED", f"replay {one.id}: {equation}", **place)
        delta = balance.deltas.get(one.version)
        removes = delta is not None and delta.removed and not one.counts.by_key
        if delta is not None and not delta.unknown and (removes or not delta.agrees(one.counts)):
            text = f"replay {one.id} states that it added {counted(one.counts.added, 'row')}; version "
            text += f"{one.version} added {delta.added:,} and removed {delta.removed:,}"
            found.find("COUNTS_DIFFER", text, **place)
        marked = quarantine.replays.get(one.id, 0)
        if marked != one.rows and not quarantine.damage:
            text = f"replay {one.id} states that it moved {counted(one.rows, 'row')} out of the quarantine, "
            text += f"which has {marked:,} marked with it"
            found.find("REPLAY_DIFFERS", text, **place)
    if not replays:
        return ""
    total = reduce(RowCounts.plus, (one.counts for one in replays))
    return f"; {sum(one.rows for one in replays):,} replayed: {total.text}"
