"""The streams that read a table, and how far they have read it; from their checkpoints, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.sources.delta.position import DeltaPosition
from headrace.state.identity import generations, load_identity
from headrace.state.offset_log import load_offsets, load_state
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import LoggedCommit, newest_commits


@dataclass(frozen=True, kw_only=True)
class TableReader:
    """A flow that reads a table as a stream.

    Args:
        flow: The flow.
        dataset: The table that it writes.
        version: The version that it reads now; -1 if it is not known.
    """

    flow: str
    dataset: str
    version: int


def find_readers(storage: Storage, table_id: str) -> Iterator[TableReader]:
    """The flows of a storage whose newest checkpoint reads a table.

    Args:
        storage: The storage.
        table_id: Delta's id of the table.
    """
    root = storage.root / "checkpoints"
    for dataset in root.list_folders():
        for flow in (root / dataset).list_folders():
            known = generations(root / dataset / flow)
            if known:
                yield from _reads(known[-1], flow, dataset, table_id)


def find_lagging(readers: Iterator[TableReader], table: Location, kept_since_ms: float) -> TableReader | None:
    """A reader that still needs files which were removed from the table before a time.

    Args:
        readers: The readers of the table.
        table: The table's folder.
        kept_since_ms: The time, in milliseconds since the epoch.
    """
    found = list(readers)
    if not found:
        return None
    before = (one for one in newest_commits(table) if one.timestamp_ms < kept_since_ms)
    last: LoggedCommit | None = next(before, None)
    # Files that were removed up to this version can be deleted; a reader behind it needs them.
    return next((one for one in found if last is not None and one.version < last.version), None)


def _reads(checkpoint: Location, flow: str, dataset: str, table_id: str) -> Iterator[TableReader]:
    try:
        identity = load_identity(checkpoint)
        sources = [one.index for one in identity.sources if one.identity.get("table_id") == table_id]
        finished = load_state(checkpoint).last_finished
        held = load_offsets(checkpoint, finished) if sources and finished >= 0 else ()
        for index in sources:
            text = held[index] if index < len(held) else None
            version = -1 if text is None else DeltaPosition.from_json(json.loads(text)).version
            yield TableReader(flow=flow, dataset=dataset, version=version)
    except (HeadraceError, OSError, ValueError):
        # A checkpoint that cannot be read may be one of a reader.
        yield TableReader(flow=flow, dataset=dataset, version=-1)
