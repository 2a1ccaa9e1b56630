"""What Spark has planned and finished: the checkpoint's own offset and commit logs.

Spark writes ``offsets/N`` before batch N starts, and ``commits/N`` after it has ended; a batch's
range is ``offsets/N`` against ``offsets/N-1``, and for N = 0 the start is in ``sources/<i>/0``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.model.ranges import Position, SourceRange
from headrace.state.identity import SourceIdentity, corrupt

_VERSION = "v1"
_UNSET = "-"
"""Spark's mark for a source that has no offset yet."""
_SEEDED_MS = 0
"""The time of a batch that never was: Spark's own batches carry the clock's."""


@dataclass(frozen=True)
class LogState:
    """How far a checkpoint has come; -1 before the first batch."""

    last_planned: int
    last_finished: int


def load_state(checkpoint: Path) -> LogState:
    """The last batch that Spark planned, and the last that it finished."""
    return LogState(_last(checkpoint / "offsets"), _last(checkpoint / "commits"))


def load_positions(checkpoint: Path, batch: int) -> tuple[Position | None, ...]:
    """Each source's position at the end of a batch, in Spark's order of sources.

    Raises:
        CheckpointCorruptError: The file is missing, or is not what Spark writes.
    """
    path = checkpoint / "offsets" / str(batch)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) < 3 or lines[0] != _VERSION:
            raise ValueError(f"not an offset log of Spark's: it has {len(lines)} lines")
        return tuple(None if line == _UNSET else _as_position(json.loads(line)) for line in lines[2:])
    except (OSError, ValueError) as error:
        raise corrupt(path, error) from error


def load_ranges(checkpoint: Path, batch: int, sources: Sequence[SourceIdentity]) -> tuple[SourceRange, ...]:
    """What a batch reads from each of its sources.

    A source without new data repeats its last position: its range is empty.

    Raises:
        CheckpointCorruptError: A file is missing, or is not what Spark writes.
    """
    ends = load_positions(checkpoint, batch)
    starts = load_positions(checkpoint, batch - 1) if batch > 0 else (None,) * len(ends)
    if not len(ends) == len(starts) == len(sources):
        count = ValueError(f"it has {len(ends)} sources, and the flow has {len(sources)}")
        raise corrupt(checkpoint / "offsets" / str(batch), count)
    ranges = []
    for source, start, end in zip(sources, starts, ends, strict=True):
        if end is None:
            continue
        if source.kind == "kafka":
            folder = source.index if source.folder is None else source.folder
            start = _kafka_start(checkpoint, folder, start, end)
        ranges.append(
            SourceRange(
                index=source.index,
                kind=source.kind,  # type: ignore[arg-type]
                identity=source.identity,
                start=start,
                until=end,
            )
        )
    return tuple(ranges)


def load_next_positions(
    checkpoint: Path, batch: int, sources: Sequence[SourceIdentity]
) -> dict[int, Position]:
    """Where the sources go on when everything before ``batch`` has been committed.

    Args:
        checkpoint: The checkpoint.
        batch: A batch that Spark has planned, or the one after the last that it has planned.
        sources: The checkpoint's sources.

    Raises:
        CheckpointCorruptError: A file is missing, or is not what Spark writes.
    """
    if (checkpoint / "offsets" / str(batch)).exists():
        starts = {one.index: one.start for one in load_ranges(checkpoint, batch, sources)}
        return {index: start for index, start in starts.items() if start is not None}
    ends = load_positions(checkpoint, batch - 1)
    return {index: end for index, end in enumerate(ends) if end is not None}


def check_readable(checkpoint: Path) -> None:
    """Look at the small files that Spark reads when it goes on with a checkpoint.

    Raises:
        CheckpointCorruptError: One of them is not what Spark writes.
    """
    finished = _last(checkpoint / "commits")
    for path, first in (
        (checkpoint / "metadata", 0),
        *([(checkpoint / "commits" / str(finished), 1)] if finished >= 0 else []),
    ):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            if first and lines[:1] != [_VERSION]:
                raise ValueError(f"unknown version {lines[:1]}")
            json.loads("\n".join(lines[first:]))
        except FileNotFoundError as error:
            # Spark makes new ones for a query that has planned nothing yet, and refuses any other.
            if _last(checkpoint / "offsets") >= 0 and path.name == "metadata":
                raise corrupt(path, error) from error
        except (OSError, ValueError) as error:
            raise corrupt(path, error) from error


def seed_files(
    positions: Mapping[int, Position], sources: Sequence[SourceIdentity], watermark_ms: int = 0
) -> dict[str, str]:
    """The files of a checkpoint whose batch 0 has ended at ``positions``, as Spark would find them.

    A source without a position starts at its beginning.
    """
    metadata = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": _SEEDED_MS, "conf": {}}
    lines = [_VERSION, json.dumps(metadata)]
    lines += [
        # Spark compares positions as text: with spaces it would take this one for another.
        json.dumps(dict(positions[source.index]), separators=(",", ":"))
        if source.index in positions
        else _UNSET
        for source in sources
    ]
    finished = {"nextBatchWatermarkMs": watermark_ms}
    return {
        "offsets/0": "\n".join(lines),
        "commits/0": f"{_VERSION}\n{json.dumps(finished)}",
        # Spark refuses a checkpoint that has offsets and no id of its own.
        "metadata": json.dumps({"id": str(uuid.uuid4())}),
    }


def is_seeded(checkpoint: Path) -> bool:
    """Whether batch 0 is one that `seed_files` made, and not Spark."""
    try:
        lines = (checkpoint / "offsets" / "0").read_text(encoding="utf-8").splitlines()
        return bool(json.loads(lines[1])["batchTimestampMs"] == _SEEDED_MS)
    except (OSError, ValueError, LookupError):
        return False


def _kafka_start(checkpoint: Path, folder: int, before: Position | None, end: Position) -> Position:
    """Where each partition of ``end`` was first read in this batch.

    A partition that is new in this batch starts at its first offset, 0: Spark reads partitions
    that appear after the start from their beginning (KafkaOffsetReader.fetchEarliestOffsets).
    """
    if before is None:
        before = _initial_kafka_offsets(checkpoint, folder)
    return {
        topic: {partition: before.get(topic, {}).get(partition, 0) for partition in partitions}
        for topic, partitions in end.items()
    }


def _initial_kafka_offsets(checkpoint: Path, folder: int) -> dict[str, Any]:
    path = checkpoint / "sources" / str(folder) / "0"
    try:
        # Spark writes a zero byte first, so that old versions refuse the file (SPARK-19407).
        text = path.read_bytes().lstrip(b"\0").decode("utf-8")
        version, _, offsets = text.partition("\n")
        if version != _VERSION:
            raise ValueError(f"unknown version {version!r}")
        value = json.loads(offsets)
    except (OSError, ValueError) as error:
        raise corrupt(path, error) from error
    return dict(value)


def _as_position(value: Any) -> Position:
    if not isinstance(value, dict):
        raise ValueError(f"not a position: {value!r}")
    return value


def _last(folder: Path) -> int:
    if not folder.is_dir():
        return -1
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=-1)
