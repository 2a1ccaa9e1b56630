"""What a batch reads: its ranges, from Spark's offset log, and the checks on what they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import CheckpointBehindTableError, HeadraceError
from headrace.model.ranges import SourceRange
from headrace.plan.stages import PlannedFlow
from headrace.run.bad_files import explain_bad_file
from headrace.run.failures import upstream_rewritten
from headrace.run.file_batch import FileBatch, FlowFiles, listed_files
from headrace.sinks.target import BatchStamp
from headrace.sources.delta.starting import starting_version
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.state.identity import SourceIdentity
from headrace.state.ledger import Ledger
from headrace.state.offset_log import load_ranges
from headrace.state.opening import topic_recreated
from headrace.state.table_log import follow_commits, see_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch: its identity with its ranges, and the files that it reads."""

    stamp: BatchStamp
    files: FileBatch


class BatchRanges:
    """The ranges of a flow's batches.

    Args:
        planned: The flow.
        pipeline: The pipeline's name.
        checkpoint: The flow's checkpoint folder.
        checkpoint_id: The checkpoint's id.
        sources: The flow's sources as they are now.
        files: Checks the files of each batch.
        ledger: The flow's ledger.
        table: The folder of the table that the flow feeds.
        cluster: The Kafka cluster.
        session: The session that the query is started in.
    """

    def __init__(
        self,
        planned: PlannedFlow,
        *,
        pipeline: str,
        checkpoint: Path,
        checkpoint_id: str,
        sources: tuple[SourceIdentity, ...],
        files: FlowFiles,
        ledger: Ledger,
        table: Path,
        cluster: KafkaCluster,
        session: SparkSession,
    ) -> None:
        self._flow = planned.flow
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._checkpoint_id = checkpoint_id
        self._sources = sources
        self._files = files
        self._ledger = ledger
        self._table = table
        self._cluster = cluster
        self._session = session
        self._erasures_only = {source.index for source in planned.sources if source.erasures_only}
        self._options = {
            source.index: {key.lower(): value for key, value in source.options.items()}
            for source in planned.sources
        }
        self._joined: dict[int, dict[str, str | None]] = {}

    def load(self, number: int) -> Batch:
        """Load the ranges of a batch that Spark has planned.

        Raises:
            UpstreamRewrittenError: A table has changed rows that were already read.
            CheckpointCorruptError: A file of the batch was read before.
        """
        read = load_ranges(self._checkpoint, number, self._sources)
        files = self._files.begin(number, tuple(self._seen(self._identified(one)) for one in read))
        stamp = BatchStamp(
            pipeline=self._pipeline,
            flow=self._flow.name,
            checkpoint=self._checkpoint_id,
            batch=number,
            ranges=files.ranges,
        )
        return Batch(stamp=stamp, files=files)

    def check(self, batch: Batch) -> None:
        """Check before the commit that the files and topics are still those that the batch has read.

        Raises:
            FileChangedError: A file was written meanwhile.
            FileVanishedError: A file was gone before it could be read.
            TopicRecreatedError: A topic was deleted and created again.
        """
        self._files.before_commit(batch.files, lambda: listed_files(self._session, self._flow.name))
        for one in batch.stamp.ranges:
            if one.kind != "kafka":
                continue
            known: Mapping[str, str | None] = one.identity["topics"]
            for topic, now in self._cluster.topic_ids(known).items():
                if now is None or now != known[topic]:
                    raise topic_recreated(
                        self._flow.name,
                        self._flow.location,
                        self._checkpoint_id,
                        topic,
                        known[topic],
                        now,
                    )

    def committed(self, batch: Batch) -> None:
        """Note that the target holds the batch: its files have been read."""
        self._files.committed(batch.files)

    def check_replay(self, batch: Batch) -> None:
        """Check that a replayed batch has the ranges that were committed.

        Raises:
            CheckpointBehindTableError: It has others: its rows are not those of the table.
        """
        stamp = batch.stamp
        held = self._ledger.last_batch(self._table, stamp.checkpoint, stamp.batch)
        ours = [one.to_json()["until"] for one in stamp.ranges]
        theirs = None if held is None else [source["until"] for source in held["sources"]]
        if theirs == ours and self._files.is_replay(batch.files):
            return
        raise CheckpointBehindTableError(
            f"flow {stamp.flow}: the table holds batch {stamp.batch} with other ranges",
            location=self._flow.location,
            facts=(
                f"checkpoint {stamp.checkpoint} planned {ours}",
                f"the table holds {theirs}",
                "an old copy of the checkpoint was restored, or another driver planned the batch "
                "differently; nothing was written",
            ),
            remedies=(f"continue from the table:   headrace run --resume-from-table {stamp.flow}",),
            params={"flow": stamp.flow, "checkpoint": stamp.checkpoint, "batch": stamp.batch},
        )

    def check_same_rows(self, batch: Batch) -> None:
        """Check that a replayed batch can be computed again from the same files.

        Raises:
            FileVanishedError: A file has changed since, or is gone.
        """
        self._files.refuse_other_rows(batch.files)

    @contextmanager
    def explained(self, batch: Batch) -> Iterator[None]:
        """Name the file that made the block fail, where one did."""
        try:
            yield
        except HeadraceError:
            raise
        except Exception as error:
            self._files.refuse_changed(batch.files, error)
            bad = explain_bad_file(error, self._flow, self._session) if batch.files.files else None
            if bad is None:
                raise
            self._files.refuse_gone(batch.files, bad)
            raise bad from error

    def _seen(self, one: SourceRange) -> SourceRange:
        """The range of a table with the mark of its last commit, and the erasures that were passed over.

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
            return starting_version(self._session, Path(one.identity["path"]), moment)
        given = options.get("startingversion", "")
        return int(given) if given.isdigit() else None

    def _identified(self, one: SourceRange) -> SourceRange:
        """The range of a topic pattern with the ids of all its topics, also of those that are new.

        The ids are asked for before the rows are read, and compared before the commit: all records that
        are read in between come from these topics.
        """
        if "pattern" not in one.identity:
            return one
        known = self._joined.setdefault(one.index, dict(one.identity["topics"]))
        unknown = [topic for topic in one.until if known.get(topic) is None]
        if unknown:
            known.update(self._cluster.topic_ids(unknown))
        ids = {topic: known[topic] for topic in one.until}
        return replace(one, identity={**one.identity, "topics": ids})
