"""The command line and the demo."""

from __future__ import annotations

from headrace.errors.base import HeadraceError, RunError, UsageError


class CommandLineError(UsageError):
    """The command line has an unknown command or option, or a wrong value.

    `headrace --help` lists the commands; `headrace COMMAND --help` lists the options of a command.
    """

    code = "COMMAND_LINE"


class ConflictingRefreshOptionsError(UsageError):
    """`--full-refresh-all` rebuilds all datasets, so it cannot be combined with options that name datasets.

    Remove one of the options.
    """

    code = "CONFLICTING_PIPELINE_REFRESH_OPTIONS"


class FileExistsInTheWayError(UsageError):
    """A file that the command would write exists already; nothing was changed.

    Choose another folder, or move the file away.
    """

    code = "FILE_EXISTS"


class IngestChangedError(UsageError):
    """The options of `headrace ingest` differ from the options with which the table was created.

    Run the command again with the original options, or without options: the original options are stored in
    the storage. To create a different table, use `--table NAME`.
    """

    code = "INGEST_CHANGED"


class IngestTableTakenError(UsageError):
    """`headrace ingest` would write to a table that it did not create; nothing was read or written.

    To create a different table, use `--table NAME`. To continue a table of a pipeline, run that pipeline.
    """

    code = "INGEST_TABLE_TAKEN"


class NotConfirmedError(UsageError):
    """The command removes data and asks first, but it does not run in a terminal; nothing was done.

    Run it in a terminal and answer, or add `--yes`.
    """

    code = "NOT_CONFIRMED"


class LogSettingInvalidError(UsageError):
    """`HEADRACE_LOG_FORMAT` or `HEADRACE_LOG_LEVEL` has an unknown value.

    The message lists the valid ones.
    """

    code = "LOG_SETTING_INVALID"


class InternalError(HeadraceError):
    """Headrace failed with an unexpected exception: this is a bug in Headrace.

    Please report it with the log file that the message names; the file has the stack trace.
    """

    code = "INTERNAL"


class DemoFolderTakenError(UsageError):
    """The folder of the demo holds files that the demo did not create; nothing was changed.

    `headrace demo --directory ANOTHER` writes to another folder.
    """

    code = "DEMO_FOLDER_TAKEN"


class DemoProducerError(RunError):
    """The producer of the demo could not write its records. Start `headrace demo` again."""

    code = "DEMO_PRODUCER_FAILED"


class DemoDriverError(RunError):
    """The process of the demo's pipeline ended too early, or did not start. The message names its log."""

    code = "DEMO_DRIVER_FAILED"


class SqlNameTakenError(UsageError):
    """`headrace sql` would define a table, a scan or a stream whose name is in use; nothing was changed.

    Write `IF NOT EXISTS` to keep the existing definition, or choose a different name.
    """

    code = "SQL_NAME_TAKEN"


class SqlNameUnknownError(UsageError):
    """A statement of `headrace sql` names a table, a scan or a stream that does not exist.

    `SHOW STREAMS` lists the streams. A stream can only write tables that were created with `CREATE TABLE` in
    `headrace sql`.
    """

    code = "SQL_NAME_UNKNOWN"


class StreamNotStoppedError(RunError):
    """A stream of `headrace sql` did not stop.

    The message names the process. If the process runs on another machine, stop it there.
    """

    code = "STREAM_NOT_STOPPED"


class StreamNotStartedError(RunError):
    """The process of a stream of `headrace sql` ended before the stream began. The message names its log."""

    code = "STREAM_NOT_STARTED"
