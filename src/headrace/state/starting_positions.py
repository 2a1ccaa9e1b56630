"""Where a new checkpoint begins: behind everything that any checkpoint of the flow has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import (
    HeadraceError,
    OffsetsBeyondEndError,
    OffsetsExpiredError,
    ResumeImpossibleError,
    SourceLocation,
    SourcesChangedError,
)
from headrace.model.ranges import Position
from headrace.state.facts import FlowFacts, KafkaFacts, ListOrigin, Open, Reason, TableFacts
from headrace.state.history import PastRead
from headrace.state.identity import SourceIdentity

Losses = tuple[Mapping[str, Any], ...]
"""Offsets that the broker no longer holds, by source, topic and partition."""


def open_next(flow: FlowFacts, table: TableFacts, current: str | None, reason: Reason) -> Open:
    """Start anew on topics that were created anew, and go on with those that were not.

    A flow that has fed the table before starts at given positions, so that no record is read twice
    and none is skipped, whatever its ``starting_offsets`` say.

    Raises:
        ResumeImpossibleError: Nobody can tell where.
        OffsetsExpiredError: The broker no longer holds what comes next.
    """
    committed = current is not None and table.transactions.get(current) is not None
    if current is None or not (committed or table.history.topics or table.history.reads):
        return Open(reason=reason, fences=current)
    if flow.stateful:
        raise resume_impossible(flow, "it keeps state, which a new checkpoint would not have")
    if committed and table.positions is None:
        raise resume_impossible(flow, "neither the table's log nor the ledger say how far it had read")
    positions: dict[int, Position] = {}
    lists: dict[int, ListOrigin] = {}
    for source in flow.sources:
        if source.kind == "kafka":
            positions[source.index] = _next_offsets(flow, table, flow.kafka[source.index])
        elif (past := _past_read(flow, table, source)) is not None:
            positions[source.index] = past.until
            if source.kind == "files":
                lists[source.index] = (past.checkpoint, past.source.index)
        else:
            _require_whole(flow, table, str(source.identity.get("path")))
        if source.index in table.read_elsewhere:
            path = table.read_elsewhere[source.index]
            raise resume_impossible(flow, f"it has read {path} before, through another folder")
    if not positions:
        return Open(reason=reason, fences=current)
    known, losses = compare_offsets(flow, table, positions)
    return open_behind(flow, table, reason, known, losses, fences=current, lists=lists)


def compare_offsets(
    flow: FlowFacts, table: TableFacts, known: Mapping[int, Position], *, continues: bool = False
) -> tuple[dict[int, Position], Losses]:
    """Whether the broker still holds what comes next.

    Args:
        flow: The flow.
        table: Its table.
        known: Where it goes on.
        continues: Whether the checkpoint in force does, which reads what joins from its beginning.

    Returns:
        Where it goes on with every partition that is there now, and behind what the broker has lost; and
        what that is.

    Raises:
        OffsetsBeyondEndError: A partition ends before what was read.
        SourcesChangedError: A topic joins that an earlier checkpoint has read.
    """
    losses: list[dict[str, Any]] = []
    positions: dict[int, Position] = {}
    for index, position in known.items():
        if index not in flow.kafka:
            positions[index] = position
            continue
        kafka = flow.kafka[index]
        offsets = positions[index] = {topic: dict(partitions) for topic, partitions in position.items()}
        for topic, partition, first in _first_offsets(kafka):
            mine = offsets.setdefault(topic, {})
            if str(partition) not in mine:
                if topic not in position and kafka.ids.get(topic) not in table.history.topics:
                    _require_whole(flow, table, f"the topic {topic}")
                # A partition that was never read starts at 0, wherever the broker's first record is.
                mine[str(partition)] = _ended_at(flow, table, kafka, topic, partition) or 0
                if continues and mine[str(partition)] > 0:
                    raise _read_before(flow, topic, partition, mine[str(partition)])
            offset = mine[str(partition)]
            end = kafka.latest.get(topic, {}).get(partition, offset)
            if offset > end:
                raise _beyond_end(flow, topic, partition, offset, end)
            if offset < first:
                mine[str(partition)] = first
                losses.append(
                    {"source": index, "topic": topic, "partition": partition, "from": offset, "until": first}
                )
    return positions, tuple(losses)


def open_behind(
    flow: FlowFacts,
    table: TableFacts,
    reason: Reason,
    positions: Mapping[int, Position],
    losses: Losses,
    *,
    fences: str,
    lists: Mapping[int, ListOrigin] | None = None,
) -> Open:
    """Open a new checkpoint at these positions; a loss policy decides whether it may go on behind a loss.

    Args:
        flow: The flow.
        table: Its table.
        reason: Why, where nothing is lost.
        positions: Where it goes on.
        losses: What the broker has lost before that.
        fences: The checkpoint in force.
        lists: Whose lists name the files that were read, where that is not the checkpoint in force.

    Raises:
        OffsetsExpiredError: Losses are to be refused.
        ResumeImpossibleError: A new checkpoint would lack state, or names of files.
    """
    policies = {index: kafka.on_data_loss or flow.on_data_loss for index, kafka in flow.kafka.items()}
    refused = [loss for loss in losses if policies[loss["source"]] == "refuse"]
    if refused:
        raise offsets_expired(flow.flow, flow.location, refused)
    if flow.stateful:
        raise resume_impossible(flow, "it keeps state, which a new checkpoint would not have")
    files = {source.index for source in flow.sources if source.kind == "files"}
    lists = {index: (fences, index) for index in files & set(positions)} if lists is None else lists
    # A new checkpoint needs the names of all files that were read, or it would read them again.
    if not table.unlisted.isdisjoint(lists.values()):
        raise resume_impossible(flow, "the ledger does not hold the names of all files that were read")
    return Open(
        reason="data-loss" if losses else reason,
        positions=positions,
        lists=lists,
        fences=fences,
        losses=losses,
    )


def _next_offsets(flow: FlowFacts, table: TableFacts, kafka: KafkaFacts) -> Position:
    """Where each partition goes on: a topic of a known id where it ended, another at its first record."""
    found: dict[str, dict[str, int]] = {}
    for topic, partitions in kafka.earliest.items():
        known = kafka.ids.get(topic) in table.history.topics
        for partition, first in partitions.items():
            ended = _ended_at(flow, table, kafka, topic, partition)
            if ended is None:
                _require_whole(flow, table, f"the topic {topic}")
            found.setdefault(topic, {})[str(partition)] = (ended or 0) if known else first
    return found


def _ended_at(
    flow: FlowFacts, table: TableFacts, kafka: KafkaFacts, topic: str, partition: int
) -> int | None:
    """Where a checkpoint has ended a partition; ``None`` where none has read it.

    Raises:
        ResumeImpossibleError: A join had read it on both sides, up to different offsets.
    """
    ended = table.history.topics.get(kafka.ids.get(topic) or "", {})
    if ended.get(str(partition), 0) is None:
        raise resume_impossible(flow, _apart(f"the topic {topic}"))
    return ended.get(str(partition))


def _past_read(flow: FlowFacts, table: TableFacts, source: SourceIdentity) -> PastRead | None:
    """The read of a table or a folder that a source goes on behind; ``None`` for one that is new.

    Raises:
        ResumeImpossibleError: A join had read it on both sides, up to different positions.
    """
    past = table.history.reads.get(source.key, ())
    # A stream of a table names the version of its own format beside the position.
    ends = [{**read.until, "sourceVersion": None} for read in past]
    if any(end != ends[0] for end in ends):
        raise resume_impossible(flow, _apart(str(source.identity.get("path"))))
    return past[0] if past else None


def _require_whole(flow: FlowFacts, table: TableFacts, what: str) -> None:
    """Before something is taken for new: what all checkpoints have read must be known.

    Raises:
        ResumeImpossibleError: It is not.
    """
    if not table.history.whole:
        why = f"neither the table's log nor the ledger say whether an earlier checkpoint has read {what}"
        raise resume_impossible(flow, why)


def _apart(what: str) -> str:
    return f"its query has read {what} on both sides of a join, up to different positions"


def resume_impossible(flow: FlowFacts, why: str) -> HeadraceError:
    """The refusal of a new checkpoint that would lose or double rows."""
    return ResumeImpossibleError(
        f"flow {flow.flow} cannot be resumed from its table: {why}",
        location=flow.location,
        facts=("nothing was read or written",),
        remedies=(f"read everything again:   headrace full-refresh {flow.dataset}",),
        params={"flow": flow.flow},
    )


def _read_before(flow: FlowFacts, topic: str, partition: int, offset: int) -> HeadraceError:
    remedy = (
        f"read everything again:   headrace full-refresh {flow.dataset}"
        if flow.stateful
        else f"go on where it was left:   headrace run --new-checkpoint {flow.flow}"
    )
    return SourcesChangedError(
        f"flow {flow.flow}: the topic `{topic}` is back, and an earlier checkpoint has read it",
        location=flow.location,
        facts=(
            f"partition {partition} was read up to {offset}; the checkpoint in force would begin at 0",
            "nothing was read or written",
        ),
        remedies=(remedy,),
        params={"flow": flow.flow, "topic": topic, "partition": partition, "offset": offset},
    )


def _first_offsets(kafka: KafkaFacts) -> list[tuple[str, int, int]]:
    return [
        (topic, partition, first)
        for topic, partitions in kafka.earliest.items()
        for partition, first in partitions.items()
    ]


def _beyond_end(flow: FlowFacts, topic: str, partition: int, offset: int, end: int) -> HeadraceError:
    return OffsetsBeyondEndError(
        f"flow {flow.flow}: topic `{topic}`, partition {partition} ends at offset {end}, "
        f"before {offset}, up to which it was read",
        location=flow.location,
        facts=("the broker has lost records; nothing was read or written",),
        remedies=(f"read everything again:   headrace full-refresh {flow.dataset}",),
        params={"flow": flow.flow, "topic": topic, "partition": partition},
    )


def offsets_expired(
    flow: str, location: SourceLocation, losses: Sequence[Mapping[str, Any]]
) -> OffsetsExpiredError:
    """The refusal of a source whose retention has passed the checkpoint."""
    lost = sum(loss["until"] - loss["from"] for loss in losses)
    return OffsetsExpiredError(
        f"flow {flow}: the broker no longer holds {lost} offsets that it has not read",
        location=location,
        facts=(
            *(
                f"topic {loss['topic']}, partition {loss['partition']}: {loss['from']} to {loss['until'] - 1}"
                for loss in losses
            ),
            "nothing was read or written",
        ),
        remedies=(
            'set `on_data_loss: record` in headrace.yml, or on_data_loss="record" in read_kafka: the flow '
            "goes on behind them, and the ledger keeps what was lost",
        ),
        params={"flow": flow, "losses": losses},
    )
