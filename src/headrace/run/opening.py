"""Decides how a flow starts, which `plan` reports, and opens its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from headrace.errors import RenameImpossibleError, UsageError
from headrace.model.project import ProjectSettings
from headrace.model.ranges import SourceRange
from headrace.model.remedies import Remedies
from headrace.plan.stages import PlannedFlow
from headrace.run.failpoints import reach
from headrace.run.survey import (
    FlowSurveyor,
    check_tombstones,
    find_unfinished,
    table_lost,
    unfinished_refresh,
)
from headrace.run.targets import side_tables
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.table import CLEARING
from headrace.sinks.target import FlowTarget, OpenedGeneration, TableLayout, TargetState, keeps_state
from headrace.sources.registry import join_marks, kind_for, kind_of
from headrace.sources.requests import Seed, Seeding
from headrace.state.checkpoint import (
    QUERY,
    SHUFFLE_PARTITIONS,
    CheckpointIdentity,
    QueryRecord,
    copy_checkpoints,
    discard_checkpoints,
    generations,
    load_identity,
    seed_files,
    tidy_renamed,
    write_checkpoint,
)
from headrace.state.facts import CheckpointFacts, Continue, Open, Opening, RenameFlow, SourceFacts
from headrace.state.lease import Heart
from headrace.state.ledger import Ledger
from headrace.state.opening import decide
from headrace.state.starting_positions import first_positions
from headrace.storage.location import Location


@dataclass(frozen=True, kw_only=True)
class FlowStart:
    opening: Opening  # whether the flow continues its checkpoint, opens a new one, or renames one
    sources: tuple[SourceFacts, ...]
    table: TargetState | None  # the newest state of the target; ``None`` if it does not exist yet
    checkpoint: CheckpointFacts | None = None


def prepare_flow(surveyor: FlowSurveyor, remedies: Remedies) -> FlowStart:
    _check_destination(surveyor)
    survey = surveyor.survey(remedies)
    if survey is None:
        sources = surveyor.look()
        opening = Open(reason="first", positions=first_positions(sources, stateful=surveyor.planned.stateful))
        start = FlowStart(opening=opening, sources=sources, table=None)
    else:
        check_tombstones(surveyor, survey)
        start = FlowStart(
            opening=decide(survey.flow, survey.facts, survey.checkpoint),
            sources=survey.flow.sources,
            table=survey.table,
            checkpoint=survey.checkpoint,
        )
    if isinstance(start.opening, Open):
        _check_starts(surveyor, start.opening, start.sources)
    return start


def prepare_full_refresh(surveyor: FlowSurveyor) -> FlowStart:
    """Let a flow start at the beginning of its sources, for a full refresh; writes nothing."""
    table = surveyor.target.state()
    assert table is not None, "the run has found it"
    sources = surveyor.look()
    opening = Open(
        reason="full-refresh",
        positions=first_positions(sources, stateful=surveyor.planned.stateful),
        fences=table.checkpoints.get(surveyor.planned.flow.name),
    )
    _check_starts(surveyor, opening, sources)
    return FlowStart(opening=opening, sources=sources, table=table)


def _check_destination(surveyor: FlowSurveyor) -> None:
    flow, sink = surveyor.planned.flow, surveyor.planned.sink
    if sink is None:
        return
    try:
        kind_for(sink.format).check_destination(sink, surveyor.settings, surveyor.systems)
    except UsageError as error:
        fact = f"flow {flow.name} sends rows to the sink {flow.target.short}"
        raise error.with_(location=flow.location, facts=(fact, *error.facts)) from error


def _check_starts(surveyor: FlowSurveyor, opening: Open, sources: tuple[SourceFacts, ...]) -> None:
    facts = {one.source.index: one for one in sources}
    for source in surveyor.planned.sources:
        is_new = opening.positions is None or source.index not in opening.positions
        source.check_start(facts[source.index], surveyor.systems, is_new=is_new)


@dataclass(frozen=True, kw_only=True)
class OpenedFlow:
    path: Location
    identity: CheckpointIdentity
    sources: tuple[SourceFacts, ...]
    checkpoint: CheckpointFacts | None  # what the checkpoint holds; ``None`` if it was opened just now
    untried: QueryRecord | None = None  # the changed query, while Spark may refuse the checkpoint's state

    def record_query(self) -> None:
        """Record the changed query as the last one that used the checkpoint."""
        if self.untried is not None:
            (self.path / QUERY).replace_json(self.untried.to_json())


@dataclass(frozen=True, kw_only=True)
class FlowOpener:
    """Opens the checkpoint of one flow. `check_lease`: raises an error if another process has its lease.
    `report`: takes each change of another writer that a fold of the ledger has found."""

    surveyor: FlowSurveyor
    spark: SparkSession
    target: FlowTarget
    check_lease: Callable[[], None]
    report: Callable[[Mapping[str, Any]], None]

    def open(self, remedies: Remedies) -> OpenedFlow:
        """Find or make the checkpoint that the flow continues with."""
        table, removed = self._tidy()
        if table.refreshing == CLEARING:
            # A run clears what is left before it opens flows.
            raise unfinished_refresh(self._planned)
        start = prepare_flow(self.surveyor, remedies)
        match start.opening:
            case Continue(identity=identity):
                return self._continue(start, identity)
            case Open():
                return self._open(start, start.opening, removed)
            case RenameFlow(old_flow=old):
                self._take_over(old)
                return self.open(replace(remedies, rename_flow={}))
            case _:
                assert_never(start.opening)

    def start_over(self, *, layout: TableLayout | None, last: bool) -> None:
        """Open a new checkpoint at the sources' beginning, for a full refresh. `layout`: removes the table's
        rows in the same commit, and is what the empty table gets; ``None`` if another flow has removed them.
        `last`: whether this is the last flow of the table. Its properties say what a full refresh still has
        to do."""
        start = prepare_full_refresh(self.surveyor)
        _, removed = self._tidy()
        assert isinstance(start.opening, Open)
        self._open(start, start.opening, removed, layout=layout, refreshing=CLEARING if last else "true")

    def fold(self, table_id: str, flow: str | None = None) -> None:
        """Copy the ranges of the table's newest commits to the ledger, before Delta deletes them. `flow`:
        whose ledger; by default this flow's."""
        for commit in self._ledger(flow).fold(self.surveyor.target, table_id, join_marks):
            self.report(commit)

    @property
    def _planned(self) -> PlannedFlow:
        return self.surveyor.planned

    @property
    def _settings(self) -> ProjectSettings:
        return self.surveyor.settings

    def _ledger(self, flow: str | None = None) -> Ledger:
        if flow is None:
            return self.surveyor.ledger
        target = self._planned.flow.target
        return Ledger(self._settings.storage.ledger(target, flow), target, flow)

    def _state(self) -> TargetState:
        state = self.surveyor.target.state()
        if state is None:
            # The run has created it before: its disk is away, or somebody has deleted it.
            raise table_lost(self._planned, f"{self.target.location} has no log")
        return state

    def _tidy(self) -> tuple[TargetState, int]:
        """Fold the ledger, complete or undo an opening that was interrupted by a crash, and remove commits of
        the flow that are not part of the table. Returns the state of the table, and the generation of the
        checkpoint that was removed, or 0."""
        table = self._state()
        # An earlier version has folded them; without their files that would not show any more.
        self.surveyor.target.remove_strays(self._planned.flow.name, lambda: self._rewind_ledger(table))
        self.fold(table.table_id)
        current = table.checkpoints.get(self._planned.flow.name)
        tidy_renamed(self.surveyor.checkpoints, self.surveyor.declared_flows, current)
        unfinished = find_unfinished(self.surveyor.checkpoints, table)
        if unfinished is not None:
            # A process that takes over makes a checkpoint with a higher number: this one is not its own.
            self.check_lease()
            unfinished.delete_folder()
        self._fence_rows(table, self._planned.flow.name)
        return table, 0 if unfinished is None else int(unfinished.name)

    def _fence_rows(self, table: TargetState, flow: str) -> None:
        """Remove quarantined rows and tombstones of batches that a replaced checkpoint has not committed."""
        if (fenced := table.fenced(flow)) is not None:
            for side in side_tables(self._planned.flow.target, self._settings.storage):
                side.fence(self.spark, *fenced)

    def _continue(self, start: FlowStart, identity: CheckpointIdentity) -> OpenedFlow:
        planned, known = self._planned, start.checkpoint
        path = self._settings.storage.checkpoint(planned.flow.target, planned.flow.name, identity.generation)
        opened = OpenedFlow(path=path, identity=identity, sources=start.sources, checkpoint=known)
        is_changed = known is not None and known.query != planned.fingerprint
        if is_changed and (planned.stateful or (path / "state").list_folders()):
            return replace(opened, untried=planned.record)
        (path / QUERY).replace_json(planned.record.to_json())
        return opened

    def _open(
        self,
        start: FlowStart,
        opening: Open,
        removed: int,
        *,
        layout: TableLayout | None = None,
        refreshing: str | None = None,
    ) -> OpenedFlow:
        """Write a new checkpoint, and let the target name it in one commit."""
        flow, storage, table = self._planned.flow, self._settings.storage, start.table
        sink = self._planned.sink
        assert table is not None, "a run opens the table first"
        held = None if opening.fences is None else table.transactions.get(opening.fences, -1)
        known = generations(self.surveyor.checkpoints)
        # A process that stalls can still be about to remove the one that was removed.
        generation = max(removed, int(known[-1].name) if known else 0) + 1
        identity = CheckpointIdentity(
            pipeline=self._settings.name,
            flow=flow.name,
            dataset=str(flow.target),
            generation=generation,
            table_id=table.table_id,
            sources=tuple(facts.source for facts in start.sources),
            sink=sink.format if sink is not None and keeps_state(sink) else None,
        )
        if opening.losses:
            lost = {"checkpoint": identity.checkpoint, "generation": generation}
            self._ledger().record_losses({**lost, **loss} for loss in opening.losses)
        self._rewind_ledger(table)
        path = storage.checkpoint(flow.target, flow.name, generation)
        seeds = self._seeds(opening, identity)
        write_checkpoint(path, identity, self._contents(opening, identity, seeds))
        self.target.open_generation(
            OpenedGeneration(
                pipeline=self._settings.name,
                flow=flow.name,
                checkpoint=identity.checkpoint,
                generation=generation,
                opening=opening,
                ranges=_seeded_ranges(opening, identity, seeds),
                clear=layout is not None,
                layout=layout,
                refreshing=refreshing,
                replaces=table.checkpoints.get(flow.name),
                fenced_at=held,
            )
        )
        reach("generation-opened", flow.name, 0)
        if opening.fences is not None:
            self._fence_rows(self._state(), flow.name)
        reach("rows-fenced", flow.name, 0)
        (path / QUERY).replace_json(self._planned.record.to_json())
        return OpenedFlow(path=path, identity=identity, sources=start.sources, checkpoint=None)

    def _seeds(self, opening: Open, identity: CheckpointIdentity) -> dict[int, Seed]:
        """What a checkpoint that begins at positions holds of each source; writes what the ledger keeps."""
        seeding = Seeding(identity.checkpoint, self._ledger().folder, self._setting)
        positions = opening.positions or {}
        seeds = {
            source.index: kind_of(source.kind).seed(
                source, positions[source.index], opening.lists.get(source.index), seeding
            )
            for source in identity.sources
            if source.index in positions
        }
        kept: dict[str, str] = {}
        for seed in seeds.values():
            for name, text in seed.ledger.items():
                kept[name] = kept.get(name, "") + text
        for name, text in kept.items():
            (seeding.ledger / name).replace(text)
        return seeds

    def _setting(self, name: str) -> str | None:
        chosen = {**self._settings.configuration, **self._planned.flow.spark_conf}
        return chosen.get(name) or self.spark.conf.get(name, None)

    def _contents(
        self, opening: Open, identity: CheckpointIdentity, seeds: Mapping[int, Seed]
    ) -> dict[str, str]:
        """The files of a checkpoint that begins at positions, by path within it."""
        contents: dict[str, str] = {}
        if opening.positions is not None:
            partitions = self._setting(SHUFFLE_PARTITIONS) or "200"
            contents = seed_files(opening.positions, identity.sources, partitions)
        for seed in seeds.values():
            contents |= seed.contents
        return contents

    def _rewind_ledger(self, table: TargetState) -> None:
        """Set aside what the ledger holds of versions that a rolled-back table no longer has."""
        if self._ledger().rewind(self.surveyor.target, table.table_id, table.version):
            self.fold(table.table_id)

    def _take_over(self, old: str) -> None:
        """Rename the checkpoint of a renamed flow: first in the table, then in its folder."""
        flow, storage = self._planned.flow, self._settings.storage
        table = self._state()
        old_folder = storage.flow_checkpoints(flow.target, old)
        known = generations(old_folder)
        identity = load_identity(known[-1]) if known else None
        if identity is None or table.checkpoints.get(flow.name, identity.checkpoint) != identity.checkpoint:
            orphans = sorted(set(table.checkpoints) - self.surveyor.declared_flows)
            remedies = tuple(
                f"rename the flow {one}:   headrace run --rename-flow {one}={flow.name}"
                for one in orphans
                if flow.name not in table.checkpoints
            )
            raise RenameImpossibleError(
                f"flow {old} cannot be renamed to {flow.name}: no flow {old} has written the table "
                f"{flow.target.short}",
                location=flow.location,
                facts=(f"flows that have written it: {', '.join(sorted(table.checkpoints)) or 'none'}",),
                remedies=remedies or ("list the flows and their tables:   headrace status",),
                params={"flow": flow.name, "old": old},
            )
        # The flow of the old name may still run, in a process that has not seen the new one.
        with Heart() as heart:
            heart.acquire(storage.lease(flow.target, old), old, flow.location)
            self._rename(old, old_folder, identity, table)

    def _rename(
        self, old: str, old_folder: Location, identity: CheckpointIdentity, table: TargetState
    ) -> None:
        flow = self._planned.flow
        self.fold(table.table_id, old)
        self._fence_rows(table, old)
        if flow.name not in table.checkpoints:
            self.target.open_generation(
                OpenedGeneration(
                    pipeline=self._settings.name,
                    flow=flow.name,
                    checkpoint=identity.checkpoint,
                    generation=identity.generation,
                    opening=Open(reason="renamed"),
                    renamed_from=old,
                )
            )
        reach("flow-renamed", flow.name, 0)
        # A batch that comes again replaces only rows of its flow's name.
        held = table.transactions.get(identity.checkpoint, -1)
        for side in side_tables(flow.target, self._settings.storage):
            side.rename(self.spark, identity.checkpoint, held, flow.name)
        for kind in {source.kind for source in identity.sources}:
            kind_of(kind).take_over(self._ledger(old).folder, self._ledger().folder)
        copy_checkpoints(old_folder, self.surveyor.checkpoints, replace(identity, flow=flow.name))
        reach("checkpoints-copied", flow.name, 0)
        discard_checkpoints(old_folder)


def _seeded_ranges(
    opening: Open, identity: CheckpointIdentity, seeds: Mapping[int, Seed]
) -> tuple[SourceRange, ...]:
    """The ranges in the commit that opens a seeded checkpoint: empty, at the positions where it starts."""
    positions = opening.positions or {}
    return tuple(
        SourceRange(
            index=source.index,
            kind=source.kind,
            identity=source.identity,
            start=positions[source.index],
            until=positions[source.index],
            marks=seeds[source.index].marks,
        )
        for source in identity.sources
        if source.index in positions
    )
