"""Errors of commands that start no Spark: verify, status, read."""

from __future__ import annotations

from headrace.errors.base import RunError, UsageError


class TableUnknownError(UsageError):
    """The storage holds no table of this name. `headrace status` lists the tables."""

    code = "TABLE_UNKNOWN"


class NothingToVerifyError(UsageError):
    """The storage holds no table of this pipeline yet. `headrace run` creates them."""

    code = "NOTHING_TO_VERIFY"


class TableUnreadableError(RunError):
    """A table cannot be read: its log or a data file is damaged, or uses a feature that the reader lacks.

    Run `headrace verify`: it names the file.

    If a data file is missing or damaged, `headrace full-refresh TABLE` writes it again, if the sources still
    have the records.

    If a string column has bytes that are not valid UTF-8 (`FILE_NOT_UTF8`), only Spark can read the file.
    Change the query so that it keeps the column as BINARY, or replaces such bytes with
    `make_valid_utf8(...)`; then run `headrace full-refresh TABLE`.

    If the table uses a Delta feature that the reader does not support, read it with Spark:
    `spark.read.format("delta").load(PATH)`.
    """

    code = "TABLE_UNREADABLE"


class ReadColumnUnknownError(UsageError):
    """The table has no such column. The message lists the columns and suggests the nearest name."""

    code = "READ_COLUMN_UNKNOWN"


class ReadVersionUnknownError(UsageError):
    """The table has no such version, or its log no longer has it.

    The message names the versions that the log has.
    """

    code = "READ_VERSION_UNKNOWN"


class ReadVersionGoneError(RunError):
    """The log of the table has the version, but a vacuum has removed some of its data files.

    The message names the versions whose data files all exist.
    """

    code = "READ_VERSION_GONE"


class ReadConditionInvalidError(UsageError):
    """The condition of `headrace read --where` is not valid SQL for this table."""

    code = "READ_CONDITION_INVALID"
