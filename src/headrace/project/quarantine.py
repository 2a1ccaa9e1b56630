"""The rejected rows of a pipeline: list, show, export, discard and replay them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ArgumentInvalidError
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
from headrace.project.operations import logged_operation, new_update
from headrace.sinks.delta.commit import discard_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.model.events import Event
    from headrace.project.engine import Engine
    from headrace.project.replaying import ReplayResult

_FORMS = (".jsonl", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file with rejected rows.

    Args:
        skipped: With ``records``: rows that have no line, since their value is empty or not valid UTF-8.
    """

    path: Path
    rows: int
    skipped: int = 0


@dataclass(frozen=True, kw_only=True)
class RowChoice:
    """Rows that a command would take out of the quarantine.

    Args:
        left: The rows that match too, and are in another state; they stay as they are.
    """

    dataset: TableName
    flows: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[RowState, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of quarantined rows."""
        return sum(self.flows.values())

    def lines(self) -> Iterator[str]:
        """What is chosen, and what is not: one line for each fact."""
        for flow, rows in self.flows.items():
            yield f"{self.dataset.short}  {counted(rows, 'row')} of flow {flow}"
        if pending := self.left.get("pending"):
            yield (
                f"{self.dataset.short}  {counted(pending, 'row')} "
                "pending: the next run repeats their batch first"
            )
        if held := self.left.get("replaying"):
            yield (
                f"{self.dataset.short}  {counted(held, 'row')} "
                "of an interrupted replay: replay finishes it first"
            )

    def to_json(self) -> dict[str, Any]:
        return {"rows": self.rows, "flows": dict(self.flows), "left": dict(self.left)}


@dataclass(frozen=True)
class Quarantine:
    """The rejected rows of a pipeline.

    Example:
        >>> pipeline.quarantine.list()[0].states       # doctest: +SKIP
        {'quarantined': 12}
        >>> pipeline.quarantine.show("orders").rows    # doctest: +SKIP
    """

    settings: ProjectSettings
    engine: Engine = field(repr=False)

    def list(self, datasets: Sequence[str] = ()) -> tuple[QuarantineSummary, ...]:
        """Count the rejected rows of each dataset that has some; starts no JVM.

        Raises:
            TableUnknownError: The storage holds no such dataset.
        """
        if not datasets:
            return tuple(one.summary() for one in find_quarantines(self.settings.storage))
        found = [(self._name(text), self._find(text)) for text in datasets]
        return tuple(QuarantineSummary(dataset=name) if one is None else one.summary() for name, one in found)

    def show(self, dataset: str, chosen: RowFilter = EVERY_ROW, *, limit: int | None = None) -> Rows | None:
        """Read rejected rows of a dataset, the oldest first; starts no JVM.

        Args:
            limit: The maximum number of rows; all by default.

        Returns:
            The rows with the columns of the quarantine table; ``None`` if no row was ever rejected.

        Raises:
            UsageError: There is no such dataset, or the condition cannot be evaluated.
        """
        found = self._find(dataset)
        return None if found is None else found.read(chosen, limit)

    def export(
        self,
        dataset: str,
        file: str | Path,
        chosen: RowFilter = EVERY_ROW,
        *,
        records: bool = False,
    ) -> Exported:
        """Write rejected rows to a file; starts no JVM.

        Args:
            file: The file, whose name ends in ``.jsonl`` or ``.parquet``; it is replaced.
            records: Whether each line is an original record, or the row where the record was not kept, and
                nothing else. `headrace produce` sends such a file.

        Raises:
            UsageError: There is no such dataset, or an argument has an invalid value.
        """
        path = Path(file).expanduser()
        if path.suffix not in (_FORMS[:1] if records else _FORMS):
            forms = _FORMS[0] if records else " or ".join(_FORMS)
            raise ArgumentInvalidError(
                f"the name of the file must end in {forms}: {path.name}",
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
        lines = [] if rows is None else list(_records(rows.arrow) if records else _lines(rows))
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return Exported(path=path, rows=len(lines), skipped=count - len(lines))

    def plan_discard(self, dataset: str, chosen: RowFilter = EVERY_ROW) -> RowChoice:
        """Find out which rows `discard` would mark; starts no JVM and changes nothing.

        Raises:
            UsageError: There is no such dataset, or the condition cannot be evaluated.
        """
        found = self._find(dataset)
        return choice_of(self._name(dataset), None if found is None else found.choose(chosen))

    def discard(self, dataset: str, chosen: RowFilter = EVERY_ROW) -> RowChoice:
        """Mark quarantined rows as discarded: they are no longer replayed; starts no JVM.

        The rows stay in the quarantine table, and `verify` counts them.

        Returns:
            What was discarded.

        Raises:
            UsageError: There is no such dataset, or the condition cannot be evaluated.
            QuarantineChangedError: Another process has changed the same rows.
        """
        found, name = self._find(dataset), self._name(dataset)
        if found is None:
            return RowChoice(dataset=name)
        with logged_operation(self.settings, new_update(), "QUARANTINE_DISCARD", [name]) as outcome:
            choice = choice_of(name, found.choose(chosen))
            discard_rows(found.path, found.choose(chosen.with_states("quarantined")).select(["id"]))
            outcome["discarded"] = choice.rows
        return choice

    def replay(self, dataset: str, chosen: RowFilter = EVERY_ROW) -> ReplayResult:
        """Take quarantined rows through today's code, and move those that pass into the table; starts Spark.

        A row with its original record goes through the flow's query. Another one is checked as it is. Rows
        that are rejected again stay in the quarantine, with their new reasons. A replay that was interrupted
        is finished first.

        Returns:
            How many rows each flow has replayed and rejected again.

        Raises:
            UsageError: There is no such dataset, or the condition cannot be evaluated.
            ReplayImpossibleError: The flow keeps state, the dataset is a view, or no file declares the flow.
            SecondDriverError: A flow of the dataset runs.

        Example:
            >>> pipeline.quarantine.replay("orders").replayed  # doctest: +SKIP
        """
        from headrace.model.remedies import Remedies
        from headrace.project.replaying import ReplayResult, replay_dataset

        found, name = self._find(dataset), self._name(dataset)
        if found is None:
            return ReplayResult(dataset=name)
        settings, plan = self.engine.reach()
        update = new_update()
        context = self.engine.context(settings, plan, update, _ignore, None, Remedies(), continuous=False)
        try:
            with logged_operation(settings, update, "QUARANTINE_REPLAY", [name]) as outcome:
                build = self.engine.queries(settings, plan).build_records
                result = replay_dataset(found, chosen, plan, context, build)
                outcome |= result.to_json()
                return result
        finally:
            context.close()

    def _name(self, dataset: str) -> TableName:
        return self.settings.table_name(dataset)

    def _find(self, dataset: str) -> RejectedRows | None:
        """The rejected rows of a dataset; ``None`` if no row was ever rejected."""
        found = find_quarantine(self._name(dataset), self.settings.storage)
        if found is None:
            find_table(dataset, self.settings.storage, self.settings.database)
        return found


def choice_of(dataset: TableName, rows: pa.Table | None) -> RowChoice:
    """The choice of rows, by flow and state."""
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


def _lines(rows: Rows) -> Iterator[str]:
    for row in rows.to_json()["rows"]:
        yield json.dumps(row, ensure_ascii=False, default=str)


def _records(rows: pa.Table) -> Iterator[str]:
    """The records, one on each line."""
    for row in rows.select(["source", "row"]).to_pylist():
        text = record_text(row)
        if text is not None and text.strip() and not _is_changed(row, text):
            # A JSON text has no line break within a string, so that a space means the same.
            yield " ".join(text.splitlines()) if "\n" in text or "\r" in text else text


def _is_changed(row: Mapping[str, Any], text: str) -> bool:
    """Whether the text of a record does not have its bytes."""
    value = None if row["source"] is None else row["source"]["value"]
    return value is not None and text.encode() != value


def _ignore(event: Event) -> None:
    """A replay has no events of flows."""
