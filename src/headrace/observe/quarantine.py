"""The rejected rows of a dataset, read without Spark: how many there are, why, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from headrace.model.names import TableName
from headrace.model.ranges import PartType
from headrace.observe.event_table import sql_text
from headrace.observe.read import Rows, execute_query, explain_failure, table_schema, type_of
from headrace.sources.registry import COORDINATES
from headrace.storage.layout import Storage
from headrace.storage.location import Location, open_delta
from headrace.storage.table_log import is_table, newest_commits, replay_transaction

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

RowState = Literal["pending", "quarantined", "replaying", "replayed", "discarded"]
"""The state of a rejected row. It is ``pending`` until the dataset holds its batch; only this module
derives that, a quarantine table says ``quarantined``."""

STATES: tuple[RowState, ...] = get_args(RowState)
_TYPES = {name: type for one in COORDINATES for name, type in one.types.items()}
_PARTS = sorted(_TYPES, key=lambda name: get_args(PartType).index(_TYPES[name]))
"""The parts of all coordinates: names, then the partition, and the number of a record last."""
_DONE = ("replayed", "discarded")
_REASONS = 10  # the number of reasons in a summary


@dataclass(frozen=True, kw_only=True)
class RowFilter:
    """Chooses rows of a quarantine table; a row must match all that is given."""

    where: str | None = None  # A condition in SQL, over the columns of the quarantine table
    reason: str | None = None
    flow: str | None = None
    states: tuple[RowState, ...] = ()
    ids: tuple[str, ...] = ()

    def conditions(self) -> Iterator[str]:
        if self.where is not None:
            yield f"({self.where})"
        if self.reason is not None:
            reason = sql_text(self.reason)
            yield (
                "id IN (SELECT id FROM (SELECT id, unnest(reasons) AS reason FROM t) "
                f"WHERE reason['name'] = {reason} OR reason['kind'] = {reason})"
            )
        if self.flow is not None:
            yield f"flow = {sql_text(self.flow)}"
        for column, values in (("state", self.states), ("id", self.ids)):
            if values:
                yield f"{column} IN ({', '.join(map(sql_text, values))})"


EVERY_ROW = RowFilter()


@dataclass(frozen=True, kw_only=True)
class QuarantineSummary:
    dataset: TableName
    states: Mapping[RowState, int] = field(default_factory=dict)
    flows: Mapping[str, int] = field(default_factory=dict)
    # The same rows by reason, the most frequent first; a row can have several.
    reasons: Mapping[str, int] = field(default_factory=dict)
    oldest: datetime | None = None
    newest: datetime | None = None

    def __repr__(self) -> str:
        rows = ", ".join(f"{rows:,} {state}" for state, rows in self.states.items()) or "no rows"
        return f"<QuarantineSummary {self.dataset}: {rows}>"

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": str(self.dataset),
            "rows": {state: self.states.get(state, 0) for state in STATES},
            "flows": dict(self.flows),
            "reasons": [{"reason": reason, "rows": rows} for reason, rows in self.reasons.items()],
            "oldest": None if self.oldest is None else self.oldest.isoformat(),
            "newest": None if self.newest is None else self.newest.isoformat(),
        }


@dataclass(frozen=True)
class RejectedRows:
    dataset: TableName
    path: Location  # the folder of the quarantine table, which exists
    target: Location

    @cached_property
    def table(self) -> DeltaTable:
        """The newest version. It is read before the dataset: a batch is committed here first."""
        return table_schema(self.path)[0]

    def summary(self) -> QuarantineSummary:
        open_rows = f"SELECT * FROM {self._rows} WHERE state NOT IN {_DONE}"
        counts = self._query(f"SELECT state, count(*) AS rows FROM {self._rows} GROUP BY state")
        flows = self._query(
            "SELECT flow, count(*) AS rows, min(quarantined_at) AS oldest, max(quarantined_at) AS newest "
            f"FROM ({open_rows}) GROUP BY flow ORDER BY flow"
        ).to_pylist()
        # A reason counts once for a row. Messages differ from row to row, and are not part of it.
        reasons = self._query(
            "SELECT reason, count(DISTINCT id) AS rows FROM (SELECT id, "
            "CASE WHEN one['kind'] = 'expectation' THEN one['name'] "
            "ELSE concat_ws(': ', one['kind'], one['name']) END AS reason "
            f"FROM (SELECT id, unnest(reasons) AS one FROM ({open_rows}))) "
            f"GROUP BY reason ORDER BY rows DESC, reason LIMIT {_REASONS}"
        )
        found = {one["state"]: one["rows"] for one in counts.to_pylist()}
        return QuarantineSummary(
            dataset=self.dataset,
            states={state: found[state] for state in STATES if state in found},
            flows={one["flow"]: one["rows"] for one in flows},
            reasons={one["reason"]: one["rows"] for one in reasons.to_pylist()},
            oldest=min((one["oldest"] for one in flows), default=None),
            newest=max((one["newest"] for one in flows), default=None),
        )

    def read(self, chosen: RowFilter = EVERY_ROW, limit: int | None = None) -> Rows:
        table, schema = table_schema(self.path)
        columns = tuple(one["name"] for one in schema["fields"])
        held = next(one["type"]["fields"] for one in schema["fields"] if one["name"] == "source")
        names = [name for name in _PARTS if any(one["name"] == name for one in held)]
        order = ", ".join(["quarantined_at", *(f"source['{name}']" for name in names), "id"])
        rows = self._chosen(", ".join(f'"{name}"' for name in columns), chosen, order, limit)
        types = tuple(type_of(schema, name, self.path.name) for name in columns)
        return Rows.up_to(
            limit, rows, table=self.path.name, path=self.path, version=table.version(), types=types
        )

    def choose(self, chosen: RowFilter) -> pa.Table:
        """The id, flow and state of rows, and whether their batch or refresh was of a view."""
        return self._chosen("id, flow, state, checkpoint IS NULL AS of_view", chosen, "id", None)

    def _chosen(self, columns: str, chosen: RowFilter, order: str, limit: int | None) -> pa.Table:
        query = f"SELECT {columns} FROM {self._rows}"
        if conditions := " AND ".join(chosen.conditions()):
            query += f" WHERE {conditions}"
        query += f" ORDER BY {order}"
        return self._query(query if limit is None else f"{query} LIMIT {limit + 1}", chosen.where)

    def _query(self, query: str, where: str | None = None) -> pa.Table:
        try:
            return execute_query(self.table, query)
        except Exception as error:  # DataFusion's own errors come through arro3 without a class.
            raise explain_failure(error, self.table, self.path.name, where) from error

    @cached_property
    def _rows(self) -> str:
        """The rows with the states of this module, as a subquery."""
        columns = [one.name for one in self.table.schema().fields]
        chosen = ", ".join(
            f"{self._state()} AS state" if name == "state" else f'"{name}"' for name in columns
        )
        return f"(SELECT {chosen} FROM t) AS q"

    def _state(self) -> str:
        """The state of a row in SQL, derived from what the dataset holds."""
        batches = self._query(
            "SELECT checkpoint, max(batch) AS batch FROM t WHERE checkpoint IS NOT NULL GROUP BY checkpoint"
        )
        replays = self._query("SELECT DISTINCT replay FROM t WHERE state = 'replaying'").to_pylist()
        held = _Held(self.target)
        pending = [
            f"(checkpoint = {sql_text(one['checkpoint'])} AND batch > {batch})"
            for one in batches.to_pylist()
            if one["batch"] > (batch := held.batch(one["checkpoint"]))
        ]
        of_view = self._query("SELECT 1 FROM t WHERE checkpoint IS NULL LIMIT 1").num_rows > 0
        if of_view and (refresh := held.refresh()) is not None:
            pending.append(f"(checkpoint IS NULL AND update <> {sql_text(refresh)})")
        finished = [sql_text(one["replay"]) for one in replays if held.replay(one["replay"])]
        cases = [f"WHEN {' OR '.join(pending)} THEN 'pending'"] if pending else []
        if finished:
            cases.append(f"WHEN state = 'replaying' AND replay IN ({', '.join(finished)}) THEN 'replayed'")
        return f"CASE {' '.join(cases)} ELSE state END" if cases else '"state"'


class _Held:
    """The last batches, replays and refresh of a dataset."""

    def __init__(self, target: Location) -> None:
        self._target = target
        self._table = open_delta(target) if is_table(target) else None

    def batch(self, checkpoint: str) -> int:
        """The last batch of a checkpoint; -1 if there is none."""
        held = None if self._table is None else self._table.transaction_version(checkpoint)
        return -1 if held is None else int(held)

    def replay(self, replay: str) -> bool:
        """Whether the last replay of its transaction id is this one."""
        checkpoint, number = replay_transaction(replay)
        return self.batch(checkpoint) == number

    def refresh(self) -> str | None:
        """The update of a materialized view's last refresh; ``None`` if the log has none."""
        for commit in newest_commits(self._target):
            if commit.metadata is not None and "view" in commit.metadata:
                return str(commit.metadata["update"])
        return None


def find_quarantines(storage: Storage) -> Iterator[RejectedRows]:
    for schema in storage.quarantines.list_folders():
        for name in (storage.quarantines / schema).list_folders():
            if (found := find_quarantine(TableName(schema, name), storage)) is not None:
                yield found


def find_quarantine(dataset: TableName, storage: Storage) -> RejectedRows | None:
    """The rejected rows of a dataset; ``None`` if no row was ever rejected."""
    path = storage.quarantine(dataset)
    return RejectedRows(dataset, path, storage.table(dataset)) if is_table(path) else None
