"""Where a new checkpoint begins: after everything that any checkpoint of the flow has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.errors import HeadraceError, ResumeImpossibleError, StartInvalidError
from headrace.model.ranges import Position
from headrace.model.remedies import ChosenStart
from headrace.state.facts import FlowFacts, History, ListOrigin, Losses, Open, Reason, SourceFacts, TableFacts

_STATEFUL = "its query is stateful, and a new checkpoint has no state"


def open_next(flow: FlowFacts, table: TableFacts, current: str | None) -> Open:
    """Continue each source where the flow's checkpoints ended; read a new one from its beginning.

    A flow that has written the table before starts at its last positions, so that no record is read twice
    and none is skipped. Its ``starting_offsets`` do not apply.
    """
    committed = current is not None and table.transactions.get(current) is not None
    if current is None or not (committed or table.history.commits):
        if flow.start is not None:
            raise _start_invalid(
                flow,
                "has read nothing yet, so --from does not apply",
                'set starting_offsets="earliest", "latest" or offsets in its query',
            )
        return Open(
            reason="reset", positions=first_positions(flow.sources, stateful=flow.stateful), fences=current
        )
    if flow.stateful:
        raise resume_impossible(flow, _STATEFUL)
    if committed and table.positions is None:
        raise resume_impossible(flow, "neither the table's log nor the ledger has its last offsets")
    starts = {facts.source.index: facts.next_position(flow, table.history) for facts in flow.sources}
    known = {index: start for index, start in starts.items() if start is not None}
    positions = {index: start.position for index, start in known.items()}
    if flow.start is not None:
        return _open_chosen(flow, table, positions, flow.start, fences=current)
    if not known:
        return Open(
            reason="reset", positions=first_positions(flow.sources, stateful=flow.stateful), fences=current
        )
    positions, losses = check_positions(flow, table, positions)
    origins = {index: start.origin for index, start in known.items() if start.origin is not None}
    return open_after(flow, "reset", positions, losses, fences=current, origins=origins)


def _open_chosen(
    flow: FlowFacts, table: TableFacts, known: Mapping[int, Position], start: ChosenStart, *, fences: str
) -> Open:
    """Open a new checkpoint where the user wants it."""
    chosen = {
        facts.source.index: found
        for facts in flow.sources
        if facts.source.index in known
        and (found := facts.choose_position(flow, table.history, known[facts.source.index], start))
    }
    reached = frozenset().union(*(one.partitions for one in chosen.values()))
    for topic, partitions in start.offsets.items():
        for partition in partitions:
            if (topic, partition) not in reached:
                raise _start_invalid(
                    flow,
                    f"does not read partition {partition} of a topic `{topic}`",
                    f"its sources: {', '.join(flow.describe(facts.source) for facts in flow.sources)}",
                )
    if len(chosen) < len(flow.sources):
        raise _start_invalid(
            flow,
            "reads a source that cannot start at chosen positions",
            f"continue from the table:   headrace reset {flow.flow}",
        )
    positions = {**known, **{index: one.position for index, one in chosen.items()}}
    positions, lost = check_positions(flow, table, positions)
    losses = (*lost, *(loss for one in chosen.values() for loss in one.losses))
    opening = open_after(flow, "reset", positions, losses, fences=fences)
    return replace(opening, repeats=tuple(again for one in chosen.values() for again in one.repeats))


def first_positions(sources: Sequence[SourceFacts], *, stateful: bool) -> Mapping[int, Position] | None:
    """Where a flow starts that has read nothing, for the sources whose start Spark does not keep.

    A checkpoint with positions has no state, so a stateful query asks its sources."""
    if stateful:
        return None
    found = {facts.source.index: facts.first_position() for facts in sources}
    return {index: position for index, position in found.items() if position is not None} or None


def check_positions(
    flow: FlowFacts, table: TableFacts, known: Mapping[int, Position], *, continues: bool = False
) -> tuple[dict[int, Position], Losses]:
    """The positions at which a flow can continue, by what its sources hold, and what they have lost before
    them."""
    by_index = {facts.source.index: facts for facts in flow.sources}
    positions: dict[int, Position] = {}
    losses: Losses = ()
    for index, position in known.items():
        positions[index], lost = by_index[index].check_position(
            flow, table.history, position, continues=continues
        )
        losses += lost
    return positions, losses


def open_after(
    flow: FlowFacts,
    reason: Reason,
    positions: Mapping[int, Position],
    losses: Losses,
    *,
    fences: str,
    origins: Mapping[int, ListOrigin] | None = None,
) -> Open:
    """Open a new checkpoint at positions of an earlier one, or of the checkpoints that are their origins."""
    if flow.stateful:
        raise resume_impossible(flow, _STATEFUL)
    lists: dict[int, ListOrigin] = {}
    for facts in flow.sources:
        index = facts.source.index
        if index not in positions:
            continue
        if not facts.can_resume:
            name = flow.describe(facts.source)
            raise resume_impossible(flow, f"{name} cannot start from the offsets of another checkpoint")
        origin = facts.check_lists(flow, (origins or {}).get(index, (fences, index)))
        if origin is not None:
            lists[index] = origin
    return Open(
        reason="data-loss" if losses else reason,
        positions=positions,
        lists=lists,
        fences=fences,
        losses=losses,
    )


def require_whole(flow: FlowFacts, history: History, what: str) -> None:
    """Check that it is known what all earlier checkpoints have read, before a source is read from its
    start."""
    if not history.whole:
        why = f"neither the table's log nor the ledger shows whether an earlier checkpoint has read {what}"
        raise resume_impossible(flow, why)


def _start_invalid(flow: FlowFacts, why: str, remedy: str) -> HeadraceError:
    return flow.error(StartInvalidError, f" {why}", ("nothing was changed",), remedy)


def resume_impossible(flow: FlowFacts, why: str) -> HeadraceError:
    """The error for a new checkpoint that would lose or duplicate rows."""
    return flow.error(
        ResumeImpossibleError, f" cannot be resumed from its table: {why}", ("nothing was read or written",)
    )
