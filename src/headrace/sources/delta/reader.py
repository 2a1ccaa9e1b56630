"""Readers of Delta tables."""

from __future__ import annotations

from headrace.errors import SourceLocation
from headrace.sources.answers import Sample
from headrace.sources.delta.options import reader_options, require_table
from headrace.sources.delta.sample import sample_table
from headrace.sources.reader import Reader
from headrace.sources.requests import ReaderDefaults, ReadRequest, Sampling, SourceRead


class DeltaReader(Reader):
    """Readers of Delta tables."""

    has_path = True
    reads_tables = True
    stand_in = "table"

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        return reader_options(request, location)

    def check_path(self, path: str, location: SourceLocation) -> None:
        require_table(path, location)

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        return sample_table(read)
