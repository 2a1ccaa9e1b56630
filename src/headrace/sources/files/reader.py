"""Readers of files."""

from __future__ import annotations

from headrace.errors import SourceLocation
from headrace.sources.answers import Sample
from headrace.sources.files.options import reader_options
from headrace.sources.files.sample import sample_files
from headrace.sources.reader import Reader
from headrace.sources.requests import ReaderDefaults, ReadRequest, Sampling, SourceRead


class FilesReader(Reader):
    """Readers of files."""

    has_path = True

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        return reader_options(request, location)

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        return sample_files(read)
