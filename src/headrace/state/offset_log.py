"""Reads and writes the offset log and the commit log of a Spark checkpoint.

Spark writes ``offsets/N`` before batch N starts, and ``commits/N`` after it has ended; a batch's
range is ``offsets/N`` against ``offsets/N-1``, and for N = 0 the start is in ``sources/<i>/0``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.model.ranges import Position
from headrace.model.texts import counted
from headrace.state.identity import SourceIdentity, reading
from headrace.storage.location import Location

_VERSION = "v1"
_UNSET = "-"
"""Spark's mark for a source that has no offset yet."""
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_SEEDED_MS = 0
"""The timestamp of a batch that Headrace has written; Spark's batches have the time of the clock."""


@dataclass(frozen=True)
class LogState:
    """The last batches of a checkpoint; -1 before the first batch."""

    last_planned: int
    last_finished: int


def load_state(checkpoint: Location) -> LogState:
    """The last batch that Spark planned, and the last that it finished."""
    return LogState(_last(checkpoint / "offsets"), _last(checkpoint / "commits"))


def offsets_path(checkpoint: Location, batch: int) -> Location:
    """The file of Spark's offset log with the end of a batch."""
    return checkpoint / "offsets" / str(batch)


def load_offsets(checkpoint: Location, batch: int) -> tuple[str | None, ...]:
    """The position of each source at the end of a batch, in the order of Spark's offset log."""
    path = offsets_path(checkpoint, batch)
    with reading(path):
        lines = path.read_text().splitlines()
        if len(lines) < 3 or lines[0] != _VERSION:
            raise ValueError(f"it is cut off, or not an offset log: it has {counted(len(lines), 'line')}")
    return tuple(None if line == _UNSET else line for line in lines[2:])


def check_readable(checkpoint: Location) -> None:
    """Check the small files that Spark reads when it continues with a checkpoint."""
    planned, finished = _last(checkpoint / "offsets"), _last(checkpoint / "commits")
    if planned > 0:
        # Spark computes the range of the last batch from the one before.
        load_offsets(checkpoint, planned - 1)
    for path, first in (
        (checkpoint / "metadata", 0),
        *([(checkpoint / "commits" / str(finished), 1)] if finished >= 0 else []),
    ):
        with reading(path):
            try:
                lines = path.read_text().splitlines()
            except FileNotFoundError:
                # Spark makes new ones for a query that has planned nothing yet, and refuses any other.
                if planned >= 0 and path.name == "metadata":
                    raise
                continue
            if first and lines[:1] != [_VERSION]:
                raise ValueError(f"unknown version {lines[:1]}")
            json.loads("\n".join(lines[first:]))


def seed_files(
    positions: Mapping[int, Position], sources: Sequence[SourceIdentity], shuffle_partitions: str
) -> dict[str, str]:
    """The files of a checkpoint whose batch 0 has ended at ``positions``, in Spark's format. A source without
    a position starts at its beginning."""
    # When Spark repeats a batch, it fails if the batch before has no number of shuffle partitions.
    conf = {SHUFFLE_PARTITIONS: shuffle_partitions}
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": _SEEDED_MS, "conf": conf}
    return {
        "offsets/0": offset_lines(metadata, positions, sources),
        "commits/0": f"{_VERSION}\n{json.dumps({'nextBatchWatermarkMs': 0})}",
        # Spark refuses a checkpoint that has offsets and no id of its own.
        "metadata": json.dumps({"id": str(uuid.uuid4())}),
    }


def offset_lines(
    metadata: Mapping[str, Any], positions: Mapping[int, Position], sources: Sequence[SourceIdentity]
) -> str:
    """The text of a file of the offset log. Its second line has the watermark, the time and the settings of
    the batch."""
    lines = [_VERSION, json.dumps(metadata)]
    lines += [
        # Spark compares positions as text: with spaces it would take this one for another.
        json.dumps(positions[source.index].to_json(), separators=(",", ":"))
        if source.index in positions
        else _UNSET
        for source in sources
    ]
    return "\n".join(lines)


def is_seeded(checkpoint: Location) -> bool:
    """Whether `seed_files` has written batch 0, and not Spark."""
    try:
        lines = (checkpoint / "offsets" / "0").read_text().splitlines()
        return bool(json.loads(lines[1])["batchTimestampMs"] == _SEEDED_MS)
    except HeadraceError:
        raise
    except (OSError, ValueError, LookupError):
        return False


def _last(folder: Location) -> int:
    return max((int(name) for name in folder.list_files() if name.isdigit()), default=-1)
