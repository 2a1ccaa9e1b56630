"""The newest files of a folder, as a preview shows them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

from headrace.errors import SourceLocation
from headrace.runtime.lazy_pyspark import DataFrame
from headrace.sources.answers import Sample, SourceSeen
from headrace.sources.files.options import reader_options
from headrace.sources.reader import Reader
from headrace.sources.requests import ReaderDefaults, ReadRequest, Sampling, SourceRead

FILES = 100
"""The newest files of a folder that are read."""


def sample_files(read: SourceRead) -> Sample:
    """The newest files of a folder."""

    def load(paths: list[str], **options: str) -> DataFrame:
        reader = read.session.read.format(read.request.format).options(**read.request.batch_options)
        if read.request.schema is not None:
            reader = reader.schema(read.request.schema)
        return reader.options(**options).load(paths)

    everything = load(list(read.paths))
    files = sorted(everything.inputFiles(), key=_age, reverse=True)
    chosen = [unquote(file) for file in files[:FILES]]
    seen = SourceSeen(
        kind="files", name=", ".join(read.paths), read=len(chosen), held=len(files), unit="files"
    )
    if len(chosen) == len(files):
        return Sample(everything, seen)
    # Spark finds partition columns below the base path only. The chosen paths are not patterns.
    base = {"basePath": read.paths[0]} if _is_folder(read.paths[0]) else {}
    return Sample(load(chosen, **base, __globPaths__="false"), seen)


def _age(file: str) -> tuple[float, str]:
    """When a file was changed, as far as it lies on this machine; else its name has to do."""
    local = urlparse(file)
    try:
        return Path(unquote(local.path)).stat().st_mtime if local.scheme in ("", "file") else 0.0, file
    except OSError:
        return 0.0, file


def _is_folder(path: str) -> bool:
    return not any(sign in path for sign in "*?[{")


class FilesReader(Reader):
    """Readers of files."""

    has_path = True

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        return reader_options(request, location)

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        return sample_files(read)
