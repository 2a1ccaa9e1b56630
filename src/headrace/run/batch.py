"""One batch of a flow: gate, ranges, rows, commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import CheckpointBehindTableError, HeadraceError
from headrace.model.events import BatchCommitted, BatchReplayed, BatchStarted
from headrace.model.ranges import SourceRange
from headrace.plan.stages import PlannedFlow
from headrace.run.bad_files import explain_bad_file
from headrace.run.context import UpdateContext
from headrace.run.failpoints import reach
from headrace.run.failures import Reading, upstream_rewritten
from headrace.run.file_batch import FileBatch, FlowFiles, listed_files
from headrace.run.lag import LagGauge
from headrace.run.reporting import logged_only
from headrace.run.stop import StopRequested
from headrace.runtime.defaults import available_cores
from headrace.sinks.delta.commit import Appended, BatchStamp, Target, append
from headrace.sources.delta.starting import starting_version
from headrace.state.identity import CheckpointIdentity, SourceIdentity
from headrace.state.lease import Lease
from headrace.state.ledger import Ledger
from headrace.state.offset_log import load_ranges
from headrace.state.opening import topic_recreated
from headrace.state.table_log import follow_commits, see_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SMALL_BATCH = 20_000
"""Records up to which a batch is written as one file: its tasks cost more than its rows."""


AfterBatch = Callable[[tuple[SourceRange, ...], float], None]
"""Told of each batch that has ended: its ranges, and the seconds that it took."""


@dataclass
class Progress:
    """What a flow has done since it was started."""

    rows: int = 0
    batches: int = 0
    late: int = 0
    """Rows that its query left out as too late."""
    commits: int = 0
    started: float = field(default_factory=time.monotonic)


class BatchFunction:
    """What Spark calls for each batch of a flow.

    Spark reports an exception of a Python batch function only as text, so the function keeps its
    own in `failure`, for the supervisor to find.
    """

    def __init__(
        self,
        planned: PlannedFlow,
        context: UpdateContext,
        *,
        checkpoint: Path,
        identity: CheckpointIdentity,
        sources: tuple[SourceIdentity, ...],
        lease: Lease,
        progress: Progress,
        files: FlowFiles,
    ) -> None:
        self._planned = planned
        self._flow = planned.flow
        self._context = context
        self._checkpoint = checkpoint
        self._identity = identity
        self._sources = sources
        self._lease = lease
        self._progress = progress
        self._files = files
        self.session: SparkSession | None = None
        self._busy = threading.Lock()
        table = context.settings.storage.table(self._flow.target)
        self._target = Target(path=table, reads_target=planned.reads_target)
        self._erasures_only = {source.index for source in planned.sources if source.erasures_only}
        self._options = {
            source.index: {key.lower(): value for key, value in source.options.items()}
            for source in planned.sources
        }
        self._joined: dict[int, dict[str, str | None]] = {}
        self._lag = LagGauge(planned, context)
        self._tasks = max(2 * available_cores(), context.spark.sparkContext.defaultParallelism // 2)
        self.after_batch: AfterBatch = lambda ranges, duration_s: None
        self.failure: BaseException | None = None
        self.reading: Reading | None = None
        self.last_batch = -1

    @property
    def busy(self) -> bool:
        """Whether a batch is being written."""
        return self._busy.locked()

    def __call__(self, df: DataFrame, batch: int) -> None:
        with self._busy:
            try:
                self._run(df, batch)
            except BaseException as error:
                self.failure = error
                raise

    def _run(self, df: DataFrame, batch: int) -> None:
        started = time.monotonic()
        flow = self._flow
        if self._context.stop.requested:
            raise StopRequested
        self._lease.check(flow.name)
        reach("batch-start", flow.name, batch)
        read = load_ranges(self._checkpoint, batch, self._sources)
        files = self._files.begin(batch, tuple(self._seen(self._identified(one)) for one in read))
        ranges = files.ranges
        self.reading = Reading(batch, ranges)
        stamp = BatchStamp(
            pipeline=self._context.settings.name,
            flow=flow.name,
            checkpoint=self._identity.checkpoint,
            batch=batch,
            ranges=ranges,
        )
        self._context.emit(
            BatchStarted(update=self._context.update, flow=flow.name, dataset=flow.target, batch=batch)
        )
        try:
            appended = append(
                self._sized(df, ranges), self._target, stamp, lambda: self._before_commit(files)
            )
        except Exception as error:
            if isinstance(error, HeadraceError):
                raise
            self._files.refuse_changed(files, error)
            bad = explain_bad_file(error, flow, self._session()) if files.files else None
            if bad is None:
                raise
            self._files.refuse_gone(files, bad)
            raise bad from error
        reach("after-commit", flow.name, batch)
        self._files.committed(files)
        if appended is None:
            self._compare_replay(stamp, files)
            if self._planned.stateful:
                self._files.refuse_other_rows(files)
                # The batch's watermark, which closes windows and drops late rows, is learned from its rows.
                df.write.format("noop").mode("overwrite").save()
            self._context.emit(
                BatchReplayed(update=self._context.update, flow=flow.name, dataset=flow.target, batch=batch)
            )
        else:
            self._progress.rows += appended.rows
            self._progress.commits += 1
            self._context.checkpointer.offer(self._target.path, appended.version)
            with logged_only(f"flow {flow.name}: the event of batch {batch}"):
                self._report(appended, batch, ranges, time.monotonic() - started)
        self._progress.batches += 1
        self.last_batch = batch
        with logged_only(f"flow {flow.name}: the offsets of batch {batch}"):
            self._publish(ranges)
        with logged_only(f"flow {flow.name}: the limit of the batch after {batch}"):
            self.after_batch(ranges, time.monotonic() - started)
        reach("after-batch", flow.name, batch)

    def _seen(self, one: SourceRange) -> SourceRange:
        """The range of a table with the mark of what it read last, and the erasures that it passed over.

        Raises:
            UpstreamRewrittenError: The table has changed rows in another way.
        """
        if one.kind != "delta":
            return one
        path = Path(one.identity["path"])
        seen = see_version(path, one.until)
        first = self._first_version(one)
        if seen is None or first is None:
            return replace(one, seen=seen)
        commits = follow_commits(path, first, seen["version"])
        changed = [commit for commit in commits if commit.rewrites]
        # A user's own option may pass over what others change, and never over a full refresh of ours.
        erasures_only = one.index in self._erasures_only
        for commit in changed:
            if commit.is_ours or (erasures_only and not commit.is_erasure):
                raise upstream_rewritten(self._flow, path, commit)
        passed = {"passed": [commit.version for commit in changed]} if changed else {}
        return replace(one, seen={**seen, **passed})

    def _first_version(self, one: SourceRange) -> int | None:
        """The first version that is read as a commit and not as a state; ``None`` while a snapshot begins."""
        if one.start is not None:
            return int(one.start["reservoirVersion"]) + bool(one.start.get("isStartingVersion"))
        if one.until.get("isStartingVersion"):
            return None
        options = self._options[one.index]
        if (moment := options.get("startingtimestamp")) is not None:
            return starting_version(self._context.spark, Path(one.identity["path"]), moment)
        given = options.get("startingversion", "")
        return int(given) if given.isdigit() else None

    def _identified(self, one: SourceRange) -> SourceRange:
        """The range of a topic pattern with the ids of all topics in it, those too that joined just now.

        They are asked for before the rows are read, and compared before the commit: whatever is read in
        between comes from these topics.
        """
        if "pattern" not in one.identity:
            return one
        known = self._joined.setdefault(one.index, dict(one.identity["topics"]))
        unknown = [topic for topic in one.until if known.get(topic) is None]
        if unknown:
            known.update(self._context.cluster.topic_ids(unknown))
        ids = {topic: known[topic] for topic in one.until}
        return replace(one, identity={**one.identity, "topics": ids})

    def _before_commit(self, files: FileBatch) -> None:
        """The last look before the table changes: nobody else drives, and the topics are the same."""
        reach("before-commit", self._flow.name, files.batch)
        self._lease.check(self._flow.name)
        self._files.before_commit(files, lambda: listed_files(self._session(), self._flow.name))
        for one in files.ranges:
            if one.kind != "kafka":
                continue
            known: Mapping[str, str | None] = one.identity["topics"]
            for topic, now in self._context.cluster.topic_ids(known).items():
                if now is None or now != known[topic]:
                    raise topic_recreated(
                        self._flow.name,
                        self._flow.location,
                        self._identity.checkpoint,
                        topic,
                        known[topic],
                        now,
                    )

    def _session(self) -> SparkSession:
        assert self.session is not None, "set before the query is started"
        return self.session

    def _sized(self, df: DataFrame, ranges: tuple[SourceRange, ...]) -> DataFrame:
        """The batch in as many files as it is worth, and in no more tasks than leave room for other flows."""
        if self._planned.stateful:
            return df
        small = all(one.kind == "kafka" for one in ranges) and records(ranges) <= _SMALL_BATCH
        return df.coalesce(1 if small else self._tasks)

    def _compare_replay(self, stamp: BatchStamp, files: FileBatch) -> None:
        """A replayed batch must have the ranges that were committed.

        Raises:
            CheckpointBehindTableError: It has others: its rows are not those of the table.
        """
        storage = self._context.settings.storage
        ledger = Ledger(
            storage.ledger(self._flow.target, self._flow.name), self._flow.target, self._flow.name
        )
        said = ledger.last_batch(self._target.path, stamp.checkpoint, stamp.batch)
        ours = [r.to_json()["until"] for r in stamp.ranges]
        same_ends = said is not None and [source["until"] for source in said["sources"]] == ours
        if same_ends and self._files.is_replay(files):
            return
        raise CheckpointBehindTableError(
            f"flow {self._flow.name}: the table holds batch {stamp.batch} with other ranges",
            location=self._flow.location,
            facts=(
                f"checkpoint {stamp.checkpoint} planned {ours}",
                f"the table holds {None if said is None else [s['until'] for s in said['sources']]}",
                "an old copy of the checkpoint was restored, or another driver planned otherwise; "
                "nothing was written",
            ),
            remedies=(f"go on where the table ends:   headrace run --resume-from-table {self._flow.name}",),
            params={"flow": self._flow.name, "checkpoint": stamp.checkpoint, "batch": stamp.batch},
        )

    def _report(
        self, appended: Appended, batch: int, ranges: tuple[SourceRange, ...], duration_s: float
    ) -> None:
        lag: int | None = None
        with logged_only(f"flow {self._flow.name}: the lag after batch {batch}"):
            lag = self._lag.measure(ranges)
        self._context.emit(
            BatchCommitted(
                update=self._context.update,
                flow=self._flow.name,
                dataset=self._flow.target,
                batch=batch,
                version=appended.version,
                rows=appended.rows,
                duration_s=duration_s,
                ranges=ranges,
                lag=lag,
                latency_s=_latency(appended, self._planned.timestamp),
            )
        )

    def _publish(self, ranges: tuple[SourceRange, ...]) -> None:
        for one in ranges:
            if one.kind == "kafka" and self._context.settings.consumer_groups:
                self._context.publisher.offer(self._context.settings.name, self._flow.name, one.until)


def records(ranges: tuple[SourceRange, ...]) -> int:
    """The offsets that the kafka ranges span."""
    return sum(
        offset - (one.start or {}).get(topic, {}).get(partition, 0)
        for one in ranges
        if one.kind == "kafka"
        for topic, partitions in one.until.items()
        for partition, offset in partitions.items()
    )


def _latency(appended: Appended, timestamp: str | None) -> tuple[float, float] | None:
    """The oldest and the newest record's age now, from the statistics that Delta has taken anyway."""
    if timestamp is None:
        return None
    oldest = [_at(s.get("minValues"), timestamp) for s in appended.statistics]
    newest = [_at(s.get("maxValues"), timestamp) for s in appended.statistics]
    first = min((at for at in oldest if at is not None), default=None)
    last = max((at for at in newest if at is not None), default=None)
    if first is None or last is None:
        return None
    now = datetime.now(UTC)
    return (now - first).total_seconds(), (now - last).total_seconds()


def _at(values: Any, path: str) -> datetime | None:
    """The timestamp of one column in Delta's statistics; ``None`` where Python has no such date.

    A producer can set any timestamp, also one after the year 9999.
    """
    for part in path.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    try:
        found = datetime.fromisoformat(values) if isinstance(values, str) else None
    except ValueError:
        return None
    return found if found is None or found.tzinfo else found.replace(tzinfo=UTC)
