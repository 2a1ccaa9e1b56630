"""The newest files of a folder, as a preview shows them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

from headrace.errors import SourceLocation
from headrace.model.folders import FileFolder
from headrace.runtime.lazy_pyspark import DataFrame
from headrace.sources.files.by_header import HeaderedFiles, find_groups
from headrace.sources.files.headers import HeaderRules
from headrace.sources.files.options import FORMAT_OPTION, SPARKS_OPTIONS
from headrace.sources.files.read import any_file_name
from headrace.sources.requests import (
    ADAPTIVE,
    Reader,
    ReaderDefaults,
    ReadRequest,
    Sample,
    Sampling,
    SourceRead,
    SourceSeen,
    unsupported,
)
from headrace.storage.layout import locate_supported

FORMATS = frozenset({"json", "csv", "xml", "parquet", "orc", "text", "avro", "binaryfile"})
PARSED_FORMATS = frozenset({"json", "csv", "xml"})
_CORRUPT_COLUMN = "_corrupt_record"

FILES_MAX_FILES_PER_TRIGGER: Final = 1000
"""Spark's default has no limit: the first batch of an old folder would read all of it."""

FILES_MAX_BYTES_PER_TRIGGER: Final = 256 * 1024 * 1024
"""Of files so large that a thousand of them would be more; Spark takes one of the two limits."""

FILES_MAX_AGE: Final = "36500d"
"""Spark's default passes over files that are a week older than the newest one, silently."""


def _file_limit(request: ReadRequest) -> dict[str, str]:
    """The limit of files or of bytes, whichever the existing files reach first."""
    sizes: list[int] = []
    location = None if request.path is None else locate_supported(request.path)
    if location is not None:
        recursive = (request.value("recursiveFileLookup") or "").lower() == "true"
        glob = request.value("pathGlobFilter")
        folder = FileFolder(path=location.path, storage=location.files, recursive=recursive, glob=glob)
        # The read itself reports a folder that cannot be listed.
        with contextlib.suppress(OSError):
            sizes = [file.size for file in itertools.islice(folder.files(), FILES_MAX_FILES_PER_TRIGGER)]
    if sizes and sum(sizes) / len(sizes) * FILES_MAX_FILES_PER_TRIGGER > FILES_MAX_BYTES_PER_TRIGGER:
        return {"maxBytesPerTrigger": str(FILES_MAX_BYTES_PER_TRIGGER)}
    return {"maxFilesPerTrigger": str(FILES_MAX_FILES_PER_TRIGGER)}


_FILES_REFUSED: Mapping[str, tuple[str, str]] = {
    "ignoreMissingFiles": (
        "skips missing files silently",
        "remove it, and set `on_data_loss: record` in headrace.yml",
    ),
    "ignoreCorruptFiles": ("skips unreadable files silently", "remove it"),
    "fileNameOnly": (
        "treats files of the same name in two folders as one, and reads only the first",
        "remove it: a file is identified by its whole path",
    ),
    "cleanSource": (
        "removes files that `verify` and a full refresh need",
        "remove it, and delete old files after `headrace verify` has compared them",
    ),
    "modifiedBefore": ("would skip files that a stream must read", "remove it"),
    "modifiedAfter": ("would skip files that a stream must read", "remove it"),
}


def _refuse_for_files(request: ReadRequest, location: SourceLocation) -> None:
    for option, (problem, remedy) in _FILES_REFUSED.items():
        value = request.value(option)
        if value is not None and value.lower() not in ("false", "off"):
            raise unsupported(f"{option}={value} {problem}", option, value, remedy, location)
    if request.has("maxFilesPerTrigger") and request.has("maxBytesPerTrigger"):
        problem = "Spark allows maxFilesPerTrigger or maxBytesPerTrigger, not both"
        value = request.value("maxBytesPerTrigger") or ""
        raise unsupported(problem, "maxBytesPerTrigger", value, "remove one of the two", location)
    for option in ("maxFilesPerTrigger", "maxBytesPerTrigger"):
        value = request.value(option)
        if value is not None and not (value.isdigit() and int(value) > 0):
            problem = f"{option}={value} is not a positive whole number"
            raise unsupported(problem, option, value, "write a number such as 1000", location)


def _strict_mode(request: ReadRequest, location: SourceLocation) -> dict[str, str]:
    """The parse mode of `hr.read_files`, where a malformed record never becomes a row of NULLs."""
    mode = (request.value("mode") or "").upper()
    if mode == "DROPMALFORMED":
        remedy = 'read the files with format="text", and handle such records in the query'
        raise unsupported(f"mode={mode} drops malformed records silently", "mode", mode, remedy, location)
    keeps = (request.value("columnNameOfCorruptRecord") or _CORRUPT_COLUMN) in request.columns
    if mode == "PERMISSIVE" and not keeps:
        problem = f"mode={mode} turns malformed records into rows of NULLs"
        remedy = f"remove it, or add a column `{_CORRUPT_COLUMN} STRING` to the schema"
        raise unsupported(problem, "mode", mode, remedy, location)
    return {"mode": "FAILFAST"} if request.format in PARSED_FORMATS and not (mode or keeps) else {}


FILES = 100
"""The newest files of a folder that are read."""


def _age(file: str) -> tuple[float, str]:
    """When a file was changed, as far as it lies on this machine; else its name has to do."""
    local = urlparse(file)
    try:
        return Path(unquote(local.path)).stat().st_mtime if local.scheme in ("", "file") else 0.0, file
    except OSError:
        return 0.0, file


class FilesReader(Reader):
    has_path = True

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        options: dict[str, str] = {}
        SPARKS_OPTIONS.refuse_unknown(request, location)
        if request.streaming:
            _refuse_for_files(request, location)
            # A reader's options override the session's settings of the same names.
            options |= {
                "ignoreMissingFiles": "false",
                "ignoreCorruptFiles": "false",
                **any_file_name(request.path),
            }
            if not request.has("maxFileAge"):
                options["maxFileAge"] = FILES_MAX_AGE
            if not request.has("maxFilesPerTrigger", "maxBytesPerTrigger"):
                options |= {**_file_limit(request), ADAPTIVE: "adaptive"}
        return options | (_strict_mode(request, location) if request.has(FORMAT_OPTION) else {})

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        rules = HeaderRules.of(read.request.options)

        def load(paths: list[str], **options: str) -> DataFrame:
            reader = read.session.read.format(read.request.format).options(**read.request.batch_options)
            if read.request.schema is not None:
                reader = reader.schema(read.request.schema)
            return reader.options(**options).load(paths)

        def load_chosen(paths: list[str], **options: str) -> DataFrame:
            if rules is None:
                return load(paths, **options)
            groups = find_groups(read.session, read.request.options, rules, paths)
            reader = read.session.read.format(read.request.format).options(**read.request.batch_options)
            return HeaderedFiles(reader.options(**options), read.request.schema, rules).load(groups)

        everything = load(list(read.paths))
        files = sorted(everything.inputFiles(), key=_age, reverse=True)
        chosen = [unquote(file) for file in files[:FILES]]
        seen = SourceSeen("files", ", ".join(read.paths), len(chosen), len(files), "files")
        if len(chosen) == len(files) and (rules is None or not files):
            return Sample(everything, seen)
        # Spark finds partition columns below the base path only. The chosen paths are not patterns.
        base = {} if set("*?[{") & set(read.paths[0]) else {"basePath": read.paths[0]}
        return Sample(load_chosen(chosen, **base, __globPaths__="false"), seen)
