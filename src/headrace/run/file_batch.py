"""The files of a batch: which they are, that they rest while they are read, and that none is read twice."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import (
    NOT_COMMITTED,
    CheckpointCorruptError,
    FileChangedError,
    FileUnreadableError,
    FileVanishedError,
    HeadraceError,
    StorageUnwritableError,
)
from headrace.model.declarations import AppendFlow
from headrace.model.folders import local_path
from headrace.model.project import OnDataLoss
from headrace.model.ranges import Position, SourceRange
from headrace.state.file_lists import FileLists, ReadFile, covers, describe_files
from headrace.state.file_log import folder_of, last_entry, load_entries, load_seen
from headrace.state.identity import SourceIdentity
from headrace.state.ledger import Ledger
from headrace.state.opening import resume_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Listing = tuple[tuple[tuple[str, ...], int], ...]
"""The paths of each read of files in a batch, and their bytes."""

_PACKED = 500
"""After so many batches their lists become one file."""

_PATTERN = re.compile(r"[*?\[\]{}]")

_SHOWN = 5
"""Paths that an error names."""


@dataclass(frozen=True)
class _State:
    """What tells a file from another of the same path."""

    size: int
    modified_ns: int
    inode: int

    @property
    def modified_ms(self) -> int:
        return self.modified_ns // 1_000_000


@dataclass(frozen=True, kw_only=True)
class FileBatch:
    """The files of one batch, as they were when it began.

    Args:
        ranges: The batch's ranges, with what its commit says of its files.
        files: All files, of all sources.
        states: The files that were there.
    """

    batch: int
    ranges: tuple[SourceRange, ...]
    files: tuple[ReadFile, ...] = ()
    states: Mapping[str, _State] = field(default_factory=dict)

    def changed(self) -> list[str]:
        """The files that are not what they were when the batch began."""
        return [path for path, state in self.states.items() if _look(path) != state]


class FlowFiles:
    """Guards the files of one flow; does nothing for a flow that reads none.

    Args:
        flow: The flow.
        checkpoint: Its checkpoint's folder.
        identity: The checkpoint's id.
        sources: The flow's sources.
        ledger: The flow's ledger.
        on_data_loss: What happens when a file is gone before it was read.
    """

    def __init__(
        self,
        flow: AppendFlow,
        *,
        checkpoint: Path,
        identity: str,
        sources: Sequence[SourceIdentity],
        ledger: Ledger,
        on_data_loss: OnDataLoss,
    ) -> None:
        self._flow = flow
        self._checkpoint = checkpoint
        self._identity = identity
        self._sources = {source.index: source for source in sources if source.kind == "files"}
        self._ledger = ledger
        self._lists = FileLists.of_ledger(ledger.folder)
        self._on_data_loss = on_data_loss
        self._read: dict[int, dict[str, int]] = {}

    def compare(self, positions: Mapping[int, Position]) -> None:
        """Before a query starts: Spark's log and the ledger's lists must hold the same files.

        A log that lacks a file would make Spark read it again; one that holds a file more would make
        Spark pass over it.

        Args:
            positions: Where what the table does not hold yet begins, by source index.

        Raises:
            CheckpointCorruptError: They do not.
        """
        for index, source in self._sources.items():
            position = positions.get(index)
            last = -1 if position is None else int(position["logOffset"])
            folder = folder_of(source)
            if last_entry(self._checkpoint, folder) < last:
                raise self._corrupt(index, f"it ends before entry {last}, up to which files were read", ())
            logged = load_seen(self._checkpoint, folder)
            self._read[index] = {path: entry for path, entry in logged.items() if entry <= last}
            seen = set(self._read[index])
            if position is None:
                continue
            listed = self._lists.load_source(self._identity, index, position)
            paths = {file.path for file in listed}
            if paths - seen:
                raise self._corrupt(index, "it lacks files that were read", sorted(paths - seen))
            if seen - paths and covers(listed, position):
                raise self._corrupt(index, "it holds files that were not read", sorted(seen - paths))

    def begin(self, batch: int, ranges: tuple[SourceRange, ...]) -> FileBatch:
        """Look at the files that a batch is to read.

        Raises:
            CheckpointCorruptError: One of them was read before.
        """
        if not self._sources:
            return FileBatch(batch=batch, ranges=ranges)
        files: list[ReadFile] = []
        states: dict[str, _State] = {}
        described = []
        for one in ranges:
            if one.kind != "files":
                described.append(one)
                continue
            mine = self._files_of(one, states)
            # A replay of what the table holds already is among them.
            before = self._read[one.index]
            total = len(before) + sum(file.path not in before for file in mine)
            described.append(replace(one, files=describe_files(mine, total)))
            files += mine
        return FileBatch(batch=batch, ranges=tuple(described), files=tuple(files), states=states)

    def before_commit(self, begun: FileBatch, listed: Callable[[], Listing]) -> None:
        """The last look: all files were read, as they were when the batch began; then the list is kept.

        Args:
            begun: The batch.
            listed: Asks Spark what it has listed for the batch.

        Raises:
            FileChangedError: A file was written meanwhile, or Spark has listed other files.
            FileVanishedError: A file was gone before it could be read.
        """
        if not begun.files:
            return
        gone = [file for file in begun.files if file.lost]
        if gone and self._on_data_loss == "refuse":
            raise self._vanished(gone)
        self.refuse_changed(begun)
        self._compare_listing(begun, listed())
        if gone:
            self._ledger.record_losses(
                {
                    "checkpoint": self._identity,
                    "batch": begun.batch,
                    "source": file.source,
                    "log": file.log,
                    "path": file.path,
                }
                for file in gone
            )
        self._lists.write(self._identity, begun.batch, begun.files)

    def refuse_changed(self, begun: FileBatch, cause: BaseException | None = None) -> None:
        """Whatever went wrong, a file that was written meanwhile explains it.

        Raises:
            FileChangedError: One was.
        """
        changed = begun.changed()
        if changed:
            raise self._changed(changed, "written, replaced or taken away while it was read") from cause

    def refuse_gone(self, begun: FileBatch, bad: HeadraceError) -> None:
        """A file that Spark had listed and could not read may have been gone when the batch began.

        Raises:
            FileVanishedError: It was.
            FileChangedError: It was, and the flow may go on without it when Spark lists the batch again.
        """
        gone = [file for file in begun.files if file.lost and _shown(file.path) == bad.params.get("path")]
        if gone and self._on_data_loss == "refuse":
            raise self._vanished(gone) from bad
        if gone:
            raise self._changed([file.path for file in gone], "gone when it was to be read") from bad

    def committed(self, begun: FileBatch) -> None:
        """The table holds the batch: its files have been read."""
        for file in begun.files:
            self._read[file.source][file.path] = file.log
        if self._sources and begun.batch % _PACKED == _PACKED - 1:
            # The lists are as good one by one; what cannot be written now is packed the next time.
            with contextlib.suppress(StorageUnwritableError):
                self._lists.pack(self._identity, begun.batch)

    def is_replay(self, begun: FileBatch) -> bool:
        """Whether a batch that the table holds was made of the same files, as far as the ledger tells."""
        listed = self._lists.load(self._identity, begun.batch) if begun.files else None
        return listed is None or [f.path for f in listed] == [f.path for f in begun.files]

    def refuse_other_rows(self, begun: FileBatch) -> None:
        """A batch that the table holds is computed again for its state: from the same rows, or not at all.

        Raises:
            FileVanishedError: A file of it has changed since, or is gone.
        """
        listed = self._lists.load(self._identity, begun.batch) if begun.files else None
        if listed is None or tuple(listed) == begun.files:
            return
        other = [one.path for one in set(listed).symmetric_difference(begun.files)]
        paths = sorted({_shown(path) for path in other})
        raise FileVanishedError(
            f"flow {self._flow.name}: {paths[0]} has changed or is gone since batch {begun.batch} read it, "
            "and the batch's state was not saved yet",
            location=self._flow.location,
            facts=(*paths[1:_SHOWN], "the rows are in the table, and nothing was written"),
            remedies=(
                "put it back, as it was",
                f"or read everything again:   headrace full-refresh {self._flow.target}",
            ),
            params={"flow": self._flow.name, "paths": paths},
        )

    def _files_of(self, one: SourceRange, states: dict[str, _State]) -> list[ReadFile]:
        first = 0 if one.start is None else int(one.start["logOffset"]) + 1
        entries = load_entries(
            self._checkpoint, folder_of(self._sources[one.index]), first, int(one.until["logOffset"])
        )
        found = []
        for log, paths in entries.items():
            for path in paths:
                state = _look(path)
                if state is not None:
                    states[path] = state
                found.append(
                    ReadFile(
                        source=one.index,
                        log=log,
                        path=path,
                        size=None if state is None else state.size,
                        modified=None if state is None else state.modified_ms,
                        lost=state is None,
                    )
                )
        before = self._read[one.index]
        again = [file.path for file in found if before.get(file.path, first) < first]
        if again or len({file.path for file in found}) < len(found):
            raise self._corrupt(one.index, "it names files again that were read before", again)
        return found

    def _compare_listing(self, begun: FileBatch, listing: Listing) -> None:
        """Spark leaves out, without a word, files that were gone when it began to plan the batch.

        It reads files twice that share a batch with one whose name looks like a pattern.
        """
        counts = (Counter(paths) for paths, _ in listing)
        twice = sorted({path for count in counts for path, times in count.items() if times > 1})
        if twice:
            raise self._doubled(twice, begun)
        expected: dict[frozenset[str], int] = {}
        for index in self._sources:
            there = [file for file in begun.files if file.source == index and not file.lost]
            if there:
                paths = frozenset(file.path for file in there)
                expected[paths] = sum(file.size or 0 for file in there)
        listed = {frozenset(paths): size for paths, size in listing}
        if listed != expected:
            known = {path for paths in listed for path in paths}
            changed = [file.path for file in begun.files if not file.lost and file.path not in known]
            raise self._changed(changed, "not there, or smaller or larger, when Spark began the batch")

    def _doubled(self, twice: Sequence[str], begun: FileBatch) -> FileUnreadableError:
        patterns = [_shown(file.path) for file in begun.files if _PATTERN.search(_shown(file.path))]
        named = patterns[0] if patterns else _shown(twice[0])
        return FileUnreadableError(
            f"flow {self._flow.name}: {named} has a name that makes Spark read other files twice",
            location=self._flow.location,
            facts=(
                f"its batch would hold {_shown(twice[0])} twice, for the name looks like a pattern",
                NOT_COMMITTED,
            ),
            remedies=(
                "give read_files recursive=True, with which Spark reads each file once",
                "and give files names without * ? [ ] { }",
            ),
            params={"flow": self._flow.name, "path": named, "twice": [_shown(path) for path in twice]},
        )

    def _vanished(self, gone: Sequence[ReadFile]) -> FileVanishedError:
        paths = [_shown(file.path) for file in gone]
        more = f" and {len(gone) - 1} more files" if len(gone) > 1 else ""
        return FileVanishedError(
            f"flow {self._flow.name}: {paths[0]}{more} vanished before it could be read",
            location=self._flow.location,
            facts=(*paths[1:_SHOWN], NOT_COMMITTED),
            remedies=(
                "put it back, as it was",
                "or set `on_data_loss: record` in headrace.yml: the flow goes on without it, "
                "and the ledger keeps its name",
            ),
            params={"flow": self._flow.name, "paths": paths},
        )

    def _changed(self, changed: Sequence[str], how: str) -> FileChangedError:
        paths = [_shown(path) for path in changed]
        named = paths[0] if paths else "a file"
        return FileChangedError(
            f"flow {self._flow.name}: {named} was {how}",
            location=self._flow.location,
            facts=(*paths[1:_SHOWN], f"{NOT_COMMITTED}, and is read again"),
            remedies=("write files elsewhere, and move them into the folder when they are complete",),
            params={"flow": self._flow.name, "paths": paths},
        )

    def _corrupt(self, index: int, problem: str, paths: Sequence[str]) -> HeadraceError:
        log = self._checkpoint / "sources" / str(folder_of(self._sources[index]))
        return CheckpointCorruptError(
            f"flow {self._flow.name}: the checkpoint's log of files cannot be trusted: {problem}",
            location=self._flow.location,
            facts=(*(_shown(path) for path in paths[:_SHOWN]), str(log), "nothing was read or written"),
            remedies=(resume_command(self._flow.name),),
            params={"flow": self._flow.name, "path": str(log), "files": [_shown(p) for p in paths]},
        )


def _look(uri: str) -> _State | None:
    try:
        stat = Path(local_path(uri) or uri).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _State(stat.st_size, stat.st_mtime_ns, stat.st_ino)


def _shown(uri: str) -> str:
    return local_path(uri) or uri


def listed_files(session: SparkSession, name: str) -> Listing:
    """The files that Spark has listed for each read of a query's batch under way, with their bytes.

    Args:
        session: The session that the query was started in.
        name: The query's name.
    """
    relations = file_relations(session, name)
    found = ((tuple(paths), int(relation.location().sizeInBytes())) for relation, paths in relations)
    return tuple((paths, size) for paths, size in found if paths)


def file_relations(session: SparkSession, name: str) -> Iterator[tuple[Any, list[str]]]:
    """How the batch under way of a query reads files: Spark's relations, each with its paths.

    Args:
        session: The session that the query was started in.
        name: The query's name.
    """
    query: Any = next(one for one in session.streams.active if one.name == name)
    jvm: Any = session._jvm
    # One call for all the paths, where each of them would be one.
    mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()
    leaves = query._jsq.streamingQuery().lastExecution().analyzed().collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getSimpleName() == "LogicalRelation" and leaf.isStreaming():
            yield (
                leaf.relation(),
                json.loads(mapper.writeValueAsString(leaf.relation().location().inputFiles())),
            )
