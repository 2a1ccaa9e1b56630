"""Runs and refreshes."""

from __future__ import annotations

from headrace.errors.base import RefusedError, RunError, TransientError, UsageError


class FlowFailedError(RunError):
    """A query failed, and would fail again. The message has Spark's error."""

    code = "FLOW_FAILED"


class FlowInterruptedError(TransientError):
    """A query failed for a temporary reason; it is started again with backoff."""

    code = "FLOW_INTERRUPTED"


class ExpectationFailedError(RunError):
    """Rows of a batch fail an expectation that stops the flow (`expect_or_fail`). Nothing of the batch was
    written.

    Correct the rows at their source, or the condition; or let such rows be dropped or moved to the
    quarantine table: `expect_or_drop`, `expect_or_quarantine`. Then run again: the flow goes on with the
    same batch.
    """

    code = "EXPECTATION_FAILED"


class MaxRejectedExceededError(RunError):
    """More records of a batch are rejected than `max_rejected` allows. Nothing of the batch was written.

    Rows that an expectation quarantines or drops, bad records, and records on which the query fails are
    rejected. The message shows the share, the reasons and some of the records. Correct the source, the schema
    or the expectations, and run again: the flow goes on with the same batch. Or set a larger `max_rejected`.
    """

    code = "MAX_REJECTED_EXCEEDED"


class DatasetCheckFailedError(RunError):
    """A check of a whole dataset failed: `expect_unique`, `expect_row_count` or `expect_fresh` with
    `fail=True`. The batch or the refresh before it is committed.

    Correct the dataset or its sources, or let the check only warn. Then run again: the check is repeated.
    """

    code = "DATASET_CHECK_FAILED"


class RowsNotRepeatableError(RunError):
    """A batch with rejected rows or bad records was computed twice, and the second time gave other ones. The
    batch was not committed.

    Spark takes a Python function for deterministic unless it is declared otherwise. Declare one whose result
    can change: `udf(..).asNondeterministic()`. Then Headrace computes each batch once.
    """

    code = "ROWS_NOT_REPEATABLE"


class QuarantineChangedError(RunError):
    """Another process has changed the same rejected rows: it discards or replays them. No row was changed.

    `headrace quarantine list` shows the rows as they are now.
    """

    code = "QUARANTINE_CHANGED"


class ReplayImpossibleError(RefusedError):
    """Rejected rows cannot be replayed. No row was changed.

    The query of a flow that keeps state (an aggregation, a stream-stream join, `dropDuplicates`) depends on
    the order of records, so a record cannot be taken through it later. A materialized view is computed anew
    by each refresh, with its quarantine. A flow that no file declares any more has no code for its rows.

    Correct the records and send them to the source again (`headrace quarantine export DATASET FILE.jsonl
    --records`, `headrace produce`), and discard the rows. Or rebuild the table: `headrace full-refresh`.
    """

    code = "REPLAY_IMPOSSIBLE"


class DriverLostError(RunError):
    """The JVM that runs Spark has ended. Run again: no record is lost or duplicated."""

    code = "DRIVER_LOST"


class TableNameTakenError(RefusedError):
    """The catalog of the Spark session has another table with the name of a table of the pipeline.

    Set `database` in the spec to a schema that only this pipeline uses.
    """

    code = "TABLE_NAME_TAKEN"


class TableFolderTakenError(RefusedError):
    """The folder of a new table holds files that are not a Delta table. Move the folder away."""

    code = "TABLE_FOLDER_TAKEN"


class ViewInputMissingError(RunError):
    """A materialized view reads a table that does not exist yet."""

    code = "VIEW_INPUT_MISSING"


class DatasetUnknownError(UsageError):
    """The pipeline declares no dataset of this name."""

    code = "DATASET_UNKNOWN"


class FlowUnknownError(UsageError):
    """The pipeline declares no flow of this name."""

    code = "FLOW_UNKNOWN"


class DownstreamStreamsError(UsageError):
    """A table cannot be rebuilt alone, because streams have read its rows. Rebuild them together."""

    code = "DOWNSTREAM_STREAMS"


class RefreshUnfinishedError(RefusedError):
    """A full refresh removed the rows and was then interrupted.

    `headrace full-refresh DATASET` completes it.
    """

    code = "REFRESH_UNFINISHED"
