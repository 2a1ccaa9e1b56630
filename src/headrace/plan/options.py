"""What every read gets from the exactly-once protocol, whoever wrote it."""

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

_PARSED_FORMATS = frozenset({"json", "csv", "xml"})
ADAPTIVE = "headrace.limit"
"""An option that Spark does not know: it marks sources whose limit follows what batches take."""
_LIMITS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxFilesPerTrigger")
_CHANGE_OPTIONS = ("skipChangeCommits", "ignoreDeletes", "ignoreChanges", *CHANGE_FEED)
_CORRUPT_COLUMN = "_corrupt_record"


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """What a query asks of a reader.

    Args:
        streaming: Whether a stream reads.
        format: Spark's name of the format, in lower case.
        options: The options that the user has set.
        columns: The columns of an explicit schema.
        path: The folder of files.
        schema: The explicit schema, as the user gave it: DDL, or a ``StructType``.
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
        """Whether any of these options is set; Spark ignores their case."""
        keys = {key.lower() for key in self.options}
        return any(name.lower() in keys for name in names)

    @property
    def reads_changes(self) -> bool:
        """Whether the change feed of a table is read and not its rows."""
        return any((self.value(name) or "").lower() == "true" for name in CHANGE_FEED)

    def value(self, name: str) -> str | None:
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), None)


def protocol_options(
    request: ReadRequest, location: SourceLocation, kafka_limit: int = KAFKA_MAX_OFFSETS_PER_TRIGGER
) -> dict[str, str]:
    """The options that a read needs beyond what the user has set.

    Args:
        request: What the user asks for.
        location: Where.
        kafka_limit: The records that a first batch from Kafka may take.

    Raises:
        OptionUnsupportedError: The user's options would lose records silently.
        OptionUnknownError: One of them means nothing to the reader.
    """
    options: dict[str, str] = {}
    refuse_unknown(request.format, request.streaming, request.options, location)
    if request.format == "kafka":
        if not request.streaming:
            _refuse_silent_loss(request, location)
        elif not _fails_on_loss(request):
            # Spark passes over what is lost without a word; with the policy a flow goes on as well,
            # and the ledger keeps what was lost.
            options[LOSS_POLICY] = "record"
        _refuse_uncommitted(request, location)
        options["failOnDataLoss"] = "true"
        # Without it Spark also reads the records of transactions that were aborted.
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
        if request.format in _PARSED_FORMATS and not _keeps_bad_records(request):
            options["mode"] = "FAILFAST"
    return options


def _file_options(request: ReadRequest, location: SourceLocation) -> dict[str, str]:
    """What a stream of files needs beyond what the user has set."""
    _refuse_for_files(request, location)
    # A reader's own options win over the session's settings of the same names.
    options = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
    if not request.has("maxFileAge"):
        options["maxFileAge"] = FILES_MAX_AGE
    if not request.has("maxFilesPerTrigger", "maxBytesPerTrigger"):
        options |= _file_limit(request)
        options[ADAPTIVE] = "adaptive"
    return options


def _file_limit(request: ReadRequest) -> dict[str, str]:
    """A limit of files or of bytes, whichever comes first with files like those that are there."""
    sizes: list[int] = []
    if request.path is not None:
        recursive = (request.value("recursiveFileLookup") or "").lower() == "true"
        path = local_path(request.path) or request.path
        folder = FileFolder(path=path, recursive=recursive, glob=request.value("pathGlobFilter"))
        # What cannot be listed is reported by whoever has to read it.
        with contextlib.suppress(OSError):
            sizes = [file.size for file in itertools.islice(folder.files(), FILES_MAX_FILES_PER_TRIGGER)]
    if sizes and sum(sizes) / len(sizes) * FILES_MAX_FILES_PER_TRIGGER > FILES_MAX_BYTES_PER_TRIGGER:
        return {"maxBytesPerTrigger": str(FILES_MAX_BYTES_PER_TRIGGER)}
    return {"maxFilesPerTrigger": str(FILES_MAX_FILES_PER_TRIGGER)}


_FILES_REFUSED: Mapping[str, tuple[str, str]] = {
    "ignoreMissingFiles": (
        "passes over files that are gone, without a word",
        "leave it out, and write `on_data_loss: record` in headrace.yml",
    ),
    "ignoreCorruptFiles": ("passes over files that cannot be read, without a word", "leave it out"),
    "fileNameOnly": (
        "takes files of the same name in two folders for one, and reads only the first",
        "leave it out: a file is known by its whole path",
    ),
    "cleanSource": (
        "takes files away that no proof and no full refresh could look at any more",
        "leave it out, and clean up files that `headrace verify` has proven",
    ),
    "modifiedBefore": ("would leave out files that a stream has to read", "leave it out"),
    "modifiedAfter": ("would leave out files that a stream has to read", "leave it out"),
}


def _refuse_for_files(request: ReadRequest, location: SourceLocation) -> None:
    for option, (problem, remedy) in _FILES_REFUSED.items():
        value = request.value(option)
        if value is not None and value.lower() not in ("false", "off"):
            raise _unsupported(f"{option}={value} {problem}", option, value, remedy, location)
    mode = (request.value("mode") or "").upper()
    if mode == "DROPMALFORMED":
        remedy = 'read the files with format="text", and handle such records in the query'
        problem = f"mode={mode} drops records that cannot be read, without a word"
        raise _unsupported(problem, "mode", mode, remedy, location)
    if mode == "PERMISSIVE" and not _has_corrupt_column(request):
        remedy = (
            f"leave it out, or give the schema a column `{_CORRUPT_COLUMN} STRING` that keeps such records"
        )
        problem = f"mode={mode} turns records that cannot be read into rows of nulls"
        raise _unsupported(problem, "mode", mode, remedy, location)
    if request.has("maxFilesPerTrigger") and request.has("maxBytesPerTrigger"):
        problem = "Spark takes a limit of files or a limit of bytes, and not both"
        value = request.value("maxBytesPerTrigger") or ""
        raise _unsupported(problem, "maxBytesPerTrigger", value, "leave one of the two out", location)
    for option in ("maxFilesPerTrigger", "maxBytesPerTrigger"):
        value = request.value(option)
        if value is not None and not (value.isdigit() and int(value) > 0):
            problem = f"{option}={value} is not a whole number above 0"
            raise _unsupported(problem, option, value, "write it in digits", location)


def _unsupported(
    problem: str, option: str, value: str, remedy: str, location: SourceLocation
) -> OptionUnsupportedError:
    return OptionUnsupportedError(
        problem, location=location, remedies=[remedy], params={"option": option, "value": value}
    )


def _has_corrupt_column(request: ReadRequest) -> bool:
    return (request.value("columnNameOfCorruptRecord") or _CORRUPT_COLUMN) in request.columns


def _keeps_bad_records(request: ReadRequest) -> bool:
    # Spark's own default turns what it cannot parse into a row of nulls. A user who names the
    # column for such records has them in the table, so nothing is lost.
    return request.has("mode") or _has_corrupt_column(request)


def _fails_on_loss(request: ReadRequest) -> bool:
    return (request.value("failOnDataLoss") or "true").lower() == "true"


def _refuse_silent_loss(request: ReadRequest, location: SourceLocation) -> None:
    if _fails_on_loss(request):
        return
    raise OptionUnsupportedError(
        "failOnDataLoss=false passes over lost records without a word",
        location=location,
        remedies=["leave the option out"],
        params={"option": "failOnDataLoss", "value": "false"},
    )


def _refuse_uncommitted(request: ReadRequest, location: SourceLocation) -> None:
    level = request.value("kafka.isolation.level")
    if level is None or level.lower() == "read_committed":
        return
    raise OptionUnsupportedError(
        f"kafka.isolation.level={level} reads the records of transactions that were aborted",
        location=location,
        facts=["no such record counts as one that the source holds, so no proof would hold"],
        remedies=["leave the option out: flows read with read_committed"],
        params={"option": "kafka.isolation.level", "value": level},
    )
