"""The state of a pipeline, from its storage and the broker, without Spark."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NoReturn

from headrace.errors import HeadraceError, LogUnreadableError
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.texts import html_table
from headrace.observe.status import (
    DatasetStatus,
    FlowState,
    FlowStatus,
    LastFailure,
    ViewState,
    ViewStatus,
    load_failures,
)
from headrace.observe.versions import CHECKPOINT, RecentCommits, load_tail
from headrace.sources.registry import kind_of, range_of, read_back
from headrace.sources.requests import Asking, Lag, Systems
from headrace.state.checkpoint import find_checkpoints, generations, load_identity, load_state
from headrace.state.lease import VIEW, Driver, Observer
from headrace.state.ledger import Ledger
from headrace.storage.layout import Storage
from headrace.storage.location import Location

_ANSWER_S = 1.0  # seconds that the broker may take to answer; without an answer, the status has no lag
_READERS = 8
_SINK = "sink"
"""The kind of a sink that keeps the state of its flows itself."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of a pipeline."""

    pipeline: str
    storage: Location
    datasets: tuple[DatasetStatus, ...]
    at: datetime
    knows_failures: bool = True  # false if the event log, which has them, could not be read
    broker: str | None = None  # the address of the broker; ``None`` for none
    silence: str | None = None  # why the broker gave no answer
    # The error of the cluster, if it refuses the login or lacks a permission.
    refusal: HeadraceError | None = None

    def __repr__(self) -> str:
        states = Counter(state for one in self.datasets for state in one.states)
        facts = ", ".join(f"{number} {state}" for state, number in states.most_common())
        return f"<Snapshot of {self.pipeline}: {facts or 'no tables'}>"

    def _repr_html_(self) -> str:
        rows: list[tuple[Any, ...]] = []
        for one in self.datasets:
            name = one.dataset.short
            if one.view is not None or not one.flows:
                state = one.view.state if one.view is not None else "unreadable" if one.problem else None
                rows.append((name, None, state, one.rows, None, one.version))
            rows += [(name, flow.flow, flow.state, one.rows, flow.lag, one.version) for flow in one.flows]
        lines = [] if self.silence is None else [f"lag unknown: {self.silence}"]
        columns = ("dataset", "flow", "state", "rows in table", "lag", "version")
        return html_table(f"{self.pipeline} · {self.storage}", columns, rows, lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "storage": str(self.storage),
            "at": self.at.isoformat(timespec="milliseconds"),
            "broker": {
                "bootstrap_servers": self.broker,
                "problem": self.silence,
                "error": None if self.refusal is None else self.refusal.to_dict(),
            },
            "datasets": [one.to_json(self.at) for one in self.datasets],
        }


def take_snapshot(settings: ProjectSettings, broker: str) -> Snapshot:
    """Read the state of a pipeline from its storage, and the lags from the systems of its sources. `broker`:
    the address of the broker; empty for none."""
    storage = settings.storage
    names = storage.find_tables()
    # The event log is read while the tables are.
    with ThreadPoolExecutor(_READERS) as pool:
        failures, sinks = pool.submit(load_failures, storage), pool.submit(_load_sinks, storage)
        last_plan, made = pool.submit(load_declared, settings), pool.submit(load_ingested, settings)
        # What `headrace sql` has defined, such as ``stream.NAME`` and ``table.SCHEMA.NAME``, in lower case.
        statements = pool.submit((storage.streams / "statements").list_files)
        tables = pool.map(lambda name: _load(storage.table(name)), names)
        loaded: dict[TableName, RecentCommits | str] = dict(zip(names, tables, strict=True))
    loaded |= {name: tail for name, tail in sinks.result().items() if name not in loaded}
    tails = {
        name: found
        for name, found in loaded.items()
        if isinstance(found, str) or found.properties.get("headrace.pipeline") == settings.name
    }
    failed = failures.result()
    looks = _Looks(settings, tails, failed or {})
    with closing(looks.systems):
        statuses = [*map(looks.dataset, tails), *looks.missing_datasets()]
    declared = last_plan.result()
    shell = frozenset(name.removesuffix(".sql") for name in statements.result())
    if declared is not None:
        # Topics are ingested one by one, so no plan has all their tables.
        ingested = made.result()
        declared = None if ingested is None else {**dict.fromkeys(map(str, ingested)), **declared}
    found = [_marked(one, declared, shell) if one.dataset in tails else one for one in statuses]
    datasets = tuple(sorted(found, key=lambda one: (one.view is not None, one.dataset)))
    return Snapshot(
        pipeline=settings.name,
        storage=storage.root,
        datasets=datasets,
        at=datetime.now(UTC),
        knows_failures=failed is not None,
        broker=broker or None,
        silence=looks.silence,
        refusal=looks.systems.refusal,
    )


def load_declared(settings: ProjectSettings) -> Mapping[str, frozenset[str] | None] | None:
    """The flows of each dataset in the last run of the whole pipeline; ``None`` if they are not known."""
    try:
        record = settings.storage.last_plan(settings.home).read_json()
        if record["pipeline"] != settings.name:
            return None
        found: dict[str, set[str]] = {".".join(one["view"]): set() for one in record["views"]}
        for one in record["flows"]:
            found.setdefault(".".join(one["dataset"]), set()).add(one["flow"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return {name: frozenset(flows) for name, flows in found.items()}


def load_ingested(settings: ProjectSettings) -> frozenset[TableName] | None:
    """The tables that `headrace ingest` has made from topics; ``None`` if a record of them cannot be read."""
    folder = settings.storage.root / "ingest"
    tables: set[str] = set()
    for name in folder.list_files():
        if name.endswith(".json"):
            try:
                table = str((folder / name).read_json()["table"])
            except (OSError, ValueError, LookupError, TypeError):
                return None
            tables.update((table, f"{table}_raw"))
    return frozenset(settings.table_name(table) for table in tables)


def _marked(
    status: DatasetStatus, declared: Mapping[str, frozenset[str] | None] | None, shell: frozenset[str]
) -> DatasetStatus:
    """The status, with a mark on a dataset or flow that is no longer declared. `declared`: the flows of each
    dataset; ``None`` if they are not known."""
    name = str(status.dataset)
    if declared is None or declared.get(name, frozenset()) is None:
        return status
    known = declared.get(name)
    flows = tuple(
        replace(
            one,
            orphaned=(known is None or one.flow not in known)
            and f"stream.{one.flow.casefold()}" not in shell,
        )
        for one in status.flows
    )
    is_orphaned = known is None and f"table.{str(status.dataset).casefold()}" not in shell
    return replace(status, orphaned=is_orphaned, flows=flows)


@dataclass(frozen=True, kw_only=True)
class _FlowLook:
    """What the storage says of a flow, besides its table."""

    checkpoint: Location | None  # the newest one
    last_batch: Mapping[str, Any] | None  # its metadata
    planned: int | None  # the last batch that Spark has planned with the checkpoint
    driver: Driver | None
    late: int


class _Looks:
    """Builds the status of each dataset; the broker is asked once for all flows."""

    def __init__(
        self,
        settings: ProjectSettings,
        tails: Mapping[TableName, RecentCommits | str],
        failures: Mapping[str, LastFailure],
    ) -> None:
        storage = self._storage = settings.storage
        self._tails = tails
        self._failures = failures
        self._now = datetime.now(UTC)
        self._observer = Observer(storage.leases / name for name in storage.leases.list_files())
        flows = [
            (name, tail, flow, checkpoint)
            for name, tail in tails.items()
            if isinstance(tail, RecentCommits)
            for flow, checkpoint in _flows(tail)
        ]
        found = storage.root.files.gather(lambda one: self._look(*one), flows)
        self._flows = {(one[0], one[3]): look for one, look in zip(flows, found, strict=True)}
        self.systems = Systems(
            storage=storage,
            read_table=_read_nothing,
            asking=Asking(settings=lambda: settings, timeout_s=_ANSWER_S, asks_once=True),
        )

    @property
    def silence(self) -> str | None:
        """The reason why the lag is not known, if the broker was asked."""
        error = self.systems.failure
        if error is None:
            return None
        return error.headline if self.systems.refusal is not None else error.summary

    def dataset(self, name: TableName) -> DatasetStatus:
        tail = self._tails[name]
        if isinstance(tail, str):
            return DatasetStatus(dataset=name, kind="unknown", problem=tail)
        kind = tail.properties.get("headrace.kind", "streaming_table")
        return DatasetStatus(
            dataset=name,
            kind=kind,
            version=tail.version if tail.version >= 0 else None,
            rows=tail.rows,
            files=tail.files,
            size_bytes=tail.size_bytes,
            changed=tail.changed,
            flows=(
                *(self._flow(name, tail, flow, checkpoint) for flow, checkpoint in _flows(tail)),
                *self._never_opened(name, [flow for flow, _ in _flows(tail)]),
            ),
            view=self._view(name, tail) if kind == "materialized_view" else None,
        )

    def missing_datasets(self) -> Iterator[DatasetStatus]:
        """The tables that the newest update has failed to create."""
        failed = {one.dataset: key for key, one in self._failures.items() if one.never_opened}
        for name, key in failed.items():
            if name in self._tails:
                continue
            if key == str(name):
                failure = self._failures[key]
                state: ViewState = "failed" if failure.reason is None else "skipped"
                view = ViewStatus(state=state, error=failure.error, reason=failure.reason)
                yield DatasetStatus(dataset=name, kind="materialized_view", view=view)
            else:
                flows = tuple(self._never_opened(name))
                yield DatasetStatus(dataset=name, kind="streaming_table", flows=flows)

    def _never_opened(self, name: TableName, opened: Collection[str] = ()) -> Iterator[FlowStatus]:
        """The flows of a table that have failed in the newest update, before they had a checkpoint."""
        for flow, failure in sorted(self._failures.items()):
            if failure.dataset == name and flow not in (*opened, str(name)) and failure.never_opened:
                driver = self._observer.find(self._storage.lease(name, flow))
                state = _state(driver, failure, None, None)
                yield FlowStatus(
                    flow=flow,
                    state=state,
                    checkpoint=None,
                    driver=driver,
                    error=failure.error,
                    reason=failure.reason,
                )

    def _flow(self, name: TableName, tail: RecentCommits, flow: str, checkpoint: str) -> FlowStatus:
        commit = tail.last_batch(checkpoint)
        look = self._flows[name, checkpoint]
        metadata, driver, planned = look.last_batch, look.driver, look.planned
        failure = self._failures.get(flow)
        batch = (
            None
            if metadata is None
            else int(metadata["batches"][1] if "batches" in metadata else metadata["batch"])
        )
        lag = None if metadata is None else self._lag(metadata, look.checkpoint)
        return FlowStatus(
            flow=flow,
            state=_state(driver, failure, batch, lag),
            checkpoint=checkpoint,
            batch=batch,
            version=commit.version
            if commit is not None
            else None
            if metadata is None
            else _version(metadata),
            committed=None if commit is None else commit.at,
            pending=planned if planned is not None and planned > (-1 if batch is None else batch) else None,
            lag=None if lag is None else lag.count,
            lag_bytes=lag.size_bytes if lag is not None and lag.counts_files else None,
            behind_s=lag.behind_ms / 1000 if lag is not None and lag.behind_ms is not None else None,
            rate=tail.rate(checkpoint, self._now) if driver is not None else None,
            late=look.late,
            driver=driver,
            error=None
            if failure is None or (driver is not None and failure.state == "failed")
            else failure.error,
            reason=None if failure is None or driver is not None else failure.reason,
            recovering=driver is not None and failure is not None and failure.state == "failed",
        )

    def _view(self, name: TableName, tail: RecentCommits) -> ViewStatus:
        commit = tail.last_refresh()
        failure = self._failures.get(str(name))
        error = None if failure is None else failure.error
        reason = None if failure is None else failure.reason
        failed: ViewState | None = "failed" if error else "skipped" if reason else None
        if commit is None or commit.metadata is None:
            return ViewStatus(state=failed or "new", error=error, reason=reason)
        inputs = {key: int(value["version"]) for key, value in commit.metadata["inputs"].items()}
        ids = {key: value.get("table_id") for key, value in commit.metadata["inputs"].items()}
        late = []
        for key, version in inputs.items():
            found = self._tails.get(TableName.parse(key, name.schema))
            if not isinstance(found, RecentCommits):
                continue
            changed = any(one.version > version and one.changes_data for one in found.commits)
            if changed or found.table_id != ids[key]:
                late.append(key)
        return ViewStatus(
            state=failed or ("behind" if late else "up to date"),
            version=commit.version,
            refreshed=commit.at,
            inputs=inputs,
            late=tuple(late),
            driver=self._observer.find(self._storage.lease(name, VIEW)),
            error=error,
            reason=reason,
        )

    def _look(self, name: TableName, tail: RecentCommits, flow: str, checkpoint: str) -> _FlowLook:
        newest = next(reversed(generations(self._storage.flow_checkpoints(name, flow))), None)
        planned = -1 if newest is None else load_state(newest).last_planned
        return _FlowLook(
            checkpoint=newest,
            last_batch=self._find_last_batch(name, flow, checkpoint, tail),
            planned=None if planned < 0 else planned,
            driver=self._observer.find(self._storage.lease(name, flow)),
            late=Ledger(self._storage.ledger(name, flow), name, flow).late_rows(checkpoint),
        )

    def _find_last_batch(
        self, name: TableName, flow: str, checkpoint: str, tail: RecentCommits
    ) -> Mapping[str, Any] | None:
        """The metadata of the last batch, from the newest commits or else from the ledger."""
        commit = tail.last_batch(checkpoint)
        if commit is not None:
            return commit.metadata
        if tail.properties.get("headrace.kind") == _SINK:
            return _last_finished(self._storage.flow_checkpoints(name, flow))
        try:
            folds = Ledger(self._storage.ledger(name, flow), name, flow).folds()
        except HeadraceError:
            return None
        for fold in reversed(folds):
            for entry in reversed(fold["batches"]):
                if entry.get("checkpoint") == checkpoint and ("batch" in entry or "batches" in entry):
                    return dict(entry)
        return None

    def _lag(self, metadata: Mapping[str, Any], checkpoint: Location | None) -> Lag | None:
        """The lag behind the sources after the last batch; ``None`` if it is not known for one of them."""
        total = Lag(0)
        for one in metadata["sources"]:
            lag = kind_of(one["kind"]).lag(range_of(one), self.systems, checkpoint)
            if lag is None:
                return None
            total += lag
        return total if metadata["sources"] else None


def _read_nothing(path: Location) -> NoReturn:
    raise AssertionError(f"a status reads no table: {path}")


def _load(path: Location) -> RecentCommits | str:
    try:
        return load_tail(path)
    except LogUnreadableError as error:
        return error.headline
    except (OSError, ValueError) as error:
        return str(error)


def _load_sinks(storage: Storage) -> dict[TableName, RecentCommits]:
    """The sinks that keep the state of their flows themselves, by what their checkpoints say."""
    found: dict[TableName, RecentCommits] = {}
    for dataset, flow, known in find_checkpoints(storage):
        with contextlib.suppress(HeadraceError):
            identity = load_identity(known[-1])
            if identity.sink is not None:
                own = {
                    "headrace.kind": _SINK,
                    "headrace.pipeline": identity.pipeline,
                    f"{CHECKPOINT}{flow}": identity.checkpoint,
                }
                before = found[dataset].properties if dataset in found else {}
                found[dataset] = RecentCommits(
                    version=-1,
                    table_id=identity.table_id,
                    properties={**before, **own},
                    rows=None,
                    files=0,
                    size_bytes=0,
                    commits=(),
                )
    return found


def _last_finished(folder: Location) -> Mapping[str, Any] | None:
    """The last batch of a flow's newest checkpoint that its target holds, as the checkpoint says."""
    for path in generations(folder)[-1:]:
        with contextlib.suppress(HeadraceError, OSError, ValueError):
            finished = load_state(path).last_finished
            return None if finished < 0 else read_back(path, load_identity(path), finished)
    return None


def _flows(tail: RecentCommits) -> list[tuple[str, str]]:
    return sorted(
        (key.removeprefix(CHECKPOINT), value)
        for key, value in tail.properties.items()
        if key.startswith(CHECKPOINT) and value
    )


def _state(
    driver: Driver | None, failure: LastFailure | None, batch: int | None, lag: Lag | None
) -> FlowState:
    if driver is not None and not driver.is_certain:
        return "unknown"
    if driver is not None:
        ended = failure is None or failure.state in ("failed", "skipped", "stopped")
        return "running" if failure is None or ended else failure.state
    if failure is not None and failure.state in ("failed", "skipped"):
        return failure.state
    if failure is not None and failure.state == "stopped":
        return "stopped"
    if batch is None:
        return "new"
    if lag is None:
        return "unknown"
    return "behind" if lag.count else "up to date"


def _version(metadata: Mapping[str, Any]) -> int | None:
    version = metadata.get("version")
    return version[1] if isinstance(version, Sequence) else version
