"""Damaged files of checkpoints: how they are found, and what can be repaired.

A repair never guesses. The offsets of a batch that the table holds are written again from the table's own
record of it. A batch that the table does not hold is planned again by Spark. A batch whose file in the
commit log is damaged is run again by Spark, and the table skips it, since it holds it.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.maintain.checkpoints import FlowCheckpoint, load_metadata, offsets_problem
from headrace.state.offset_log import offset_lines, offsets_path
from headrace.storage.location import Location


@dataclass(frozen=True, kw_only=True)
class Repair:
    file: Location  # the file; what it holds now is kept in the backup
    text: str | None = field(default=None, repr=False)  # the new content; ``None`` if the file is taken away
    action: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A damaged or missing file of a checkpoint."""

    file: Location
    found: str
    repair: Repair | None = None


def find_problems(checkpoint: FlowCheckpoint) -> Iterator[Problem]:
    """The files that keep Spark or Headrace from continuing with a checkpoint."""
    path = checkpoint.path
    if checkpoint.broken is not None:
        error = checkpoint.broken
        yield Problem(file=path / "headrace.json", found=error.facts[0] if error.facts else error.summary)
        return
    yield from _metadata(checkpoint)
    yield from _commits(checkpoint)
    yield from _offsets(checkpoint)
    for folder in ("sources", "state"):
        for file, size in sorted((path / folder).walk_sizes()):
            if not size and not file.name.startswith("."):
                yield Problem(file=file, found="the file is empty")


def _metadata(checkpoint: FlowCheckpoint) -> Iterator[Problem]:
    file = checkpoint.path / "metadata"
    if checkpoint.last_planned < 0 and not file.exists():
        return
    try:
        found = None if json.loads(file.read_text())["id"] else "it has no id"
    except (OSError, ValueError, LookupError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
    if found is None:
        yield from _checksum(file)
        return
    text = json.dumps({"id": str(uuid.uuid4())})
    action = "write a new id of the query, which Spark uses only in its own messages"
    yield Problem(file=file, found=found, repair=Repair(file=file, text=text, action=action))


def _commits(checkpoint: FlowCheckpoint) -> Iterator[Problem]:
    last = checkpoint.last_finished
    if last < 0:
        return
    file = checkpoint.path / "commits" / str(last)
    if load_metadata(file) is not None:
        yield from _checksum(file)
        return
    repair = None
    if checkpoint.committed >= last:
        action = (
            f"move it to the backup; Spark runs batch {last} again, and the table, which has it, skips it"
        )
        repair = Repair(file=file, action=action)
    yield Problem(file=file, found="it is not a file of Spark's commit log", repair=repair)


def _offsets(checkpoint: FlowCheckpoint) -> Iterator[Problem]:
    """The last two batches: Spark reads no older ones."""
    assert checkpoint.identity is not None
    path, committed, sources = checkpoint.path, checkpoint.committed, len(checkpoint.identity.sources)
    last = max(checkpoint.last_planned, committed)
    if last > committed and (found := offsets_problem(path, last, sources)) is not None:
        file = offsets_path(path, last)
        action = f"move it to the backup; the table does not hold batch {last}, and Spark plans it again"
        # A sink could have the batch, and skip another one of the same number.
        repair = None if checkpoint.sends else Repair(file=file, action=action)
        yield Problem(file=file, found=found, repair=repair)
        last -= 1
    for batch in range(max(last - 1, 0), last + 1):
        file = offsets_path(path, batch)
        found = offsets_problem(path, batch, sources)
        if found is None:
            yield from _checksum(file)
        else:
            yield Problem(file=file, found=found, repair=_rewrite(checkpoint, batch))


def _rewrite(checkpoint: FlowCheckpoint, batch: int) -> Repair | None:
    """Write the offsets of a batch that the table holds, if the table or the ledger has its record."""
    identity, path = checkpoint.identity, checkpoint.path
    positions = checkpoint.positions(batch)
    near = next(
        (
            found
            for other in (batch - 1, batch + 1, batch - 2)
            if other >= 0 and (found := load_metadata(offsets_path(path, other))) is not None
        ),
        None,
    )
    if identity is None or positions is None or near is None:
        return None
    before = load_metadata(path / "commits" / str(batch - 1)) or {}
    watermark = before.get("nextBatchWatermarkMs", near["batchWatermarkMs"])
    text = offset_lines({**near, "batchWatermarkMs": watermark}, positions, identity.sources)
    action = f"write it again from the record of batch {batch} in the table"
    return Repair(file=offsets_path(path, batch), text=text, action=action)


def _checksum(file: Location) -> Iterator[Problem]:
    """Hadoop refuses to read a file that differs from the checksums beside it."""
    sums = file.parent / f".{file.name}.crc"
    try:
        data, stored = file.read_bytes(), sums.read_bytes()
    except OSError:
        return
    size = struct.unpack(">i", stored[4:8])[0] if len(stored) >= 8 else 0
    chunks = [data[start : start + size] for start in range(0, len(data), size)] if size > 0 else []
    if size <= 0 or stored[8:] != b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks):
        action = f"move the checksum file to the backup; {file.name} can be read"
        repair = Repair(file=sums, action=action)
        yield Problem(file=sums, found=f"the checksums do not match {file.name}", repair=repair)
