"""A folder of files as it is now, and how a flow can continue with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.folders import FileFolder
from headrace.model.ranges import Position
from headrace.state.facts import FlowFacts, ListOrigin, NextPosition, SourceFacts
from headrace.state.history import History
from headrace.state.starting_positions import require_whole, resume_impossible
from headrace.storage.locate import locate


@dataclass(frozen=True)
class FilePosition(Position):
    entry: int  # the last entry of Spark's log whose files were read

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FilePosition:
        try:
            return cls(int(value["logOffset"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a position in a folder: {value!r}") from error

    def to_json(self) -> dict[str, Any]:
        return {"logOffset": self.entry}

    def describe(self) -> str:
        return "after the files whose rows are committed: they are not read again"


@dataclass(frozen=True, kw_only=True)
class FileFacts(SourceFacts):
    """A folder; a changed query may select other files in it."""

    keys = ("path",)

    # Reads of the folder, by checkpoint and source index, of which the ledger does not hold the names of
    # all files
    unlisted: frozenset[ListOrigin] = frozenset()
    read_elsewhere: str | None = None  # A file of it that the flow has read through another folder

    def next_position(self, flow: FlowFacts, history: History) -> NextPosition | None:
        reads = self.last_reads(history)
        path = str(self.source.identity["path"])
        if any(read.until != reads[0].until for read in reads):
            why = f"its query has read {path} on both sides of a join, up to different files"
            raise resume_impossible(flow, why)
        if not reads:
            require_whole(flow, history, path)
        if self.read_elsewhere is not None:
            raise resume_impossible(flow, f"it has read {self.read_elsewhere} before, through another folder")
        if not reads:
            return None
        position = FilePosition.from_json(reads[0].until)
        return NextPosition(position, origin=(reads[0].checkpoint, reads[0].source.index))

    def check_lists(self, flow: FlowFacts, origin: ListOrigin) -> ListOrigin:
        """A new checkpoint needs the names of all files that were read, or it would read them again."""
        if origin in self.unlisted:
            raise resume_impossible(flow, "the ledger does not hold the names of all files that were read")
        return origin


def folder_of_source(identity: Mapping[str, Any]) -> FileFolder:
    return FileFolder.of_identity(identity, locate(str(identity["path"])).files)
