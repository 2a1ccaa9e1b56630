"""Checkpoints, tables, ledgers and leases that do not agree, and the storage that holds them."""

from __future__ import annotations

from headrace.errors.base import RefusedError, SetupError


class CheckpointLostError(RefusedError):
    """The table was fed through a checkpoint that is no longer there.

    `headrace run --resume-from-table FLOW` opens a new checkpoint at the table's own positions.
    """

    code = "CHECKPOINT_LOST"


class CheckpointBehindTableError(RefusedError):
    """The table holds batches that the checkpoint does not know: an old copy was restored.

    `headrace run --resume-from-table FLOW` opens a new checkpoint at the table's own positions.
    """

    code = "CHECKPOINT_BEHIND_TABLE"


class CheckpointForeignError(RefusedError):
    """The checkpoint's folder belongs to another flow, or was made by plain Spark."""

    code = "CHECKPOINT_FOREIGN"


class CheckpointCorruptError(RefusedError):
    """A file of the checkpoint cannot be read.

    `headrace run --resume-from-table FLOW` opens a new checkpoint at the table's own positions.
    """

    code = "CHECKPOINT_CORRUPT"


class TableBehindCheckpointError(RefusedError):
    """The checkpoint has finished batches that the table does not hold: the table was rolled back.

    `headrace run --resume-from-table FLOW` reads those batches again.
    """

    code = "TABLE_BEHIND_CHECKPOINT"


class TableLostError(RefusedError):
    """The checkpoint fed a table that is gone, or that was created anew.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "TABLE_LOST"


class FlowRenamedError(RefusedError):
    """A flow that fed the table is no longer declared, and a new one wants to.

    `headrace run --rename-flow OLD=NEW` goes on where the old one stopped;
    `headrace run --new-checkpoint NEW` starts the new one at the beginning of its sources.
    """

    code = "FLOW_RENAMED"


class RenameImpossibleError(RefusedError):
    """A flow cannot take over the checkpoint of its old name.

    `headrace run --rename-flow OLD=NEW` needs a flow OLD that fed the same table and is no longer declared.
    """

    code = "RENAME_IMPOSSIBLE"


class SourcesChangedError(RefusedError):
    """The query reads other sources than its checkpoint has positions for.

    `headrace run --new-checkpoint FLOW` keeps the rows, reads new sources from their beginning, and goes
    on where those were left that any checkpoint of the flow has read;
    `headrace full-refresh DATASET` reads everything again.
    """

    code = "SOURCES_CHANGED"


class ResumeImpossibleError(RefusedError):
    """A flow cannot be resumed from its table alone.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "RESUME_IMPOSSIBLE"


class SecondDriverError(RefusedError):
    """Another process runs this flow. Stop it, or wait until its lease has ended."""

    code = "SECOND_DRIVER"


class LeaseLostError(RefusedError):
    """Another process has taken the flow over while this one was away; nothing was written."""

    code = "LEASE_LOST"


class BatchFencedError(RefusedError):
    """Another driver has committed with this checkpoint while the batch was being written."""

    code = "BATCH_FENCED"


class StorageUnwritableError(SetupError):
    """The storage cannot be written. Correct its permissions, or `storage` in the spec."""

    code = "STORAGE_UNWRITABLE"


class StorageNewerError(RefusedError):
    """The storage was written by a newer version of Headrace. Install that version."""

    code = "STORAGE_NEWER"
