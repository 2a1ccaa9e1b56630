"""The reads of one kind of source in the user's code, before Spark gets them."""

from __future__ import annotations

from typing import ClassVar, Literal

from headrace.errors import SourceLocation, SourceUnsupportedError
from headrace.sources.answers import Sample
from headrace.sources.requests import ReaderDefaults, ReadRequest, Sampling, SourceRead

StandIn = Literal["topic", "table", "folder"]


class Reader:
    """Checks and completes readers; these are the answers for formats that Headrace does not know."""

    has_path: ClassVar[bool] = False
    """Whether the option ``path`` is a path of a file system, so that a relative one gets a base folder."""

    reads_tables: ClassVar[bool] = False
    """Whether the tables of a storage are read with this format."""

    stand_in: ClassVar[StandIn] = "folder"
    """What takes the place of the source in a test."""

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        """The options to add to a reader, after those of the user were checked.

        Raises:
            OptionUnsupportedError: The user's options would lose records silently.
            OptionUnknownError: The reader does not know one of them.
            OptionInvalidError: A value is invalid.
        """
        return {}

    def check_path(self, path: str, location: SourceLocation) -> None:
        """Check that the folder of a read exists, where Spark's own error would name no location."""
        return

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        """The newest records of a streaming read as a batch, for a preview.

        Raises:
            SourceUnsupportedError: Only a stream can read this format.
        """
        format = read.request.format
        raise SourceUnsupportedError(
            f"a preview cannot read the stream `{format}`",
            location=read.location,
            facts=["a preview reads batches, and Headrace does not know how to read this format as a batch"],
            remedies=["headrace run reads it; headrace read shows the rows of the table"],
            params={"format": format},
        )
