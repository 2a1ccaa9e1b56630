"""Spark's own checkpoints: the batches that they planned and finished."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.verify.source_range import Position
from headrace.verify.stored import StoredPath

_KEPT = 200
"""Spark keeps the last hundred batches; more are not read even if Spark is set to keep more."""


IDENTITY = "headrace.json"
"""The file of a checkpoint that names its pipeline, its flow and its sources."""
RENAMING = "renaming.json"
"""The file beside the checkpoints of a renamed flow while they are copied."""


@dataclass(frozen=True, kw_only=True)
class CheckpointLog:
    """One checkpoint folder."""

    folder: StoredPath
    generation: int
    checkpoint: str | None  # the id in its identity; ``None`` where the identity is missing or damaged
    planned: int = -1  # the last batch in its offset log; -1 before the first
    finished: int = -1  # the last batch in its commit log; -1 before the first
    # The end of each planned batch by source index, as far as Spark keeps it.
    positions: Mapping[int, tuple[Position | None, ...]] = field(default_factory=dict)


def read_json(path: StoredPath) -> Mapping[str, Any]:
    """A JSON object; empty where the file is missing or is not one."""
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def load_checkpoints(folder: StoredPath) -> tuple[CheckpointLog, ...]:
    """Read the generations of one flow, oldest first.

    The commit log is read before the offset log, and both before the table: whatever a running
    flow does in between can only make the table hold more than the checkpoint says.
    """
    if any(file.name == RENAMING for file in folder.list_files()):
        # A part of the checkpoints of a flow that had another name, which are whole in their own folder.
        return ()
    found = [_load(path, int(path.name)) for path in folder.list_folders() if path.name.isdigit()]
    return tuple(sorted(found, key=lambda log: log.generation))


def _load(folder: StoredPath, generation: int) -> CheckpointLog:
    finished = _batches(folder / "commits")
    planned = _batches(folder / "offsets")
    identity = read_json(folder / IDENTITY)
    positions = {batch: _positions(folder / "offsets" / str(batch)) for batch in planned[-_KEPT:]}
    return CheckpointLog(
        folder=folder,
        generation=generation,
        checkpoint=str(identity["checkpoint"]) if "checkpoint" in identity else None,
        planned=max(planned, default=-1),
        finished=max(finished, default=-1),
        positions={batch: found for batch, found in positions.items() if found is not None},
    )


def _batches(folder: StoredPath) -> list[int]:
    return sorted(int(file.name) for file in folder.list_files() if file.name.isdigit())


def _positions(path: StoredPath) -> tuple[Position | None, ...] | None:
    """The lines of an offset log after its version and its settings; ``None`` if it is not one."""
    try:
        version, _, *lines = path.read_text().splitlines()
        if version != "v1":
            return None
        return tuple(None if line == "-" else json.loads(line) for line in lines)
    except (FileNotFoundError, ValueError):
        return None
