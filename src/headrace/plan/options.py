"""The options that the exactly-once protocol adds to every read, and those that it refuses."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.errors import OptionUnsupportedError, SourceLocation
from headrace.model.folders import FileFolder, local_path
from headrace.plan.option_names import refuse_unknown
from headrace.sources.delta.starting import CHANGE_FEED, ERASURES_ONLY
from headrace.sources.files.read import FORMAT_OPTION
from headrace.sources.files.source import FORMATS as FILE_FORMATS
from headrace.sources.kafka.read import LOSS_POLICY
from headrace.sources.limits import (
    DELTA_MAX_BYTES_PER_TRIGGER,
    DELTA_MAX_FILES_PER_TRIGGER,
    FILES_MAX_AGE,
    FILES_MAX_BYTES_PER_TRIGGER,
    FILES_MAX_FILES_PER_TRIGGER,
    KAFKA_MAX_OFFSETS_PER_TRIGGER,
)

PARSED_FORMATS = frozenset({"json", "csv", "xml"})
ADAPTIVE = "headrace.limit"
"""An option that Spark ignores: it marks sources whose limit adapts to the duration of batches."""
_LIMITS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxFilesPerTrigger")
_CHANGE_OPTIONS = ("skipChangeCommits", "ignoreDeletes", "ignoreChanges", *CHANGE_FEED)
_CORRUPT_COLUMN = "_corrupt_record"


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """What a query sets on a reader.

    Args:
        streaming: Whether a stream reads.
        format: Spark's name of the format, in lower case.
        options: The options that the user has set.
        columns: The columns of an explicit schema.
        path: The folder of files.
        schema: The explicit schema: DDL or a ``StructType``.
    """

    streaming: bool
    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    path: str | None = None
    schema: Any = None

    def with_options(self, options: Mapping[str, str]) -> ReadRequest:
        """The request with further options."""
        return replace(self, options={**self.options, **options})

    def has(self, *names: str) -> bool:
        """Whether one of these options is set, in any case, as in Spark."""
        keys = {key.lower() for key in self.options}
        return any(name.lower() in keys for name in names)

    @property
    def reads_changes(self) -> bool:
        """Whether the change feed of a table is read, and not its rows."""
        return any((self.value(name) or "").lower() == "true" for name in CHANGE_FEED)

    def value(self, name: str) -> str | None:
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), None)


def protocol_options(
    request: ReadRequest, location: SourceLocation, kafka_limit: int = KAFKA_MAX_OFFSETS_PER_TRIGGER
) -> dict[str, str]:
    """The options to add to those that the user has set.

    Args:
        request: The user's read.
        location: Its location.
        kafka_limit: The maximum number of records in a first batch from Kafka.

    Raises:
        OptionUnsupportedError: The user's options would lose records silently.
        OptionUnknownError: The reader does not know one of them.
    """
    options: dict[str, str] = {}
    refuse_unknown(request.format, request.streaming, request.options, location)
    if request.format == "kafka":
        if not request.streaming:
            _refuse_silent_loss(request, location)
        elif not _fails_on_loss(request):
            # Spark would skip lost records silently; with the policy a flow continues too, and the ledger
            # records the loss.
            options[LOSS_POLICY] = "record"
        _refuse_uncommitted(request, location)
        options["failOnDataLoss"] = "true"
        # Without it Spark also reads records of aborted transactions.
        if not request.has("kafka.isolation.level"):
            options["kafka.isolation.level"] = "read_committed"
        if request.streaming and not request.has(*_LIMITS):
            options |= {"maxOffsetsPerTrigger": str(kafka_limit), ADAPTIVE: "adaptive"}
    elif request.format == "delta" and request.streaming:
        _refuse_silent_loss(request, location)
        if not request.has(*_LIMITS):
            options["maxFilesPerTrigger"] = str(DELTA_MAX_FILES_PER_TRIGGER)
            options["maxBytesPerTrigger"] = str(DELTA_MAX_BYTES_PER_TRIGGER)
            options[ADAPTIVE] = "adaptive"
        if not request.has(*_CHANGE_OPTIONS):
            options |= {"skipChangeCommits": "true", ERASURES_ONLY: "erasures"}
    elif request.format in FILE_FORMATS:
        if request.streaming:
            options |= _file_options(request, location)
        if request.has(FORMAT_OPTION):
            options |= _strict_mode(request, location)
    return options


def _file_options(request: ReadRequest, location: SourceLocation) -> dict[str, str]:
    """The options to add to a stream of files."""
    _refuse_for_files(request, location)
    # A reader's options override the session's settings of the same names.
    options = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
    if not request.has("maxFileAge"):
        options["maxFileAge"] = FILES_MAX_AGE
    if not request.has("maxFilesPerTrigger", "maxBytesPerTrigger"):
        options |= _file_limit(request)
        options[ADAPTIVE] = "adaptive"
    return options


def _file_limit(request: ReadRequest) -> dict[str, str]:
    """A limit of files or of bytes: the one that the existing files would reach first."""
    sizes: list[int] = []
    if request.path is not None:
        recursive = (request.value("recursiveFileLookup") or "").lower() == "true"
        path = local_path(request.path) or request.path
        folder = FileFolder(path=path, recursive=recursive, glob=request.value("pathGlobFilter"))
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
            raise _unsupported(f"{option}={value} {problem}", option, value, remedy, location)
    if request.has("maxFilesPerTrigger") and request.has("maxBytesPerTrigger"):
        problem = "Spark allows maxFilesPerTrigger or maxBytesPerTrigger, not both"
        value = request.value("maxBytesPerTrigger") or ""
        raise _unsupported(problem, "maxBytesPerTrigger", value, "remove one of the two", location)
    for option in ("maxFilesPerTrigger", "maxBytesPerTrigger"):
        value = request.value(option)
        if value is not None and not (value.isdigit() and int(value) > 0):
            problem = f"{option}={value} is not a positive whole number"
            raise _unsupported(problem, option, value, "write a number such as 1000", location)


def _unsupported(
    problem: str, option: str, value: str, remedy: str, location: SourceLocation
) -> OptionUnsupportedError:
    return OptionUnsupportedError(
        problem, location=location, remedies=[remedy], params={"option": option, "value": value}
    )


def _strict_mode(request: ReadRequest, location: SourceLocation) -> dict[str, str]:
    """The parse mode of `hr.read_files`, where a malformed record never becomes a row of NULLs."""
    mode = (request.value("mode") or "").upper()
    if mode == "DROPMALFORMED":
        remedy = 'read the files with format="text", and handle such records in the query'
        raise _unsupported(f"mode={mode} drops malformed records silently", "mode", mode, remedy, location)
    keeps = (request.value("columnNameOfCorruptRecord") or _CORRUPT_COLUMN) in request.columns
    if mode == "PERMISSIVE" and not keeps:
        problem = f"mode={mode} turns malformed records into rows of NULLs"
        remedy = f"remove it, or add a column `{_CORRUPT_COLUMN} STRING` to the schema"
        raise _unsupported(problem, "mode", mode, remedy, location)
    return {"mode": "FAILFAST"} if request.format in PARSED_FORMATS and not (mode or keeps) else {}


def _fails_on_loss(request: ReadRequest) -> bool:
    return (request.value("failOnDataLoss") or "true").lower() == "true"


def _refuse_silent_loss(request: ReadRequest, location: SourceLocation) -> None:
    if _fails_on_loss(request):
        return
    raise OptionUnsupportedError(
        "failOnDataLoss=false skips lost records silently",
        location=location,
        remedies=["remove the option"],
        params={"option": "failOnDataLoss", "value": "false"},
    )


def _refuse_uncommitted(request: ReadRequest, location: SourceLocation) -> None:
    level = request.value("kafka.isolation.level")
    if level is None or level.lower() == "read_committed":
        return
    raise OptionUnsupportedError(
        f"kafka.isolation.level={level} reads records of aborted transactions",
        location=location,
        facts=["`headrace verify` counts committed records only, so it would find additional rows"],
        remedies=["remove the option: flows read with read_committed"],
        params={"option": "kafka.isolation.level", "value": level},
    )
