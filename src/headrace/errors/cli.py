"""The command line and the demo."""

from __future__ import annotations

from headrace.errors.base import HeadraceError, RunError, UsageError


class CommandLineError(UsageError):
    """The command line names a command, an option or a value that does not exist.

    ``headrace --help`` lists the commands; ``headrace COMMAND --help`` lists a command's options.
    """

    code = "COMMAND_LINE"


class FileExistsInTheWayError(UsageError):
    """A file that the command would write is there already; nothing was changed.

    Choose another folder, or move the file away.
    """

    code = "FILE_EXISTS"


class NotConfirmedError(UsageError):
    """The command destroys something, and nobody could be asked; nothing was done.

    Run it on a terminal and answer, or pass ``--yes``.
    """

    code = "NOT_CONFIRMED"


class LogSettingInvalidError(UsageError):
    """``HEADRACE_LOG_FORMAT`` or ``HEADRACE_LOG_LEVEL`` means nothing. The message lists what they can be."""

    code = "LOG_SETTING_INVALID"


class InternalError(HeadraceError):
    """Headrace met something that it did not expect: a defect of its own.

    The log file that the message names holds the trace; please report it.
    """

    code = "INTERNAL"


class DemoFolderTakenError(UsageError):
    """The demo's folder holds something that no demo has written; nothing was changed.

    ``headrace demo --directory ANOTHER`` writes elsewhere.
    """

    code = "DEMO_FOLDER_TAKEN"


class DemoProducerError(RunError):
    """The demo's own producer could not write its records. ``headrace demo`` starts anew."""

    code = "DEMO_PRODUCER_FAILED"


class DemoDriverError(RunError):
    """The pipeline's process ended by itself, or did not get going. Its log is named."""

    code = "DEMO_DRIVER_FAILED"
