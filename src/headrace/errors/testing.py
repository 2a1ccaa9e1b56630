"""Tests of pipelines on rows in place of their sources."""

from __future__ import annotations

from headrace.errors.base import UsageError


class RowsMissingError(UsageError):
    """The pipeline reads a source for which the test gives no rows.

    Give an empty list for a source without rows: `{"orders": []}`.
    """

    code = "ROWS_MISSING"


class UnusedTestInputError(UsageError):
    """The test gives rows for a source that the pipeline does not read. Correct the name."""

    code = "UNUSED_TEST_INPUT"


class RowsInvalidError(UsageError):
    """A row of a test does not match its source; the message names the source, the batch and the row."""

    code = "ROWS_INVALID"
