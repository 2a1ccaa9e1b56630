"""The ranges of a batch, from Spark's offset log, and the checks of its sources."""

from __future__ import annotations

from contextlib import AbstractContextManager

from headrace.errors import CheckpointBehindTableError
from headrace.model.ranges import SourceRange
from headrace.sinks.target import BatchStamp
from headrace.sources.guard import FlowRun
from headrace.sources.guards import SourceGuards
from headrace.sources.ranges import load_ranges
from headrace.storage.location import Location


class BatchRanges:
    """The ranges of a flow's batches."""

    def __init__(self, run: FlowRun, guards: SourceGuards, *, pipeline: str, table: Location) -> None:
        self._run = run
        self._guards = guards
        self._pipeline = pipeline
        self._table = table

    def load(self, number: int) -> BatchStamp:
        """Load the ranges of a batch that Spark has planned.

        Raises:
            UpstreamRewrittenError: A table has changed rows that were already read.
            CheckpointCorruptError: A file of the batch was read before.
        """
        run = self._run
        return BatchStamp(
            pipeline=self._pipeline,
            flow=run.flow.name,
            checkpoint=run.checkpoint_id,
            batch=number,
            ranges=self._guards.begin(number, load_ranges(run.checkpoint, number, run.sources)),
        )

    def finish(self, stamp: BatchStamp) -> tuple[SourceRange, ...]:
        """Check before the commit that the sources are still the same as when the batch read them.

        Returns:
            The batch's ranges, with the marks that were collected while its rows were read.

        Raises:
            FileChangedError: A file was written while it was read.
            FileVanishedError: A file was removed before it was read.
            TopicRecreatedError: A topic was deleted and created again.
            OffsetsReusedError: A topic's log was rolled back.
        """
        return self._guards.finish(stamp.ranges)

    def committed(self) -> None:
        """Note that the target holds the batch."""
        self._guards.committed()

    def close(self) -> None:
        """End what the checks have begun and no batch waits for any more."""
        self._guards.close()

    def check_replay(self, stamp: BatchStamp) -> None:
        """Check that a replayed batch has the ranges that were committed.

        Raises:
            CheckpointBehindTableError: The ranges differ, so its rows are not those of the table.
        """
        flow, run = stamp.flow, self._run
        held = run.ledger.last_batch(self._table, stamp.checkpoint, stamp.batch)
        ours = [one.to_json()["until"] for one in stamp.ranges]
        theirs = None if held is None else [source["until"] for source in held["sources"]]
        if theirs == ours and self._guards.is_replay(stamp.batch):
            return
        raise CheckpointBehindTableError(
            f"flow {flow}: the table holds batch {stamp.batch} with other offset ranges",
            location=run.flow.location,
            facts=(
                f"checkpoint {stamp.checkpoint} planned {ours}",
                f"the table holds {theirs}",
                "an old copy of the checkpoint was restored, or another driver planned the batch "
                "differently; nothing was written",
            ),
            remedies=(f"continue from the table:   headrace reset {flow}",),
            params={"flow": flow, "checkpoint": stamp.checkpoint, "batch": stamp.batch},
        )

    def check_same_rows(self, stamp: BatchStamp) -> None:
        """Check that a replayed batch can be computed again from the same input.

        Raises:
            FileVanishedError: A file was changed or removed.
        """
        self._guards.check_same_rows(stamp.batch)

    def explained(self) -> AbstractContextManager[None]:
        """Raise a failure of the block with the file that caused it, if there is one."""
        return self._guards.explained()
