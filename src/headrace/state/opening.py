"""Decides how a flow starts: continue, open a new checkpoint, or refuse with a remedy. It reads and writes
nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace import errors
from headrace.errors import HeadraceError
from headrace.model.ranges import Position
from headrace.state.checkpoint import CheckpointIdentity, SourceIdentity
from headrace.state.facts import (
    FENCED,
    CheckpointFacts,
    Continue,
    FlowFacts,
    Open,
    Opening,
    ReadBefore,
    RenameFlow,
    TableFacts,
)
from headrace.state.starting_positions import check_positions, first_positions, open_after, open_next
from headrace.syntax.locations import argument_location


def decide(flow: FlowFacts, table: TableFacts, checkpoint: CheckpointFacts | None) -> Opening:
    current = table.checkpoints.get(flow.flow)
    for facts in flow.sources:
        facts.check(flow)
    if current is not None and table.transactions.get(current) == FENCED:
        raise _restored(flow, table, current)
    if flow.rename_from is not None and (current is None or checkpoint is None):
        old = flow.rename_from
        if old not in flow.declared_flows:
            return RenameFlow(old_flow=old)
        raise errors.RenameImpossibleError(
            f"flow {old} cannot be renamed to {flow.flow}: {old} is still declared",
            location=flow.location,
            facts=("two flows cannot use one checkpoint; nothing was changed",),
            remedies=(f"remove the declaration of {old}, or start without --rename-flow:   headrace run",),
            params={"flow": flow.flow, "old": old},
        )
    if flow.reset:
        return open_next(flow, table, current)
    if checkpoint is None:
        if current is not None:
            raise _lost(flow, current)
        _refuse_rename(flow, table)
        return Open(reason="first", positions=first_positions(flow.sources, stateful=flow.stateful))
    return _go_on(flow, table, checkpoint, current)


def _go_on(flow: FlowFacts, table: TableFacts, checkpoint: CheckpointFacts, current: str | None) -> Opening:
    identity = checkpoint.identity
    committed = table.transactions.get(identity.checkpoint, -1)
    if identity.table_id != table.table_id or (current is None and checkpoint.last_planned >= 0):
        raise errors.TableLostError(
            f"flow {flow.flow}: its checkpoint does not belong to the present table {flow.short_dataset}",
            location=flow.location,
            facts=(
                f"checkpoint {identity.checkpoint} has {checkpoint.last_planned + 1} batches; "
                f"the table {'was just created' if table.fresh else 'was deleted and created again'}",
                "nothing was read or written",
            ),
            remedies=(rebuild_remedy(flow.short_dataset, flow.readers),),
            params={"flow": flow.flow, "dataset": flow.dataset, "checkpoint": identity.checkpoint},
        )
    if table.ledger_stale or table.folded > table.version:
        raise _table_behind(
            flow,
            "versions that its flow has committed",
            f"the flow has committed version {table.folded}, the table ends at version {table.version}"
            + ("" if table.folded > table.version else ", with other commits"),
            {"table": table.version, "ledger": table.folded},
        )
    if current is not None and current != identity.checkpoint:
        raise _behind(
            flow, identity, checkpoint.last_planned, f"the table is now written with checkpoint {current}"
        )
    if committed > checkpoint.last_planned:
        found = f"the table (v{table.version}) holds them up to {committed}"
        raise _behind(flow, identity, checkpoint.last_planned, found)
    if committed < checkpoint.last_finished:
        raise _table_behind(
            flow,
            "batches that its checkpoint has finished",
            f"checkpoint {identity.checkpoint} has finished batch {checkpoint.last_finished}; "
            f"the table holds its batches up to {committed}",
            {"table": committed, "checkpoint": checkpoint.last_finished},
        )
    known = tuple(_read_before(source, table, checkpoint) for source in identity.sources)
    if table.positions is not None and not _continues(checkpoint.positions, table.positions):
        # A batch that Spark has planned while a topic of a pattern was gone leaves that topic out.
        _compare_sources(flow, known)
        found = f"the table holds batch {committed} with other offset ranges"
        raise _behind(flow, identity, checkpoint.last_planned, found)
    if len(flow.sources) != len(identity.sources):
        raise _sources_changed(flow, known)
    _compare_sources(flow, known)
    _refuse_swaps(flow, checkpoint)
    positions, losses = check_positions(flow, table, checkpoint.positions, continues=True)
    if not losses:
        return Continue(identity=identity)
    return open_after(flow, "data-loss", positions, losses, fences=identity.checkpoint)


def _read_before(source: SourceIdentity, table: TableFacts, checkpoint: CheckpointFacts) -> ReadBefore:
    positions = (checkpoint.positions, table.positions or {})
    return ReadBefore(
        checkpoint=checkpoint.identity.checkpoint,
        source=source,
        committed=next((one for one in table.sources if one.index == source.index), None),
        positions=tuple(known[source.index] for known in positions if source.index in known),
    )


def _continues(checkpoint: Mapping[int, Position], table: Mapping[int, Position]) -> bool:
    return all(index in checkpoint and checkpoint[index].continues(ended) for index, ended in table.items())


def _compare_sources(flow: FlowFacts, known: tuple[ReadBefore, ...]) -> None:
    by_index = {facts.source.index: facts for facts in flow.sources}
    for then in known:
        now = by_index.get(then.source.index)
        if now is None or now.source.kind != then.source.kind or not now.is_same(flow, then):
            raise _sources_changed(flow, known)


def _refuse_swaps(flow: FlowFacts, checkpoint: CheckpointFacts) -> None:
    """Refuse a query whose reads of one source may have changed places: each would go on from the positions
    of the other. Sources that are read several times differ only by their numbers in the query."""
    then = {source.index: source.identity for source in checkpoint.identity.sources}
    alike: dict[str, list[SourceIdentity]] = {}
    for facts in flow.sources:
        alike.setdefault(facts.source.key(facts.keys), []).append(facts.source)
    for group in alike.values():
        indexes = [source.index for source in group]
        reached = [checkpoint.positions.get(index) for index in indexes]
        if all(one == reached[0] for one in reached):
            continue
        now = [source.identity for source in group]
        before = [then[index] for index in indexes]
        moved = any(one != old and one in before for one, old in zip(now, before, strict=True))
        told_apart = now == before and all(one not in now[:number] for number, one in enumerate(now))
        if moved or not (told_apart or checkpoint.query in (None, flow.query)):
            raise _swapped(flow, group[1], is_same=not moved)


def _swapped(flow: FlowFacts, source: SourceIdentity, *, is_same: bool) -> HeadraceError:
    name = flow.describe(source)
    what = (
        f"has read {name} twice" if is_same else f"reads several sources {name}, in another order than before"
    )
    return errors.SourcesChangedError(
        f"flow {flow.flow}: its query was changed, and {what}, up to different positions",
        location=flow.location,
        facts=(
            "the positions could be those of the other read: rows would be lost, or read twice",
            "nothing was read or written",
        ),
        remedies=(
            "undo the change, run the flow until it has read everything, and change the query then"
            if is_same
            else "undo the change of the order",
            f"or read everything again:   headrace full-refresh {flow.short_dataset}",
        ),
        params={"flow": flow.flow, "source": source.index},
    )


def _refuse_rename(flow: FlowFacts, table: TableFacts) -> None:
    orphans = sorted(set(table.checkpoints) - flow.declared_flows)
    if not orphans:
        return
    raise errors.FlowRenamedError(
        f"flow {flow.flow} is new, and flow {orphans[0]} of {flow.short_dataset} is no longer declared",
        location=argument_location(flow.location, "name", flow.flow),
        facts=(
            "if the flow was only renamed, a new checkpoint would read every record twice",
            "nothing was read or written",
        ),
        remedies=(
            f"if the flow was renamed:   headrace run --rename-flow {orphans[0]}={flow.flow}",
            "if it is another flow, which reads its sources from the beginning and adds the rows to "
            f"{flow.short_dataset}:   headrace reset {flow.flow}",
        ),
        params={"flow": flow.flow, "orphans": orphans},
    )


def _lost(flow: FlowFacts, current: str) -> HeadraceError:
    return errors.CheckpointLostError(
        f"flow {flow.flow}: its checkpoint is missing, and the table {flow.short_dataset} has its rows",
        location=flow.location,
        facts=(
            f"{flow.folder} does not hold the checkpoint with which the table was written",
            "without it, every record would be read twice; nothing was read or written",
        ),
        remedies=(*resume_remedy(flow), "or restore the folder from a copy, then run again:   headrace run"),
        params={"flow": flow.flow, "dataset": flow.dataset, "checkpoint": current},
    )


def _table_behind(flow: FlowFacts, lacks: str, found: str, numbers: Mapping[str, int]) -> HeadraceError:
    what = "read the records of the missing versions again, and keep the rows of the table"
    again = (f"{what}:   headrace reset {flow.flow}",)
    return errors.TableBehindCheckpointError(
        f"flow {flow.flow}: the table {flow.short_dataset} lacks {lacks}",
        location=flow.location,
        facts=(
            found,
            f"it seems that an old copy of the table was restored; {flow.flow} has read and written nothing",
        ),
        remedies=again if flow.can_resume else resume_remedy(flow),
        params={"flow": flow.flow, **numbers},
    )


def _restored(flow: FlowFacts, table: TableFacts, current: str) -> HeadraceError:
    """RESTORE brings back the properties of an older version, and keeps the newer transaction ids.

    So the table names a checkpoint that was replaced, and does not say up to which batch it holds it.
    """
    return errors.TableBehindCheckpointError(
        f"flow {flow.flow}: the table {flow.short_dataset} was restored to a version from before its "
        "checkpoint was replaced",
        location=flow.location,
        facts=(
            f"version {table.version} names the replaced checkpoint {current}",
            "nothing was read or written",
        ),
        remedies=(f"read everything again:   headrace full-refresh {flow.short_dataset}",),
        params={"flow": flow.flow, "dataset": flow.dataset, "checkpoint": current, "version": table.version},
    )


def _behind(flow: FlowFacts, identity: CheckpointIdentity, planned: int, found: str) -> HeadraceError:
    return errors.CheckpointBehindTableError(
        f"flow {flow.flow}: its checkpoint is older than the table {flow.short_dataset}",
        location=flow.location,
        facts=(
            f"the checkpoint in {flow.folder} has planned its batches up to {planned}; {found}",
            "an old copy of the checkpoint was restored, or another driver has written the table",
            "nothing was read or written",
        ),
        remedies=(*resume_remedy(flow), "or restore the newest copy of the checkpoint"),
        params={"flow": flow.flow, "dataset": flow.dataset, "checkpoint": identity.checkpoint},
    )


def resume_remedy(flow: FlowFacts) -> tuple[str, ...]:
    """The help of an error about a checkpoint that cannot be used any more."""
    if flow.can_resume:
        return (resume_command(flow.flow),)
    return (f"read everything again:   headrace full-refresh {flow.short_dataset}",)


def rebuild_remedy(dataset: str, readers: Sequence[str]) -> str:
    """The remedy for a lost table. `readers`: the tables whose flows read it as a stream: it is not known
    whether they would get the same rows again."""
    accepts = "".join(f" --accept-loss {one}" for one in readers)
    listed = ", ".join(readers)
    also = f"; the rows of {listed} are removed, and some may not come back" if readers else ""
    return f"read everything again{also}:   headrace full-refresh {dataset}{accepts}"


def repair_command(flow: str) -> str:
    """The remedy that repairs files of a checkpoint, and keeps its state."""
    what = "write the file again from the table; the command first shows what it would do"
    return f"{what}:   headrace checkpoint repair {flow}"


def resume_command(flow: str) -> str:
    """The remedy that opens a new checkpoint at the table's positions."""
    what = "open a new checkpoint, which continues after the last batch of the table"
    return f"{what}:   headrace reset {flow}"


def _sources_changed(flow: FlowFacts, known: tuple[ReadBefore, ...]) -> HeadraceError:
    def listed(sources: Iterable[SourceIdentity]) -> tuple[str, ...]:
        return tuple(map(flow.describe, sources))

    before, now = listed(one.source for one in known), listed(facts.source for facts in flow.sources)
    gone = ", ".join(one for one in before if one not in now)
    new = [one not in before for one in now]
    added = ", ".join(one for one, is_new in zip(now, new, strict=True) if is_new) or "these sources"
    changed = (place for place, is_new in zip(flow.places, new, strict=False) if is_new)
    remedies = [
        f"keep the rows and continue with these sources:   headrace reset {flow.flow}",
        f"or read everything again:   headrace full-refresh {flow.short_dataset}",
    ]
    if gone:
        refresh = f"headrace full-refresh {flow.short_dataset} --accept-loss {flow.short_dataset}"
        remedies = [
            f"keep the rows of {flow.short_dataset}, and read what flow {flow.flow} has not read of "
            f"{added} (a copy of what it has read counts as new):   headrace reset {flow.flow}",
            f"or remove all rows of {flow.short_dataset}, and read {', '.join(now)} from the beginning:   "
            + refresh,
            f"or read {gone} in the query again, then:   headrace run",
        ]
    return errors.SourcesChangedError(
        f"flow {flow.flow}: its query reads other sources than its checkpoint",
        location=next(changed, flow.location),
        facts=(
            f"the checkpoint read {', '.join(before)}",
            f"the query reads {', '.join(now)}",
            "nothing was read or written",
        ),
        remedies=remedies,
        params={"flow": flow.flow},
    )
