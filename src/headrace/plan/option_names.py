"""The options of Spark's Kafka and Delta readers, which ignore unknown options silently."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from headrace.errors import OptionUnknownError, SourceLocation
from headrace.sources.kafka.read import ALLOW_NO_TOPICS, LOSS_POLICY

_KAFKA = (
    *("subscribe", "subscribePattern", "assign", "includeHeaders", "failOnDataLoss"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("minPartitions", "maxRecordsPerPartition", "groupIdPrefix"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
)
_KAFKA_STREAM = (
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    "startingOffsetsByTimestampStrategy",
    ALLOW_NO_TOPICS,
)
_KAFKA_BATCH = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

_DELTA = ("path", "readChangeFeed", "readChangeData", "startingVersion", "startingTimestamp")
_DELTA_STREAM = (
    *("maxFilesPerTrigger", "maxBytesPerTrigger", "ignoreDeletes", "ignoreChanges", "ignoreFileDeletion"),
    *("skipChangeCommits", "excludeRegex", "failOnDataLoss", "withEventTimeOrder"),
    *("schemaTrackingLocation", "schemaLocation", "streamingSourceTrackingId"),
    *("allowSourceColumnDrop", "allowSourceColumnRename", "allowSourceColumnTypeChange"),
    *("allowSourceColumnRenameAndDrop",),
)
_DELTA_BATCH = ("endingVersion", "endingTimestamp", "versionAsOf", "timestampAsOf")

_KNOWN = {
    ("kafka", True): (*_KAFKA, *_KAFKA_STREAM),
    ("kafka", False): (*_KAFKA, *_KAFKA_BATCH),
    ("delta", True): (*_DELTA, *_DELTA_STREAM),
    ("delta", False): (*_DELTA, *_DELTA_BATCH),
}
_PREFIXES = {"kafka": ("kafka.",), "delta": ("fs.", "dfs.", "hadoop.")}
"""Prefixes of options that the reader passes on."""

_MARKS = frozenset({"headrace.location", "headrace.changes", "headrace.limit", LOSS_POLICY})
"""Options that Spark ignores, and that Headrace has added to a reader."""


def refuse_unknown(format: str, streaming: bool, names: Iterable[str], location: SourceLocation) -> None:
    """Refuse options that the reader would ignore.

    Args:
        format: Spark's name of the format; only ``kafka`` and ``delta`` are checked.
        streaming: Whether a stream reads.
        names: The options as the user wrote them.
        location: The user's line.

    Raises:
        OptionUnknownError: One is neither an option of the reader nor passed on by it.
    """
    known = _KNOWN.get((format, streaming))
    if known is None:
        return
    lowered = {name.lower() for name in known}
    for name in names:
        # A reader that is used a second time already has the options that Headrace adds.
        is_known = name.lower() in lowered or name in _MARKS
        if not is_known and not name.lower().startswith(_PREFIXES[format]):
            raise _unknown(format, streaming, name, known, location)


def _unknown(
    format: str, streaming: bool, name: str, known: tuple[str, ...], location: SourceLocation
) -> OptionUnknownError:
    other = _KNOWN[format, not streaming]
    lowered = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.7)
    kind = "stream" if streaming else "batch"
    if name.lower() in {one.lower() for one in other}:
        facts = [f"it is an option of {'batch reads' if streaming else 'streams'}, and this is a {kind}"]
        remedies = ["remove it"]
    elif near:
        facts, remedies = ["Spark would ignore it"], [f"did you mean `{lowered[near[0]]}`?"]
    else:
        facts = ["Spark would ignore it"]
        remedies = [
            "settings of Kafka's own client start with `kafka.`" if format == "kafka" else "remove it"
        ]
    return OptionUnknownError(
        f"Unknown option `{name}` of the `{format}` reader",
        location=location,
        facts=facts,
        remedies=remedies,
        params={"format": format, "option": name, "suggestion": lowered[near[0]] if near else None},
    )
