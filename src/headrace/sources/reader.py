"""The reads of one kind of source in the user's code, before Spark gets them."""

from __future__ import annotations

from typing import ClassVar

from headrace.errors import SourceLocation
from headrace.sources.requests import ReaderDefaults, ReadRequest


class Reader:
    """Checks and completes readers; these are the answers for formats that Headrace does not know."""

    has_path: ClassVar[bool] = False
    """Whether the option ``path`` is a path of a file system, so that a relative one gets a base folder."""

    reads_tables: ClassVar[bool] = False
    """Whether the tables of a storage are read with this format."""

    record_columns: ClassVar[tuple[str, ...]] = ()
    """The columns that tell which record a row is: topic, partition, offset, timestamp."""

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        """The options to add to a reader, after those of the user were checked.

        Args:
            request: The user's read.
            location: Its location.
            defaults: What readers get where the user sets nothing.

        Raises:
            OptionUnsupportedError: The user's options would lose records silently.
            OptionUnknownError: The reader does not know one of them.
            OptionInvalidError: A value is invalid.
        """
        return {}

    def check_path(self, path: str, location: SourceLocation) -> None:
        """Check that the folder of a read exists, where Spark's own error would name no location."""
        return
