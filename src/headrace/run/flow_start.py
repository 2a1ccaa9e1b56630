"""Decides how a flow starts. `plan` reports the decision, `run` executes it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.remedies import Remedies
from headrace.run.failures import state_changed
from headrace.run.survey import FlowSurveyor
from headrace.sinks.delta.table import TableState
from headrace.state.facts import CheckpointFacts, Continue, Open, Opening, SourceFacts
from headrace.state.opening import decide
from headrace.storage.table_log import is_table


@dataclass(frozen=True, kw_only=True)
class FlowStart:
    """How a flow would start."""

    opening: Opening  # whether the flow continues its checkpoint, opens a new one, or renames one
    sources: tuple[SourceFacts, ...]
    table: TableState | None  # the newest state of the target; ``None`` if it does not exist yet
    checkpoint: CheckpointFacts | None = None


def prepare_flow(surveyor: FlowSurveyor, remedies: Remedies) -> FlowStart:
    """Decide how a flow starts; writes nothing.

    Raises:
        RefusedError: The flow could lose or duplicate records.
        TransientError: The broker does not answer.
        TopicNotFoundError: A topic does not exist.
        StartInvalidError: A source does not hold the position that its options start at.
    """
    if not is_table(surveyor.table):
        start = FlowStart(opening=Open(reason="first"), sources=surveyor.look(), table=None)
    else:
        survey = surveyor.survey(remedies)
        start = FlowStart(
            opening=decide(survey.flow, survey.facts, survey.checkpoint),
            sources=survey.sources,
            table=survey.table,
            checkpoint=survey.checkpoint,
        )
    if isinstance(start.opening, Open):
        _check_starts(surveyor, start.opening, start.sources)
    if isinstance(start.opening, Continue):
        _check_state(surveyor, start.opening)
    return start


def prepare_full_refresh(surveyor: FlowSurveyor) -> FlowStart:
    """Let a flow start at the beginning of its sources, for a full refresh; writes nothing.

    Raises:
        TransientError: The broker does not answer.
        TopicNotFoundError: A topic does not exist.
        StartInvalidError: A source does not hold the position that its options start at.
    """
    table = surveyor.read_table(surveyor.table)
    opening = Open(reason="full-refresh", fences=table.checkpoints.get(surveyor.planned.flow.name))
    sources = surveyor.look()
    _check_starts(surveyor, opening, sources)
    return FlowStart(opening=opening, sources=sources, table=table)


def _check_state(surveyor: FlowSurveyor, opening: Continue) -> None:
    """Check that the state of the checkpoint fits the query."""
    planned = surveyor.planned
    flow, mismatch = planned.flow, planned.state_mismatch
    checkpoint = surveyor.settings.storage.checkpoint(flow.target, flow.name, opening.identity.generation)
    # A plan that was made before the last full refresh knows an earlier checkpoint.
    if mismatch is not None and mismatch.checkpoint == str(checkpoint):
        raise state_changed(flow, mismatch, ("no record was read or written",))


def _check_starts(surveyor: FlowSurveyor, opening: Open, sources: tuple[SourceFacts, ...]) -> None:
    """Check that each source exists, and has the position at which the flow would start."""
    facts = {one.source.index: one for one in sources}
    for source in surveyor.planned.sources:
        is_new = opening.positions is None or source.index not in opening.positions
        source.check_start(facts[source.index], surveyor.systems, is_new=is_new)
