"""Runs and refreshes."""

from __future__ import annotations

from headrace.errors.base import RefusedError, RunError, TransientError, UsageError


class FlowFailedError(RunError):
    """A query failed for a reason that repeating it would meet again."""

    code = "FLOW_FAILED"


class FlowInterruptedError(TransientError):
    """A query was interrupted by something that passes; it is started again with backoff."""

    code = "FLOW_INTERRUPTED"


class DriverLostError(RunError):
    """The JVM that did the work has gone away. Start again: nothing is lost or doubled."""

    code = "DRIVER_LOST"


class TableNameTakenError(RefusedError):
    """The session's catalog knows another table by the name of one of the pipeline's.

    Set `database` in the spec to a schema of the pipeline's own.
    """

    code = "TABLE_NAME_TAKEN"


class TableFolderTakenError(RefusedError):
    """Files lie where a table is to be made, and they are no Delta table. Move the folder away."""

    code = "TABLE_FOLDER_TAKEN"


class ViewInputMissingError(RunError):
    """A materialized view reads a table that no run has made yet."""

    code = "VIEW_INPUT_MISSING"


class DatasetUnknownError(UsageError):
    """The pipeline declares no table of this name."""

    code = "DATASET_UNKNOWN"


class FlowUnknownError(UsageError):
    """The pipeline declares no flow of this name."""

    code = "FLOW_UNKNOWN"


class DownstreamStreamsError(UsageError):
    """A table cannot be rebuilt alone, for streams have read its rows. Rebuild them together."""

    code = "DOWNSTREAM_STREAMS"


class RefreshUnfinishedError(RefusedError):
    """A full refresh emptied the table and was interrupted. `headrace full-refresh DATASET` ends it."""

    code = "REFRESH_UNFINISHED"
