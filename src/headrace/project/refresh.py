"""Full refreshes empty streaming tables and read their sources again; resets keep the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace import errors
from headrace.errors import HeadraceError, ResumeImpossibleError
from headrace.model.declarations import AutoCdcFlow, MaterializedView, StreamingTable, snapshots_of
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.ranges import Position
from headrace.model.remedies import ChosenStart, Remedies
from headrace.model.texts import counted, html_table, size_text
from headrace.observe.versions import load_tail
from headrace.plan.changes import layout_schema
from headrace.plan.stages import OpenTableStage, Plan, PlannedFlow, target_of
from headrace.project.engine import Engine
from headrace.project.operations import held_flows, logged_operation, new_update
from headrace.project.plan_choices import check_remedies, find_datasets
from headrace.run.context import UpdateContext
from headrace.run.opening import prepare_flow
from headrace.run.readiness import inputs_of
from headrace.run.runners import make_opener
from headrace.run.survey import FlowSurveyor, Survey
from headrace.run.tables import finish_refresh, open_table, register_tables
from headrace.run.targets import side_tables, target_reader
from headrace.sinks.delta.reader import ReadTable
from headrace.sinks.delta.table import read_state
from headrace.sinks.target import TableLayout
from headrace.sources.kafka.facts import ranges_text
from headrace.sources.registry import kind_of
from headrace.sources.requests import Systems
from headrace.state.facts import Open
from headrace.state.snapshot_log import SnapshotLog
from headrace.storage.layout import Storage, locate
from headrace.storage.location import Location
from headrace.storage.table_log import is_table
from headrace.syntax.locations import argument_location


@dataclass(frozen=True, kw_only=True)
class FlowReset:
    flow: str
    dataset: TableName
    # Each source, with the position at which the new checkpoint continues; `None` reads it from its
    # beginning.
    sources: tuple[tuple[str, Position | None], ...]
    # The number of ranges that are recorded as lost: the sources no longer hold them, or the user passes over
    # them.
    losses: int = 0
    repeats: tuple[Mapping[str, Any], ...] = ()  # the offsets that are read again, because the user allows it

    def lines(self) -> Iterator[str]:
        yield f"{self.flow}  gets a new checkpoint; the rows of {self.dataset.short} are kept"
        for name, position in self.sources:
            if position is None:
                yield f"{self.flow}  reads {name} from the beginning"
            else:
                yield f"{self.flow}  continues {name} {position.describe()}"
        if self.losses:
            ranges = counted(self.losses, "range")
            yield f"{self.flow}  records {ranges} as lost, which it will not read"
        for line in ranges_text(self.repeats):
            yield f"{self.flow}  reads again {line}"

    def to_json(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "dataset": str(self.dataset),
            "sources": [
                {"source": name, "position": None if position is None else position.to_json()}
                for name, position in self.sources
            ],
            "losses": self.losses,
            "repeats": [dict(one) for one in self.repeats],
        }


@dataclass(frozen=True, kw_only=True)
class ResetPlan:
    resets: tuple[FlowReset, ...]
    plan: Plan = field(repr=False)

    def __repr__(self) -> str:
        return f"<ResetPlan of {', '.join(one.flow for one in self.resets)}>"

    def _repr_html_(self) -> str:
        return html_table(", ".join(one.flow for one in self.resets), (), (), self.lines())

    def lines(self) -> Iterator[str]:
        for one in self.resets:
            yield from one.lines()

    def to_json(self) -> dict[str, Any]:
        return {"flows": [one.to_json() for one in self.resets]}


class Resetter:
    def __init__(self, settings: ProjectSettings, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine

    def plan(self, flows: Sequence[str], start: ChosenStart | None = None) -> ResetPlan:
        """What a reset would do; changes nothing. `start`: where their checkpoints start; by default they
        continue."""
        settings, plan = self._engine.reach()
        remedies = Remedies(reset=frozenset(flows), start=start)
        check_remedies(remedies, plan)
        systems = self._engine.systems(settings)
        with closing(systems):
            resets = []
            for planned in _chosen(plan, remedies):
                surveyor = FlowSurveyor(
                    planned=planned,
                    settings=settings,
                    systems=systems,
                    target=target_reader(planned, settings.storage, self._engine.read_table),
                    declared_flows=plan.flows_of(planned.flow.target),
                )
                flow = planned.flow
                if surveyor.target.state() is None:
                    raise ResumeImpossibleError(
                        f"flow {flow.name} cannot be reset: its table {flow.target.short} does not exist",
                        location=flow.location,
                        facts=("nothing was changed",),
                        remedies=(f"read everything:   headrace full-refresh {flow.target.short}",),
                        params={"flow": flow.name},
                    )
                opening = prepare_flow(surveyor, remedies).opening
                assert isinstance(opening, Open)
                positions = opening.positions or {}
                root = settings.root
                resets.append(
                    FlowReset(
                        flow=flow.name,
                        dataset=flow.target,
                        sources=tuple((one.title(root), positions.get(one.index)) for one in planned.sources),
                        losses=len(opening.losses),
                        repeats=opening.repeats,
                    )
                )
        return ResetPlan(resets=tuple(resets), plan=plan)

    def reset(self, flows: Sequence[str], start: ChosenStart | None = None) -> ResetPlan:
        """Open new checkpoints. One commit of each table names the new one, and fences the old one. `start`:
        where their checkpoints start; by default they continue."""
        planned, update = self.plan(flows, start), new_update()
        plan, remedies = planned.plan, Remedies(reset=frozenset(flows), start=start)
        chosen = _chosen(plan, remedies)
        names = tuple(dict.fromkeys(one.dataset for one in planned.resets))
        with (
            closing(self._engine.context(plan.project, plan, update, remedies=remedies)) as context,
            logged_operation(self._settings, update, "RESET", names) as outcome,
            held_flows(chosen, context),
        ):
            for one in chosen:
                make_opener(one, plan, context).open(remedies)
            outcome.update(planned.to_json())
        return planned


def _chosen(plan: Plan, remedies: Remedies) -> list[PlannedFlow]:
    return [planned for planned in plan.flows if planned.flow.name in remedies.reset]


_ALLOWED = "pipelines.reset.allowed"  # the property with which a table forbids a full refresh, as in Lakeflow


@dataclass(frozen=True, kw_only=True)
class UnrecoverableData:
    """Rows of a table that a full refresh cannot read again."""

    dataset: TableName
    text: str  # what cannot be read again, as a sentence
    count: int | None  # the number of files, or the highest possible number of records; ``None`` if unknown
    flow: str | None = None  # the flow that is applied once, and whose source is gone
    restore: str | None = None  # how a user can make it readable again


@dataclass(frozen=True, kw_only=True)
class RefreshPlan:
    plan: Plan
    names: tuple[TableName, ...]  # the datasets that would be rebuilt, with the streams downstream
    downstream: tuple[TableName, ...]  # the datasets among them that a user has not named
    # The rows (`None` if they cannot be counted) and bytes that each table holds now.
    sizes: Mapping[TableName, tuple[int | None, int]]
    gone: tuple[UnrecoverableData, ...]

    def __repr__(self) -> str:
        return f"<RefreshPlan of {', '.join(name.short for name in self.names)}>"

    def _repr_html_(self) -> str:
        return html_table(", ".join(name.short for name in self.names), (), (), self.lines())

    def lines(self) -> Iterator[str]:
        if self.downstream:
            listed = ", ".join(name.short for name in self.downstream)
            yield f"{listed}  rebuilt too: a stream downstream would read the rows twice"
        for name in self.names:
            feeding = self.plan.feeding(name)
            if not feeding:
                yield f"{name.short}  is recomputed"
                continue
            root = self.plan.project.root
            streams = [source for planned in feeding if not planned.flow.once for source in planned.sources]
            once = [f"the batch query of {planned.flow.name}" for planned in feeding if planned.flow.once]
            titles = [one.table.short if one.table else one.title(root) for one in streams]
            read = ", ".join([*titles, *once])
            if (snapshots := snapshots_of(feeding[0].flow)) is not None:
                read = snapshots.name
            begins = f"{read} is read again from the beginning"
            if any(one.begins_with_snapshot for one in streams):
                begins += " (of a Delta table, the rows that it has now, and then its changes)"
            yield f"{name.short}  {self._removed(name)} {begins}"
            yield from (f"{name.short}  {one.text}" for one in self.gone if one.dataset == name)
        for view, changed in self.left_views.items():
            listed = ", ".join(table.short for table in changed)
            yield f"{view.short}  is recomputed from {listed} by the next run"

    @property
    def left_views(self) -> Mapping[TableName, Sequence[TableName]]:
        """The views that the next run recomputes, with those of their inputs that are read again now."""
        reads = {one.flow.target: inputs_of(one, self.plan) for one in self.plan.refreshes}
        return {
            view: changed
            for view, tables in reads.items()
            if view not in self.names and (changed := [one for one in tables if one in self.names])
        }

    def refuse_losses(self, accept_loss: Sequence[str]) -> None:
        """Refuse to remove rows that cannot be read again."""
        accepted = find_datasets(accept_loss, self.plan)
        lost = [one for one in self.gone if one.flow is not None or one.dataset not in accepted]
        if not lost:
            return
        names = list(dict.fromkeys(one.dataset.short for one in lost))
        # With the datasets that a user has named: a table cannot be rebuilt before a table that it reads.
        named = " ".join(name.short for name in self.names if name not in self.downstream)
        accepts = " ".join(f"--accept-loss {name}" for name in (*(one.short for one in accepted), *names))
        flow = next((one.flow for one in lost if one.flow is not None), None)
        again = f"headrace full-refresh {named}"
        remedies = [f"remove them all the same:   {again} {accepts}"]
        if flow is not None:
            remedies = [f"restore the source, or remove the declaration of {flow}"]
        elif restores := [one.restore for one in lost if one.restore is not None]:
            remedies = [f"{restores[0]}, then:   {again}", f"or {remedies[0]}"]
        raise errors.RefreshLosesDataError(
            f"a full refresh of {', '.join(names)} would remove rows that cannot be read again",
            facts=(*(f"{one.dataset.short}: {one.text}" for one in lost), "nothing was changed"),
            remedies=remedies,
            params={"datasets": [str(one.dataset) for one in lost]},
        )

    def _removed(self, name: TableName) -> str:
        if name not in self.sizes:
            known = self.plan.project.storage.checkpoints(name).exists()
            return "the table is missing, and" if known else "the table does not exist yet, and"
        rows, size = self.sizes[name]
        count = "all rows" if rows is None else "its 1 row" if rows == 1 else f"all {rows:,} rows"
        quarantine = (
            ", its quarantine is emptied" if is_table(self.plan.project.storage.quarantine(name)) else ""
        )
        return f"one commit removes {count} ({size_text(size)}){quarantine}, then"


def plan_refresh(
    datasets: Sequence[str] | None, plan: Plan, systems: Systems, read_table: ReadTable
) -> RefreshPlan:
    """Find out what a full refresh would do; changes nothing."""
    names = choose_datasets(datasets, plan)
    named = names if datasets is None else find_datasets(datasets, plan)
    storage = plan.project.storage
    tables = {stage.table.name for stage in plan.stages if isinstance(stage, OpenTableStage)}

    def tables_read(planned: PlannedFlow) -> list[TableName]:
        return [source.table for source in planned.sources if source.table in tables]

    gone: list[UnrecoverableData] = []
    for planned in plan.flows:
        flow = planned.flow
        if flow.target not in names:
            continue
        target = target_reader(planned, storage, read_table)
        state = target.state()
        if state is None or state.refreshing is not None:
            # An interrupted full refresh has removed the rows already.
            continue
        if planned.gone is not None:
            text = f"the source of flow {flow.name} can no longer be read: {planned.gone.summary}"
            gone.append(UnrecoverableData(dataset=flow.target, text=text, count=None, flow=flow.name))
            continue
        if snapshots_of(flow) is not None:
            gone += _lost_snapshots(planned, storage)
            continue
        try:
            surveyor = FlowSurveyor(planned=planned, settings=plan.project, systems=systems, target=target)
            # With this remedy, a checkpoint that cannot be read is skipped.
            survey = surveyor.survey(Remedies(reset=frozenset([flow.name])))
            assert survey is not None
            gone += _gone(flow.target, survey, storage.ledger(flow.target, flow.name))
        except errors.UpstreamMissingError as error:
            missing = [one for one in tables_read(planned) if not is_table(storage.table(one))]
            if not missing or any(one not in names for one in missing):
                raise _with_upstream(error, named, missing) from error
            read = ", ".join(one.short for one in missing)
            text = (
                f"some of its rows may not come back: {read} is missing, and may not get the same rows again"
            )
            gone.append(UnrecoverableData(dataset=flow.target, text=text, count=None))
        except HeadraceError as error:
            text = f"its sources could not be checked: {error.headline}"
            gone.append(UnrecoverableData(dataset=flow.target, text=text, count=None))
    for name in (name for name in names if is_table(storage.table(name))):
        declared = {planned.flow.name for planned in plan.flows if planned.flow.target == name}
        gone += [
            UnrecoverableData(
                dataset=name,
                text=f"the rows of flow {flow} cannot be read again: the flow is no longer declared",
                count=None,
            )
            for flow in sorted(set(read_table(storage.table(name)).checkpoints) - declared)
        ]
    sizes = {name: size for name in names if (size := _size(storage.table(name))) is not None}
    downstream = tuple(name for name in names if name not in named)
    return RefreshPlan(plan=plan, names=names, downstream=downstream, sizes=sizes, gone=tuple(gone))


def _with_upstream(
    error: errors.UpstreamMissingError, named: Sequence[TableName], missing: Sequence[TableName]
) -> errors.UpstreamMissingError:
    """The error for a table that cannot be rebuilt, because a table that it reads is missing."""
    if not missing:
        return error
    both = " ".join(name.short for name in dict.fromkeys((*missing, *named)))
    return error.with_(remedies=(f"rebuild what it reads, too:   headrace full-refresh {both}",))


def _size(table: Location) -> tuple[int | None, int] | None:
    """Rows and bytes of a table; ``None`` if it does not exist or cannot be read."""
    if not is_table(table):
        return None
    try:
        recent = load_tail(table)
    except (FileNotFoundError, ValueError):
        return None
    return recent.rows, recent.size_bytes


def _gone(dataset: TableName, survey: Survey, ledger: Location) -> Iterator[UnrecoverableData]:
    history = survey.facts.history
    names = [read.source.kind for reads in history.commits for read in reads]
    for name in dict.fromkeys(names):
        sources = [facts for facts in survey.flow.sources if facts.source.kind == name]
        for one in kind_of(name).unrecoverable(history, sources, ledger):
            yield UnrecoverableData(dataset=dataset, text=one.text, count=one.count, restore=one.restore)


def _lost_snapshots(planned: PlannedFlow, storage: Storage) -> Iterator[UnrecoverableData]:
    """The snapshots of a history that a full refresh would not find again."""
    flow = planned.flow
    if not isinstance(flow, AutoCdcFlow) or flow.history is None:
        # The next snapshot has all rows of the table.
        return
    markers = SnapshotLog(storage.snapshots(flow.target)).load()
    lost = [one for one in markers if "table" in one.location]
    lost = lost[:-1] + [
        one for one in markers if "path" in one.location and not locate(one.location["path"]).exists()
    ]
    if lost:
        count = counted(len(lost), "snapshot")
        text = f"the history of {count} cannot be read again: the source has newer data now"
        yield UnrecoverableData(dataset=flow.target, text=text, count=None)


def find_downstream(
    names: Sequence[TableName], reads: Sequence[tuple[TableName, TableName | None]]
) -> tuple[TableName, ...]:
    """The other datasets that read these, directly or through others. `reads`: pairs of a dataset and a table
    that it reads."""
    found: list[TableName] = []
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        for reader, read in reads:
            if read == name and reader not in (*names, *found):
                found.append(reader)
                waiting.append(reader)
    return tuple(found)


def choose_datasets(datasets: Sequence[str] | None, plan: Plan) -> tuple[TableName, ...]:
    """The datasets that a full refresh rebuilds: those that a user names, and the streams that read them.
    `datasets`: the names; ``None`` for all datasets that may be rebuilt."""
    kept = {
        one.name: one
        for one in plan.datasets
        if isinstance(one, StreamingTable)
        and any(
            key.lower() == _ALLOWED and value.strip().lower() == "false"
            for key, value in one.table_properties.items()
        )
    }
    if datasets is None:
        stored = (one.name for one in plan.datasets if isinstance(one, StreamingTable | MaterializedView))
        named = tuple(name for name in stored if name not in kept)
    else:
        named = find_datasets(datasets, plan)
    streams = [(one.flow.target, source.table) for one in plan.flows for source in one.sources]
    names = (*named, *find_downstream(named, streams))
    for name in names:
        if name in kept:
            read = [one.short for one in named if name in find_downstream((one,), streams)]
            what, of, added = "it", name.short, list[str]()
            if name not in named:
                what, of = f"its reader {name.short}", " and ".join(read)
                added = [f"{name.short} reads {of} as a stream, and would get the rows twice"]
            raise errors.FullRefreshNotAllowedError(
                f"{of} cannot be rebuilt: {what} has the table property {_ALLOWED} = false",
                location=argument_location(kept[name].location, "table_properties", _ALLOWED),
                facts=(*added, "nothing was changed"),
                remedies=(
                    f"if the rows of {name.short} may be removed, remove the property {_ALLOWED}, "
                    f"then {'rebuild both' if added else 'rebuild it'}:   "
                    f"headrace full-refresh {' '.join(one.short for one in named)}",
                ),
                params={"dataset": str(name)},
            )
    return names


def clear_datasets(names: Sequence[TableName], plan: Plan, context: UpdateContext) -> None:
    """Empty streaming tables, and open new checkpoints at the beginning of their sources. Each table is
    emptied by one commit, which also fences its old checkpoint. A materialized view is recomputed by the run
    that follows, and needs nothing here."""
    register_tables(plan, context.spark)
    tables = {stage.table.name: stage for stage in plan.stages if isinstance(stage, OpenTableStage)}
    # What reads a table is emptied before it: after a crash in between, streams start at what is left.
    depths = {target_of(stage): depth for depth, level in enumerate(plan.levels) for stage in level}
    cleared = sorted(set(names) & set(tables), key=depths.__getitem__, reverse=True)
    # The checkpoint of a stream cannot be opened while the table that it reads is missing.
    missing = [name for name in cleared if _is_missing(name, plan, context)]
    for name in missing:
        _create_again(tables[name], plan, context)
    for name in cleared:
        if name not in missing:
            _clear(tables[name], plan, context)


def _is_missing(name: TableName, plan: Plan, context: UpdateContext) -> bool:
    storage, read = context.settings.storage, partial(read_state, context.spark)
    return not any(target_reader(one, storage, read).state() for one in plan.feeding(name))


def _create_again(opening: OpenTableStage, plan: Plan, context: UpdateContext) -> None:
    """Create a missing table, and remove what is left of it: without it, a checkpoint is worth nothing."""
    storage, name = context.settings.storage, opening.table.name
    flows = plan.feeding(name)
    with held_flows(flows, context):
        quarantine, _ = side_tables(name, storage)
        quarantine.forget_missing(context.spark)
        quarantine.clear(context.spark)
        storage.checkpoints(name).delete_folder()
        storage.snapshots(name).delete_folder()
        open_table(opening, flows, storage, context.spark)


def _clear(opening: OpenTableStage, plan: Plan, context: UpdateContext) -> None:
    storage, name = context.settings.storage, opening.table.name
    flows = plan.feeding(name)
    with held_flows(flows, context):
        for side in side_tables(name, storage):
            side.forget_missing(context.spark)
        open_table(opening, flows, storage, context.spark, emptied=True)
        layout = TableLayout(
            schema=layout_schema(opening.table, opening.schema), partition_cols=opening.table.partition_cols
        )
        for number, planned in enumerate(flows):
            opener = make_opener(planned, plan, context)
            opener.start_over(layout=layout if number == 0 else None, last=number == len(flows) - 1)
        # If the process ends before that, the next run does it.
        finish_refresh(opening, flows, storage, context.spark)
