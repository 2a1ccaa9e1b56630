"""The rows of a table, as a preview shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headrace.errors import OptionInvalidError, SourceLocation, TableNotFoundError
from headrace.runtime.lazy_pyspark import DataFrame, F
from headrace.sources.answers import Sample, SourceSeen
from headrace.sources.delta.starting import CHANGE_FEED, ERASURES_ONLY, reads_feed
from headrace.sources.requests import (
    ADAPTIVE,
    LIMITS,
    KnownOptions,
    Reader,
    ReaderDefaults,
    ReadRequest,
    Sampling,
    SourceRead,
    refuse_silent_loss,
)
from headrace.storage.locate import locate, locate_supported

_STARTS = ("startingVersion", "startingTimestamp")
_CHANGE_OPTIONS = ("skipChangeCommits", "ignoreDeletes", "ignoreChanges", *CHANGE_FEED)
_BOTH = ("path", "readChangeFeed", "readChangeData", "startingVersion", "startingTimestamp")
_SIZE = re.compile(r"0*[1-9][0-9]*([bkmgtp]|[kmgtp]b)?")
_VALUES: Mapping[str, tuple[re.Pattern[str], str]] = {
    "maxFilesPerTrigger": (re.compile(r"0*[1-9][0-9]*"), "a whole number above 0"),
    "maxBytesPerTrigger": (_SIZE, "a size above 0 such as 64mb"),
    **dict.fromkeys(
        ("ignoreDeletes", "ignoreChanges", "ignoreFileDeletion", "skipChangeCommits", *CHANGE_FEED),
        (re.compile("true|false"), "true or false"),
    ),
}
"""The values of options that Spark would refuse only when the stream starts."""
_KNOWN = KnownOptions(
    stream=(
        *_BOTH,
        *("maxFilesPerTrigger", "maxBytesPerTrigger", "ignoreDeletes", "ignoreChanges", "ignoreFileDeletion"),
        *("skipChangeCommits", "excludeRegex", "failOnDataLoss", "withEventTimeOrder"),
        *("schemaTrackingLocation", "schemaLocation", "streamingSourceTrackingId"),
        *("allowSourceColumnDrop", "allowSourceColumnRename", "allowSourceColumnTypeChange"),
        *("allowSourceColumnRenameAndDrop",),
    ),
    batch=(*_BOTH, "endingVersion", "endingTimestamp", "versionAsOf", "timestampAsOf"),
    prefixes=("fs.", "dfs.", "hadoop."),
    marks=frozenset({"headrace.location", ADAPTIVE, ERASURES_ONLY}),
)

DELTA_MAX_BYTES_PER_TRIGGER: Final = 64 << 20
"""Bytes of a first batch. Spark's own default has no such limit: one version of a table holds anything."""

DELTA_MAX_FILES_PER_TRIGGER: Final = 1000
"""Delta's own default, which it drops as soon as a limit of bytes is set."""


def _invalid(problem: str, remedy: str, location: SourceLocation) -> OptionInvalidError:
    return OptionInvalidError(
        f"a stream of a Delta table: {problem}",
        location=location,
        remedies=[remedy],
        params={"problem": problem},
    )


def changes_of(whole: DataFrame, table: str, options: Mapping[str, str]) -> DataFrame:
    """The changes of a table that a new stream of its change feed would give."""
    chosen = {key.lower(): value for key, value in options.items()}
    version = chosen.get("startingversion", "latest")
    if version == "latest" and "startingtimestamp" not in chosen:
        # What such a stream gives at its start: the table as it is.
        return as_inserts(whole)
    reader = whole.sparkSession.read.option("readChangeFeed", "true")
    for key in ("startingVersion", "startingTimestamp"):
        if key.lower() in chosen:
            reader = reader.option(key, chosen[key.lower()])
    return reader.table(table)


def as_inserts(frame: DataFrame) -> DataFrame:
    """The rows of a table, in the form of inserted rows of its change feed."""
    return frame.withColumns(
        {
            "_change_type": F.lit("insert"),
            "_commit_version": F.lit(0).cast("long"),
            "_commit_timestamp": F.current_timestamp(),
        }
    )


class DeltaReader(Reader):
    has_path = True
    reads_tables = True
    stand_in = "table"

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        _KNOWN.refuse_unknown(request, location)
        if not request.streaming:
            return {}
        refuse_silent_loss(request, location)
        for name, (pattern, wanted) in _VALUES.items():
            value = request.value(name)
            if value is not None and not pattern.fullmatch(value.strip().lower()):
                raise _invalid(f"{name} must be {wanted}, not {value!r}", f"write {wanted}", location)
        if path := request.path or request.value("path"):
            # A flow reads the log of a table that it streams, so its kind of storage must be supported.
            locate(path, source=location)
        options: dict[str, str] = {}
        if not request.has(*LIMITS):
            options["maxFilesPerTrigger"] = str(DELTA_MAX_FILES_PER_TRIGGER)
            options["maxBytesPerTrigger"] = str(DELTA_MAX_BYTES_PER_TRIGGER)
            options[ADAPTIVE] = "adaptive"
        if not request.has(*_CHANGE_OPTIONS):
            # The log may lack the commits of an erasure. The guard refuses every other gap.
            options |= {"skipChangeCommits": "true", ERASURES_ONLY: "erasures", "failOnDataLoss": "false"}
        # Spark would refuse these values, too, only when the stream starts.
        version, moment = map(request.value, _STARTS)
        if version is not None and moment is not None:
            raise _invalid("startingVersion and startingTimestamp are both set", "remove one", location)
        if version is not None and not (version.strip().isdigit() or version.strip().lower() == "latest"):
            problem = f"startingVersion must be a table version or `latest`, not {version.strip()!r}"
            raise _invalid(problem, 'write the number of a version, such as "0", or "latest"', location)
        return options

    def check_path(self, path: str, location: SourceLocation) -> None:
        """Check that a table with a local path exists; other paths are left to Spark."""
        folder = locate_supported(path)
        if folder is None or (folder / "_delta_log").exists():
            return
        raise TableNotFoundError(
            f"there is no Delta table at {folder}",
            location=location,
            facts=["the folder has no _delta_log" if folder.exists() else "the folder does not exist"],
            remedies=["correct the path, or run the pipeline that creates the table"],
            params={"path": str(folder)},
        )

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        """The rows of a table, or its changes, as far as the reader asks for them."""
        path = read.paths[0]
        rows = read.session.read.format("delta").load(path)
        if reads_feed(read.request.options):
            rows = changes_of(rows, f"delta.`{path}`", read.request.options)
        return Sample(rows, SourceSeen("table", path))
