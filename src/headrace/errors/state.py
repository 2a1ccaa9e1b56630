"""Errors of the storage: checkpoints, tables, ledgers and leases."""

from __future__ import annotations

from headrace.errors.base import RefusedError, SetupError, TransientError, UsageError


class CheckpointLostError(RefusedError):
    """The checkpoint that wrote the table does not exist any more.

    `headrace reset FLOW` creates a new checkpoint at the positions that the table records.
    """

    code = "CHECKPOINT_LOST"


class CheckpointBehindTableError(RefusedError):
    """The table has batches that the checkpoint does not have: an old copy of the checkpoint was restored.

    `headrace reset FLOW` creates a new checkpoint at the positions that the table records.
    """

    code = "CHECKPOINT_BEHIND_TABLE"


class CheckpointForeignError(RefusedError):
    """The checkpoint folder belongs to another flow, or was written without Headrace."""

    code = "CHECKPOINT_FOREIGN"


class CheckpointCorruptError(RefusedError):
    """A file of the checkpoint cannot be read.

    If the table has a record of the batch, `headrace checkpoint repair FLOW` restores the file from it, and
    keeps the state. `headrace reset FLOW` creates a new checkpoint at the positions that the table records.
    """

    code = "CHECKPOINT_CORRUPT"


class TableBehindCheckpointError(RefusedError):
    """The checkpoint has finished batches that the table does not have: an older version was restored.

    `headrace reset FLOW` reads those batches again.
    """

    code = "TABLE_BEHIND_CHECKPOINT"


class TableLostError(RefusedError):
    """The table of the checkpoint was deleted, or deleted and created again.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "TABLE_LOST"


class FlowRenamedError(RefusedError):
    """A flow that wrote the table is no longer declared, and a new flow wants to write it.

    `headrace run --rename-flow OLD=NEW` continues where the old flow stopped;
    `headrace reset NEW` starts the new flow at the beginning of its sources.
    """

    code = "FLOW_RENAMED"


class RenameImpossibleError(RefusedError):
    """A flow cannot be renamed.

    `headrace run --rename-flow OLD=NEW` needs a flow OLD that wrote the same table and is no longer declared.
    """

    code = "RENAME_IMPOSSIBLE"


class SourcesChangedError(RefusedError):
    """The query reads other sources than its checkpoint.

    `headrace reset FLOW` keeps the rows, continues known sources from their offsets, and
    reads new sources from the start. `headrace full-refresh DATASET` reads everything again.
    """

    code = "SOURCES_CHANGED"


class RangesReadAgainError(RefusedError):
    """The chosen start of a new checkpoint lies before offsets that the flow has committed.

    `headrace reset FLOW --from .. --allow-duplicates` reads them again. The commit that opens the checkpoint
    records them, and `headrace verify` counts them as declared duplicates.
    """

    code = "RANGES_READ_AGAIN"


class RangesSkippedError(RefusedError):
    """The chosen start of a new checkpoint lies after offsets that the flow has never read.

    `headrace reset FLOW --from .. --accept-loss` skips them. The ledger records them first, and
    `headrace verify` counts them as lost.
    """

    code = "RANGES_SKIPPED"


class StateChangedError(RefusedError):
    """The query was changed in a way that does not match the state in its checkpoint.

    With an existing state, Spark does not allow changes to the types of grouping keys and aggregates, to
    deduplication keys, to joined columns or to stateful operators. `headrace full-refresh DATASET` reads
    everything again with the new query.
    """

    code = "STATE_CHANGED"


class ResumeImpossibleError(RefusedError):
    """The positions that the table records are not enough to resume the flow.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "RESUME_IMPOSSIBLE"


class SecondDriverError(RefusedError):
    """Another process runs this flow. Stop that process, or wait until it has ended."""

    code = "SECOND_DRIVER"


class KeyTwiceError(RefusedError):
    """A table of AUTO CDC flows has several rows with the same key, so changes cannot be applied to it.

    Another writer has added rows. Delete them, or read everything again with `headrace full-refresh`.
    """

    code = "KEY_TWICE"


class LeaseLostError(RefusedError):
    """Another process has taken over this flow, because this process did not respond for too long.

    This process has written nothing since then.
    """

    code = "LEASE_LOST"


class BatchFencedError(RefusedError):
    """Another process has committed with the same checkpoint while this batch was being written."""

    code = "BATCH_FENCED"


class CommitLostError(TransientError):
    """Delta reported a commit that is not part of the table.

    The process stood still while it committed. Meanwhile other commits, a checkpoint and a cleanup of the log
    removed the versions after the one that it had read, so Delta wrote one of their files again. Nothing of
    this commit is visible. The flow starts again from the table as it is.
    """

    code = "COMMIT_LOST"


class StorageUnwritableError(SetupError):
    """The storage cannot be written. Correct its permissions, or `storage` in the spec."""

    code = "STORAGE_UNWRITABLE"


class StorageNewerError(RefusedError):
    """A newer version of Headrace has written this storage. Install that version."""

    code = "STORAGE_NEWER"


class ReaderLagsError(RefusedError):
    """A vacuum would delete files that a flow has not read yet, and the flow has not read for a long time.

    A vacuum keeps files for a flow only until the flow is behind by the limit `reader_lag` (by default 30
    days). After that, the table would keep growing for a flow that may never run again, and the vacuum fails.
    Run the flow, or ignore it with `headrace maintain TABLE --ignore-reader FLOW`. The files of an ignored
    flow may be deleted; the flow then needs a full refresh.
    """

    code = "READER_LAGS"


class RetentionTooShortError(RefusedError):
    """A vacuum with a retention below 7 days was not allowed.

    Readers and writers outside of Headrace may still use files that were removed less than 7 days ago: a long
    query, another engine, or a job that has written files but has not committed them yet. To allow the
    shorter retention, use `headrace maintain --allow-short-retention`, or set `allow_short_retention: true`
    in the spec.
    """

    code = "RETENTION_TOO_SHORT"


class TableInUseError(RefusedError):
    """A table cannot be removed: it is declared, another pipeline has written it, or it has readers.

    Only orphaned tables can be removed: tables that this pipeline has written, but that its files did not
    declare in the last run. `headrace tables --orphaned` lists them.
    """

    code = "TABLE_IN_USE"


class PinInvalidError(UsageError):
    """A version of a table cannot be pinned: it does not exist, or some of its files may already be deleted.

    The message names the versions that can be pinned.
    """

    code = "PIN_INVALID"
