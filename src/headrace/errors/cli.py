"""The command line and the demo."""

from __future__ import annotations

from headrace.errors.base import HeadraceError, RunError, UsageError


class CommandLineError(UsageError):
    """The command line has an unknown command or option, or a wrong value.

    `headrace --help` lists the commands; `headrace COMMAND --help` lists the options of a command.
    """

    code = "COMMAND_LINE"


class FileExistsInTheWayError(UsageError):
    """A file that the command would write exists already; nothing was changed.

    Choose another folder, or move the file away.
    """

    code = "FILE_EXISTS"


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
