"""The rejected rows of a pipeline: list, show, export, discard and replay them."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ArgumentInvalidError, ReplayImpossibleError
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.texts import counted
from headrace.observe.quarantine import (
    EVERY_ROW,
    QuarantineSummary,
    RejectedRows,
    RowFilter,
    RowState,
    find_quarantine,
    find_quarantines,
)
from headrace.observe.read import Rows, find_table
from headrace.plan.stages import OpenTableStage, Plan, PlannedFlow
from headrace.project.operations import held_flows, logged_operation, new_update
from headrace.run.context import UpdateContext
from headrace.run.replay import FlowReplay, FlowReplayer, refuse_stateful
from headrace.run.tables import open_table, register_tables
from headrace.sinks.delta.commit import discard_rows
from headrace.storage.location import open_delta

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.project.engine import Engine

_FORMS = (".jsonl", ".parquet")
_WAITS: Mapping[RowState, str] = {
    "pending": "pending: the next run repeats their batch first",
    "replaying": "of an interrupted replay: replay finishes it first",
}


@dataclass(frozen=True, kw_only=True)
class Exported:
    path: Path
    rows: int
    skipped: int = 0  # with `records`: rows that have no line, since their value is empty or not valid UTF-8


@dataclass(frozen=True, kw_only=True)
class RowChoice:
    dataset: TableName
    flows: Mapping[str, int] = field(default_factory=dict)
    # The rows that match too, and are in another state; they stay as they are.
    left: Mapping[RowState, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(self.flows.values())

    def lines(self) -> Iterator[str]:
        """What is chosen, and what is not: one line for each fact."""
        for flow, rows in self.flows.items():
            yield f"{self.dataset.short}  {counted(rows, 'row')} of flow {flow}"
        for state, text in _WAITS.items():
            if held := self.left.get(state):
                yield f"{self.dataset.short}  {counted(held, 'row')} {text}"

    def to_json(self) -> dict[str, Any]:
        return {"rows": self.rows, "flows": dict(self.flows), "left": dict(self.left)}


@dataclass(frozen=True)
class Quarantine:
    settings: ProjectSettings
    engine: Engine = field(repr=False)

    def list(self, datasets: Sequence[str] = ()) -> tuple[QuarantineSummary, ...]:
        """Count the rejected rows of each dataset that has some; starts no JVM."""
        if not datasets:
            return tuple(one.summary() for one in find_quarantines(self.settings.storage))
        found = [(self._name(text), self._find(text)) for text in datasets]
        return tuple(QuarantineSummary(dataset=name) if one is None else one.summary() for name, one in found)

    def show(self, dataset: str, chosen: RowFilter = EVERY_ROW, *, limit: int | None = None) -> Rows | None:
        """Read rejected rows of a dataset, the oldest first; starts no JVM. `limit`: the maximum number of
        rows; all by default. Return the rows with the columns of the quarantine table; ``None`` if no row was
        ever rejected."""
        found = self._find(dataset)
        return None if found is None else found.read(chosen, limit)

    def binary_columns(self, dataset: str, rows: Rows) -> frozenset[str]:
        """The binary columns of a dataset, and of the tables whose rows its flows have rejected."""
        from deltalake.exceptions import DeltaError

        storage = self.settings.storage
        sources = (one or {} for one in rows.arrow.column("source").to_pylist())
        paths = {path for one in sources if (path := one.get("path")) is not None}
        tables = {
            name
            for name in (storage.find_tables() if paths else ())
            if any(f"/{name.schema}/{name.name}/" in path for path in paths)
        }
        found = set[str]()
        for name in {self._name(dataset), *tables}:
            # A table that cannot be read: its bytes stay as they are.
            with contextlib.suppress(DeltaError, OSError, ValueError):
                fields = open_delta(storage.table(name)).schema().fields
                found.update(one.name for one in fields if str(getattr(one.type, "type", "")) == "binary")
        return frozenset(found)

    def export(
        self, dataset: str, file: str | Path, chosen: RowFilter = EVERY_ROW, *, records: bool = False
    ) -> Exported:
        """Write rejected rows to a file; starts no JVM. `file`: the file, whose name ends in ``.jsonl`` or
        ``.parquet``; it is replaced. `records`: whether each line is an original record, or the row where the
        record was not kept, and nothing else. `headrace produce` sends such a file."""
        path = Path(file).expanduser()
        if path.suffix not in (_FORMS[:1] if records else _FORMS):
            forms = _FORMS[0] if records else " or ".join(_FORMS)
            raise ArgumentInvalidError(
                f"the name of the file must end in {forms}: {path.name}",
                remedies=[f"write to {path.with_suffix(_FORMS[0]).name}"],
                params={"argument": "file", "value": str(path)},
            )
        rows = self.show(dataset, chosen)
        count = 0 if rows is None else rows.arrow.num_rows
        if path.suffix == ".parquet":
            if rows is None:
                return Exported(path=path, rows=0)
            import pyarrow.parquet

            pyarrow.parquet.write_table(rows.arrow, path)
            return Exported(path=path, rows=count)
        lines: list[str] = []
        if rows is not None and records:
            lines = list(_records(rows.arrow))
        elif rows is not None:
            lines = [json.dumps(row, ensure_ascii=False, default=str) for row in rows.to_json()["rows"]]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return Exported(path=path, rows=len(lines), skipped=count - len(lines))

    def plan_discard(self, dataset: str, chosen: RowFilter = EVERY_ROW) -> RowChoice:
        """Find out which rows `discard` would mark; starts no JVM and changes nothing."""
        found = self._find(dataset)
        return choice_of(self._name(dataset), None if found is None else found.choose(chosen))

    def discard(self, dataset: str, chosen: RowFilter = EVERY_ROW) -> RowChoice:
        """Mark quarantined rows as discarded: they are no longer replayed; starts no JVM. The rows stay in
        the quarantine table, and `verify` counts them. Return what was discarded."""
        found, name = self._find(dataset), self._name(dataset)
        if found is None:
            return RowChoice(dataset=name)
        with logged_operation(self.settings, new_update(), "QUARANTINE_DISCARD", [name]) as outcome:
            choice = choice_of(name, found.choose(chosen))
            discard_rows(found.path, found.choose(replace(chosen, states=("quarantined",))).select(["id"]))
            outcome["discarded"] = choice.rows
        return choice

    def replay(self, dataset: str, chosen: RowFilter = EVERY_ROW) -> ReplayResult:
        """Take quarantined rows through today's code, and move those that pass into the table; starts Spark.

        A row with its original record goes through the flow's query. Another one is checked as it is. Rows
        that are rejected again stay in the quarantine, with their new reasons. A replay that was interrupted
        is finished first.

        Return how many rows each flow has replayed and rejected again.
        """
        found, name = self._find(dataset), self._name(dataset)
        if found is None:
            return ReplayResult(dataset=name)
        settings, plan = self.engine.reach()
        update = new_update()
        with (
            contextlib.closing(self.engine.context(settings, plan, update)) as context,
            logged_operation(settings, update, "QUARANTINE_REPLAY", [name]) as outcome,
        ):
            result = self._replay(found, chosen, plan, context)
            outcome |= result.to_json()
            return result

    def _replay(
        self, found: RejectedRows, chosen: RowFilter, plan: Plan, context: UpdateContext
    ) -> ReplayResult:
        for planned in _flows_of(found.dataset, plan, _quarantined(found.choose(chosen))):
            refuse_stateful(planned)
        opens = (one for one in plan.stages if isinstance(one, OpenTableStage))
        stage = next(one for one in opens if one.table.name == found.dataset)
        feeding = plan.feeding(found.dataset)
        build = self.engine.queries(context.settings, plan).build_records
        with held_flows(feeding, context) as leases:
            register_tables(plan, context.spark)
            open_table(stage, feeding, context.settings.storage, context.spark)
            replayers = [
                FlowReplayer(planned=one, context=context, build=build, lease=leases[one.flow.name])
                for one in feeding
            ]
            for one in replayers:
                one.settle_interrupted(context.spark)
            # Under the leases, and after interrupted replays: no other process changes the rows any more.
            now = RejectedRows(found.dataset, found.path, found.target).choose(chosen)
            ids = _quarantined(now)
            done = [one.run(ids[name]) for one in replayers if (name := one.planned.flow.name) in ids]
        pending = sum(row == "pending" for row in now.column("state").to_pylist())
        return ReplayResult(dataset=found.dataset, flows=tuple(done), pending=pending)

    def _name(self, dataset: str) -> TableName:
        return self.settings.table_name(dataset)

    def _find(self, dataset: str) -> RejectedRows | None:
        found = find_quarantine(self._name(dataset), self.settings.storage)
        if found is None:
            find_table(dataset, self.settings.storage, self.settings.database)
        return found


def choice_of(dataset: TableName, rows: pa.Table | None) -> RowChoice:
    flows: Counter[str] = Counter()
    left: Counter[RowState] = Counter()
    for row in () if rows is None else rows.select(["flow", "state"]).to_pylist():
        if row["state"] == "quarantined":
            flows[row["flow"]] += 1
        else:
            left[row["state"]] += 1
    return RowChoice(dataset=dataset, flows=dict(sorted(flows.items())), left=dict(left))


def record_text(row: Mapping[str, Any]) -> str | None:
    """The original record of a rejected row as text, or the row as JSON; ``None`` for a null value."""
    source = row["source"]
    if source is not None and source["value"] is not None:
        value: bytes = source["value"]
        return value.decode("utf-8", errors="backslashreplace")
    text: str | None = row["row"]
    return text


def _records(rows: pa.Table) -> Iterator[str]:
    for row in rows.select(["source", "row"]).to_pylist():
        text, value = record_text(row), None if row["source"] is None else row["source"]["value"]
        # A text with replaced bytes is not the record.
        if text is not None and text.strip() and value in (None, text.encode()):
            # A JSON text has no line break within a string, so that a space means the same.
            yield " ".join(text.splitlines()) if "\n" in text or "\r" in text else text


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    dataset: TableName
    flows: tuple[FlowReplay, ...] = ()
    pending: int = 0  # rows that match too, and whose batch the dataset does not hold yet

    @property
    def replayed(self) -> int:
        """Rows that left the quarantine."""
        return sum(one.replayed for one in self.flows)

    @property
    def rejected(self) -> int:
        """Rows that were rejected again."""
        return sum(one.rejected for one in self.flows)

    @property
    def left(self) -> int:
        """Rows that were not tried."""
        return sum(one.left for one in self.flows)

    def to_json(self) -> dict[str, Any]:
        names = ("replayed", "rejected", "left", "accepted", "dropped", "replay", "version")
        flows = [{"flow": one.flow} | {name: getattr(one, name) for name in names} for one in self.flows]
        counts = {"replayed": self.replayed, "rejected": self.rejected, "left": self.left}
        return {**counts, "pending": self.pending, "flows": flows}

    def lines(self) -> Iterator[str]:
        """What became of the rows: one line for each fact."""
        name = self.dataset.short
        if not self.flows:
            yield f"{name}  no quarantined row matches"
        for one in self.flows:
            dropped = f", {one.dropped:,} dropped" if one.dropped else ""
            done = f"{one.replayed:,} replayed ({one.accepted:,} in the table{dropped})"
            yield f"{name}  flow {one.flow}: {done}, {one.rejected:,} rejected again"
            if one.left:
                yield f"{name}  flow {one.flow}: {one.left:,} not tried"
        if self.pending:
            yield f"{name}  {self.pending:,} pending: the next run repeats their batch first"


def _flows_of(dataset: TableName, plan: Plan, ids: dict[str, Any]) -> list[PlannedFlow]:
    if any(one.flow.target == dataset for one in plan.refreshes):
        raise ReplayImpossibleError(
            f"rejected rows of {dataset.short} cannot be replayed: it is a materialized view",
            location=next(one.flow.location for one in plan.refreshes if one.flow.target == dataset),
            facts=("each refresh computes the view and its quarantine anew", "nothing was changed"),
            remedies=("correct its expectation, its query or the rows that it reads, then:   headrace run",),
            params={"dataset": str(dataset)},
        )
    declared = {one.flow.name: one for one in plan.feeding(dataset)}
    gone = sorted(ids.keys() - declared)
    if gone:
        replay, discard = (
            f"headrace quarantine {verb} {dataset.short} --flow" for verb in ("replay", "discard")
        )
        raise ReplayImpossibleError(
            f"no file declares the flow {gone[0]} of {dataset.short}, which has rejected the rows",
            facts=("nothing was changed",),
            remedies=(
                *(
                    f"replay the rows of flow {name}:   {replay} {name}"
                    for name in sorted(ids.keys() & declared)
                ),
                f"discard the rows of flow {gone[0]}:   {discard} {gone[0]}",
            ),
            params={"dataset": str(dataset), "flows": gone},
        )
    return [declared[name] for name in sorted(ids)]


def _quarantined(rows: pa.Table) -> dict[str, pa.Array]:
    import pyarrow.compute as pc

    rows = rows.filter(pc.field("state") == "quarantined")
    flows = rows.column("flow")
    return {
        name: rows.filter(pc.equal(flows, name)).column("id").combine_chunks()
        for name in sorted(set(flows.to_pylist()))
    }
