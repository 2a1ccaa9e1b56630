"""Runs and refreshes."""

from __future__ import annotations

from headrace.errors.base import RefusedError, RunError, TransientError, UsageError


class FlowFailedError(RunError):
    """A query failed, and would fail again. The message has Spark's error."""

    code = "FLOW_FAILED"


class OutOfMemoryError(RunError):
    """The heap of Spark's JVM was too small for a batch. See ``docs/sizing.md``."""

    code = "OUT_OF_MEMORY"


class ConstraintViolatedError(RunError):
    """A row violates a ``CHECK`` or ``NOT NULL`` constraint of the Delta table. Nothing of the batch was
    written.

    Correct the row at its source or in the query. Or declare the same condition as an expectation:
    `expect_or_quarantine` moves such rows to the quarantine table before Delta checks them.
    """

    code = "CONSTRAINT_VIOLATED"


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
    or the expectations, and run again: the flow continues with the same batch. Or increase `max_rejected`.
    """

    code = "MAX_REJECTED_EXCEEDED"


class DatasetCheckFailedError(RunError):
    """A check of a whole dataset failed: `expect_unique`, `expect_row_count` or `expect_fresh` with
    `fail=True`. The batch or refresh is already committed.

    Correct the dataset or its sources, or remove `fail=True` so that the check only warns. Then run again:
    the check is repeated.
    """

    code = "DATASET_CHECK_FAILED"


class RowsNotRepeatableError(RunError):
    """A batch with rejected rows or bad records was computed twice, with different results. The batch was
    not committed.

    Spark takes a Python function for deterministic unless it is declared otherwise. Declare one whose result
    can change: `udf(..).asNondeterministic()`. Then Headrace computes each batch once.
    """

    code = "ROWS_NOT_REPEATABLE"


class QuarantineChangedError(RunError):
    """Another process discards or replays the same rejected rows. This command changed no row.

    `headrace quarantine list` shows the rows as they are now.
    """

    code = "QUARANTINE_CHANGED"


class ReplayImpossibleError(RefusedError):
    """Rejected rows cannot be replayed. No row was changed.

    There are three reasons. The flow keeps state (an aggregation, a stream-stream join, `dropDuplicates`):
    its result depends on the order of the records, so a single record cannot be processed later. The dataset
    is a materialized view: each refresh replaces its rows and its quarantine. Or no file of the pipeline
    declares the flow any more.

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


class FullRefreshNotAllowedError(RefusedError):
    """A table has the property `pipelines.reset.allowed` = false, so no full refresh may remove its rows.

    A full refresh of a table also rebuilds the streams that read it.
    """

    code = "FULL_REFRESH_NOT_ALLOWED"


class RefreshLosesDataError(RefusedError):
    """A full refresh would remove rows that cannot be read again, because their source no longer has them.

    `headrace full-refresh DATASET --accept-loss DATASET` removes these rows nevertheless.
    """

    code = "REFRESH_LOSES_DATA"


class RefreshUnfinishedError(RefusedError):
    """A full refresh removed the rows and was then interrupted.

    `headrace full-refresh DATASET` completes it.
    """

    code = "REFRESH_UNFINISHED"
