"""The declarations of a pipeline's files, as frozen records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self, assert_never

from headrace.errors import SourceLocation
from headrace.model.names import ChosenColumns, TableName
from headrace.model.notes import Note
from headrace.model.queries import Query
from headrace.model.snapshots import Snapshots
from headrace.model.texts import parse_seconds

INTERVAL_SETTING = "pipelines.trigger.interval"
"""The setting that other declarative pipelines know for a flow's interval."""

_ONCE = frozenset({"once", "availablenow"})
_AT_LEAST_ONCE = frozenset({"continuous", "realtime"})
_FORMS = "must be a time such as `30 seconds`, or `available_now`"


@dataclass(frozen=True)
class Trigger:
    # Minimum seconds between the starts of two batches; 0 waits only for the last batch.
    interval_s: float = 0.0
    # Whether the flow processes what its sources hold at its start, and then ends.
    available_now: bool = False

    @classmethod
    def parse(cls, value: Any) -> Trigger:
        """Read a time, or a trigger under Spark's own names (``{"processingTime": "10 seconds"}``)."""
        if isinstance(value, Mapping):
            return cls._of_mapping(value)
        name = _plain(value)
        if name in _ONCE:
            return cls(available_now=True)
        if isinstance(value, str) and value.split() and _plain(value.split()[0]) in _AT_LEAST_ONCE:
            raise ValueError(_refused(value.split()[0]))
        try:
            return cls(interval_s=parse_seconds(value))
        except ValueError:
            raise ValueError(f"{_FORMS}, not {value!r}") from None

    @classmethod
    def _of_mapping(cls, value: Mapping[Any, Any]) -> Trigger:
        if len(value) != 1:
            raise ValueError(f"{_FORMS}; a mapping has one key, such as {{'processingTime': '30 seconds'}}")
        ((key, given),) = value.items()
        name = _plain(key)
        if name in _AT_LEAST_ONCE:
            raise ValueError(_refused(key))
        if name in _ONCE and (given is True or _plain(given) == "true"):
            return cls(available_now=True)
        if name in ("processingtime", "interval"):
            return cls(interval_s=parse_seconds(given))
        raise ValueError(f"{_FORMS}, not {dict(value)!r}")

    def __str__(self) -> str:
        if self.available_now:
            return "available now"
        return f"{self.interval_s:g} s" if self.interval_s else "when the last batch has ended"


def _plain(value: Any) -> str:
    return value.replace("_", "").lower() if isinstance(value, str) else ""


def _refused(name: str) -> str:
    return (
        f"`{name}` is a mode of Spark that cannot commit batches exactly once; without a trigger, each batch "
        "starts when the last has ended"
    )


Action = Literal["warn", "drop", "quarantine", "fail"]
"""What happens to a row that fails: it is kept and counted, dropped, moved to the quarantine table, or it
stops the flow."""

NullRule = Literal["pass", "fail"]
"""Whether a condition that is NULL for a row counts as passed."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    name: str
    condition: Any  # SQL text, or a ``pyspark.sql.Column``
    text: str  # the condition in SQL, for people; a Column is known only while Spark runs
    action: Action
    location: SourceLocation
    nulls: NullRule | None = None  # whether NULL passes; ``None`` takes the pipeline's rule

    @property
    def rejects(self) -> bool:
        """Whether a row that fails is kept out of the dataset."""
        return self.action != "warn"


@dataclass(frozen=True, kw_only=True)
class DatasetCheck:
    """A check of a whole table or materialized view, after each batch or refresh."""

    # `unique`: no two rows have equal keys. `row_count`: the dataset has as many rows as another. `fresh`:
    # the newest value of a column is recent.
    kind: Literal["unique", "row_count", "fresh"]
    columns: tuple[str, ...] = ()
    like: str = ""
    within_s: float = 0.0  # the maximum age of the newest value in seconds
    fails: bool  # whether the flow stops; otherwise the check only warns
    location: SourceLocation

    @property
    def name(self) -> str:
        match self.kind:
            case "unique":
                return f"unique {', '.join(self.columns)}"
            case "row_count":
                return f"as many rows as {self.like}"
            case "fresh":
                return f"{self.columns[0]} within {self.within_s:g} s"
            case _:
                assert_never(self.kind)


@dataclass(frozen=True, kw_only=True)
class ExpectationCount:
    """How many rows of a batch passed and failed one expectation."""

    name: str
    dataset: str  # the dataset that declares it: the flow's target, or a temporary view that it reads
    action: Action
    passed: int
    failed: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


DriftAction = Literal["evolve", "rescue", "quarantine", "fail"]

EVERY_COLUMN = "*"  # the key of the default among actions by column

RESCUED = "_rescued_data"
"""The column with the fields of a record that have no column, or a value of another type, as JSON."""


def field_name(name: str) -> str:
    """A field within a dotted name; a name that has a dot itself is quoted, as in Spark."""
    return f"`{name}`" if "." in name else name


@dataclass(frozen=True)
class Drift:
    """What to do with a field that the schema does not have, and with a value of another type.

    ``evolve`` adds a column for a new field, and quarantines records with a value of another type; ``rescue``
    keeps the value in `RESCUED`, ``quarantine`` sets the record apart, ``fail`` stops the flow. Without an
    action a record with a value of another type is quarantined, and a field without a column is ignored.
    """

    default: DriftAction | None = None
    # Actions by the dotted name of the field. An action for an object is also that for its fields that have
    # none of their own.
    columns: Mapping[str, DriftAction] = field(default_factory=dict)

    def own(self, path: str, name: str) -> DriftAction | None:
        """The action of one field; ``path`` is the dotted name of its object and a dot, or empty."""
        return self.columns.get(f"{path}{field_name(name)}") or (None if path else self.columns.get(name))

    def has(self, action: DriftAction) -> bool:
        return action == self.default or action in self.columns.values()

    @property
    def is_default(self) -> bool:
        return self.default is None and not self.columns


_LIMIT = re.compile(r"(\d{1,3}(?:\.\d+)?) ?%|(\d+)")
_WINDOW = re.compile(r"(.+?) +of +([1-9]\d{0,2}) +batches")


@dataclass(frozen=True)
class RejectionLimit:
    """The maximum share, or the maximum number, of rejected records in one or more batches."""

    percent: float | None = None  # the share in percent; ``None`` for a number
    records: int | None = None  # the number; ``None`` for a share
    batches: int = 1  # how many batches are judged together: the batch and those before it

    @classmethod
    def parse(cls, value: Any) -> Self:
        """The limit from ``5%``, a number of records, or one of the two ``of 20 batches``."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(records=value)
        text = value.strip() if isinstance(value, str) else ""
        window = _WINDOW.fullmatch(text)
        batches = 1 if window is None else int(window[2])
        found = _LIMIT.fullmatch(text if window is None else window[1])
        if found is not None and found[2] is not None and window is not None:
            return cls(records=int(found[2]), batches=batches)
        if found is not None and found[1] is not None and float(found[1]) <= 100:
            return cls(percent=float(found[1]), batches=batches)
        raise ValueError(
            f"must be a share such as 5%, or a number of records, also `5% of 20 batches`, not {value!r}"
        )

    def allows(self, rejected: int, records: int) -> bool:
        """Whether so many rejected records, of so many, are within the limit."""
        if self.percent is not None:
            return rejected * 100 <= self.percent * records
        return self.records is None or rejected <= self.records

    def __str__(self) -> str:
        limit = f"{self.records:,} records" if self.percent is None else f"{self.percent:g}%"
        return limit if self.batches == 1 else f"{limit} of {self.batches} batches"


@dataclass(frozen=True, kw_only=True)
class Sink:
    format: str  # a format of `sinks.target`; `function` for a function of the user
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    function: Callable[[Any, int], object] | None = None


@dataclass(frozen=True, kw_only=True)
class StoredDataset:
    name: TableName
    location: SourceLocation
    comment: str | None = None
    table_properties: Mapping[str, str] = field(default_factory=dict)
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    schema: Any | None = None
    """A DDL string or a ``pyspark.sql.types.StructType``; ``None`` takes the query's."""
    format: str | None = None
    expectations: tuple[Expectation, ...] = ()
    # The limit of rejected records of a batch or a refresh; `None` takes the pipeline's.
    max_rejected: RejectionLimit | None = None
    checks: tuple[DatasetCheck, ...] = ()
    # How the table is maintained, by the names of `TablePolicy`.
    maintenance: Mapping[str, Any] = field(default_factory=dict)
    is_private: bool = False  # whether the table is left out of lists of tables


@dataclass(frozen=True, kw_only=True)
class StreamingTable(StoredDataset):
    """A table fed by one or more flows, which either append rows or apply changes by key."""

    sink: Sink | None = None  # where the rows go, if it is a sink
    # Whether a query that reads no stream makes it a materialized view, as in Lakeflow.
    can_be_view: bool = False
    # New names for columns of an existing table, by their old names.
    renamed_columns: Mapping[str, str] = field(default_factory=dict)
    dropped_columns: tuple[str, ...] = ()


RefreshPolicy = Literal["auto", "incremental", "incremental strict", "full"]
"""Whether a view is computed as a whole, or where its tables have changed: ``auto`` by what costs less,
``incremental`` where that is possible, ``incremental strict`` never as a whole."""


@dataclass(frozen=True, kw_only=True)
class MaterializedView(StoredDataset):
    """A table that a refresh flow keeps equal to the result of its query."""

    refresh_policy: RefreshPolicy = "auto"


@dataclass(frozen=True, kw_only=True)
class TemporaryView:
    """A named query of the pipeline, stored nowhere."""

    name: TableName
    query: Query
    # Whether it also answers to its name with a schema, as a view of `CREATE VIEW` does.
    has_schema: bool = False
    comment: str | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    expectations: tuple[Expectation, ...] = ()

    @property
    def location(self) -> SourceLocation:
        return self.query.location


Dataset = StreamingTable | MaterializedView | TemporaryView


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups of a streaming aggregate; each batch has the groups that have changed."""

    keys: tuple[str, ...]  # the columns that identify a group; empty if all rows are one group
    only_new: bool  # whether the query returns no other columns, as ``SELECT DISTINCT`` does: no row changes


@dataclass(frozen=True, kw_only=True)
class TableFlow:
    target: TableName
    query: Query
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    # When batches start; of a view, the minimum time between two refreshes. `None` takes the pipeline's.
    trigger: Trigger | None = None

    @property
    def location(self) -> SourceLocation:
        return self.query.location


@dataclass(frozen=True, kw_only=True)
class AppendFlow(TableFlow):
    """A streaming query whose rows are appended to a streaming table; it owns exactly one checkpoint."""

    name: str
    # The groups of a query that aggregates without a watermark: the table has one row for each. `None`
    # appends all rows.
    groups: Groups | None = None
    once: bool = False  # whether the query is a batch query, whose rows are appended once


@dataclass(frozen=True, kw_only=True)
class AutoCdcFlow(TableFlow):
    """A streaming query of change records that are applied to a table by key; it owns one checkpoint."""

    name: str
    keys: tuple[str, ...]
    sequence_by: str  # what orders the records of a key, for people
    truncates: bool = False  # whether records can truncate the table
    # What happens to a record without a key or a sequence.
    null_keys: Literal["quarantine", "fail"] = "quarantine"
    # The tracked columns of a table with the history of each key (SCD type 2); `None` if it has the current
    # row of each key (SCD type 1).
    history: ChosenColumns | None = None
    # The columns that keep their value where a record has NULL; `None` if none does.
    kept_if_null: ChosenColumns | None = None
    # Where the snapshots come from whose differences are the change records; `None` if the query gives the
    # records.
    snapshots: Snapshots | None = None
    once: bool = False  # whether the query is a batch query, whose records are applied once


@dataclass(frozen=True, kw_only=True)
class RefreshFlow(TableFlow):
    """A batch query whose result replaces the rows of a materialized view."""

    @property
    def name(self) -> str:
        return str(self.target)


StreamingFlow = AppendFlow | AutoCdcFlow
"""A streaming query that feeds a table; it has a checkpoint."""

Flow = StreamingFlow | RefreshFlow
"""A query and what is done with its rows. Every `match` over the kinds ends in `assert_never`."""


def snapshots_of(flow: Flow | TemporaryView) -> Snapshots | None:
    """Where the snapshots of a flow come from; ``None`` if its query gives its rows."""
    return flow.snapshots if isinstance(flow, AutoCdcFlow) else None


def is_once(flow: Flow | TemporaryView) -> bool:
    """Whether the flow's query is a batch query whose rows are applied once."""
    return isinstance(flow, AppendFlow | AutoCdcFlow) and flow.once


@dataclass(frozen=True)
class Declarations:
    """Everything that a pipeline's files declare, in the order of their reading."""

    datasets: tuple[Dataset, ...] = ()
    flows: tuple[Flow, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def streaming_flows(self) -> tuple[StreamingFlow, ...]:
        return tuple(one for one in self.flows if not isinstance(one, RefreshFlow))

    def auto_cdc_of(self, table: TableName) -> AutoCdcFlow | None:
        """A flow that applies changes by key to a table; all its flows have the same keys."""
        found = (one for one in self.streaming_flows if isinstance(one, AutoCdcFlow) and one.target == table)
        return next(found, None)

    def groups_of(self, table: TableName) -> Groups | None:
        flows = (one for one in self.streaming_flows if one.target == table)
        return next((one.groups for one in flows if isinstance(one, AppendFlow) and one.groups), None)

    def changes_rows(self, table: TableName) -> bool:
        groups = self.groups_of(table)
        return self.auto_cdc_of(table) is not None or (groups is not None and not groups.only_new)

    def with_flow(self, flow: StreamingFlow) -> Declarations:
        flows = (flow if one.name == flow.name else one for one in self.flows)
        return replace(self, flows=tuple(flows))

    def with_view(self, table: StreamingTable) -> Declarations:
        """The declarations with a materialized view in place of a table with one append flow."""
        names = [one.name for one in fields(StoredDataset)]
        view = MaterializedView(**{name: getattr(table, name) for name in names})
        flows = (
            RefreshFlow(target=one.target, query=one.query, spark_conf=one.spark_conf, trigger=one.trigger)
            if one.target == table.name
            else one
            for one in self.flows
        )
        datasets = (view if one is table else one for one in self.datasets)
        return replace(self, datasets=tuple(datasets), flows=tuple(flows))
