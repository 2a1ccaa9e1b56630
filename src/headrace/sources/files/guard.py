"""The files of a batch: which they are, that they do not change while they are read, and that none is read
twice."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace import errors
from headrace.errors import NOT_COMMITTED, HeadraceError
from headrace.model.folders import plain_path
from headrace.model.ranges import Position, SourceRange
from headrace.runtime.lazy_pyspark import StructType
from headrace.sources.bad_records import schema_mark
from headrace.sources.files import headers, lists
from headrace.sources.files.bad_files import explain_bad_file, file_relations, relation_options
from headrace.sources.files.by_header import find_groups, header_schema
from headrace.sources.kind import FlowRun, Guard
from headrace.state.checkpoint import SourceIdentity, folder_of
from headrace.state.opening import resume_command
from headrace.storage.layout import locate
from headrace.storage.location import FileState

_PACKED = 500
"""After so many batches their lists become one file."""

_PATTERN = re.compile(r"[*?\[\]{}\\]")

_KEYED = re.compile(r"/[^/=]+=[^/]*/")
"""A folder whose name is a partition column and its value."""

_SHOWN = 5
"""Paths that an error names."""


@dataclass(frozen=True, kw_only=True)
class _Batch:
    number: int
    files: tuple[lists.ReadFile, ...] = ()
    states: Mapping[str, FileState] = field(default_factory=dict)

    def changed(self) -> list[str]:
        return [path for path, state in self.states.items() if locate(path).look() != state]


class FileGuard(Guard):
    def __init__(self, run: FlowRun, sources: Sequence[SourceIdentity]) -> None:
        super().__init__(run, sources)
        self._lists = lists.FileLists.of_ledger(run.ledger.folder)
        self._read: dict[int, lists.SeenFiles] = {}
        self._keyed: dict[int, set[bool]] = {}
        self._batch = _Batch(number=-1)

    def open(self, positions: Mapping[int, Position]) -> None:
        """Compare Spark's log with the ledger's lists: they must hold the same files.

        A log that lacks a file would make Spark read it again; one that holds a file more would make
        Spark pass over it.
        """
        for index, source in self.sources.items():
            position = positions.get(index)
            last = position.entry if isinstance(position, lists.FilePosition) else -1
            folder = folder_of(source)
            if lists.last_entry(self.run.checkpoint, folder) < last:
                raise self._corrupt(index, f"it ends before entry {last}, up to which files were read", ())
            logged = lists.load_seen(self.run.checkpoint, folder)
            read = {path: entry for path, entry in logged.items() if entry <= last}
            self._read[index] = lists.SeenFiles(read)
            self._keyed[index] = {self._is_keyed(index, path) for path in read}
            seen = read.keys()
            if position is None:
                continue
            listed = self._lists.load_source(self.run.checkpoint_id, index, last)
            paths = {file.path for file in listed}
            if paths - seen:
                raise self._corrupt(index, "it lacks files that were read", sorted(paths - seen))
            if seen - paths and lists.covers(listed, last):
                raise self._corrupt(index, "it holds files that were not read", sorted(seen - paths))

    def begin(self, batch: int, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        """Record the state of the batch's files, and describe them in its ranges."""
        files: list[lists.ReadFile] = []
        states: dict[str, FileState] = {}
        for one in ranges:
            mine = self._files_of(one, states)
            # A replay of what the table holds already is among them.
            before = self._read[one.index]
            total = len(before) + sum(before.entry_of(file.path) != file.log for file in mine)
            files += mine
            planned = next(source for source in self.run.planned if source.index == one.index)
            yield replace(
                one, marks={"files": lists.describe_files(mine, total), **schema_mark(planned.options)}
            )
        self._batch = _Batch(number=batch, files=tuple(files), states=states)
        self._refuse_mixed()

    def check(self, ranges: Sequence[SourceRange]) -> None:
        """Check that all files were read as they were when the batch began; then the list is kept."""
        batch = self._batch
        if not batch.files:
            return
        gone = [file for file in batch.files if file.lost]
        if gone and self.run.on_data_loss == "refuse":
            raise self._vanished(gone)
        self._refuse_changed()
        self._compare_listing()
        if gone:
            self.run.ledger.record_losses(
                {
                    "checkpoint": self.run.checkpoint_id,
                    "batch": batch.number,
                    "source": file.source,
                    "log": file.log,
                    "path": file.path,
                }
                for file in gone
            )
        self._lists.write(self.run.checkpoint_id, batch.number, batch.files)

    def explain(self, error: Exception) -> None:
        self._refuse_changed(error)
        flow = self.run.flow
        bad = explain_bad_file(error, flow, self.run.session, self._columns_of) if self._batch.files else None
        if bad is None:
            return
        gone = [f for f in self._batch.files if f.lost and plain_path(f.path) == bad.params.get("path")]
        if gone and self.run.on_data_loss == "refuse":
            raise self._vanished(gone) from bad
        if gone:
            raise self._changed([file.path for file in gone], "gone when it was to be read") from bad
        raise bad from error

    def _columns_of(self, path: str, declared: StructType) -> StructType:
        """The columns of a file in the order of its header, where they are read by name."""
        index = next((file.source for file in self._batch.files if plain_path(file.path) == path), None)
        source = next((one for one in self.run.planned if one.index == index), None)
        rules = None if source is None else headers.HeaderRules.of(source.options)
        if source is None or rules is None:
            return declared
        (group,) = find_groups(self.run.session, source.options, rules, [path])
        return declared if group.layout.is_planned else header_schema(group.layout, declared, rules)

    def committed(self) -> None:
        for file in self._batch.files:
            self._read[file.source].add(file.path, file.log)
            self._keyed[file.source].add(self._is_keyed(file.source, file.path))
        if self._batch.number % _PACKED == _PACKED - 1:
            # The lists are as good one by one; what cannot be written now is packed the next time.
            with contextlib.suppress(errors.StorageUnwritableError):
                self._lists.pack(self.run.checkpoint_id, self._batch.number)

    def is_replay(self, batch: int) -> bool:
        files = self._batch.files
        listed = self._lists.load(self.run.checkpoint_id, batch) if files else None
        return listed is None or [file.path for file in listed] == [file.path for file in files]

    def check_same_rows(self, batch: int) -> None:
        files, flow = self._batch.files, self.run.flow
        listed = self._lists.load(self.run.checkpoint_id, batch) if files else None
        if listed is None or tuple(listed) == files:
            return
        other = [one.path for one in set(listed).symmetric_difference(files)]
        paths = sorted({plain_path(path) for path in other})
        raise errors.FileVanishedError(
            f"flow {flow.name}: {paths[0]} has changed or is gone since batch {batch} read it, "
            "and the batch's state was not saved yet",
            location=flow.location,
            facts=(*paths[1:_SHOWN], "the rows are in the table, and nothing was written"),
            remedies=(
                "restore the file with the same content",
                f"or read everything again:   headrace full-refresh {flow.target.short}",
            ),
            params={"flow": flow.name, "paths": paths},
        )

    def _refuse_changed(self, cause: BaseException | None = None) -> None:
        changed = self._batch.changed()
        if changed:
            raise self._changed(changed, "written, replaced or removed while it was read") from cause

    def _files_of(self, one: SourceRange, states: dict[str, FileState]) -> list[lists.ReadFile]:
        assert isinstance(one.until, lists.FilePosition)
        first = one.start.entry + 1 if isinstance(one.start, lists.FilePosition) else 0
        folder = folder_of(self.sources[one.index])
        entries = lists.load_entries(self.run.checkpoint, folder, first, one.until.entry)
        found = []
        for log, paths in entries.items():
            for path in paths:
                state = locate(path).look()
                if state is not None:
                    states[path] = state
                found.append(
                    lists.ReadFile(
                        source=one.index,
                        log=log,
                        path=path,
                        size=None if state is None else state.size,
                        modified=None if state is None else state.modified_ms,
                        lost=state is None,
                    )
                )
        before = self._read[one.index]
        known = ((file.path, before.entry_of(file.path)) for file in found)
        maybe = [path for path, entry in known if entry is not None and entry < first]
        again = lists.find_earlier(self.run.checkpoint, folder, maybe, first)
        if again or len({file.path for file in found}) < len(found):
            raise self._corrupt(one.index, "it names files again that were read before", again)
        return found

    def _compare_listing(self) -> None:
        """Spark silently leaves out files that were gone when it began to plan the batch.

        It reads files twice that share a batch with one whose name looks like a pattern.
        """
        relations = list(file_relations(self.run.session, self.run.flow.name))
        # The files of each read, with their bytes
        listing = [(paths, int(relation.location().sizeInBytes())) for relation, paths in relations if paths]
        for relation, names in relations:
            self._compare_headers(relation, names)
        counts = (Counter(paths) for paths, _ in listing)
        twice = sorted({path for count in counts for path, times in count.items() if times > 1})
        if twice:
            raise self._doubled(twice)
        expected: dict[frozenset[str], int] = {}
        for index in self.sources:
            there = [file for file in self._batch.files if file.source == index and not file.lost]
            if there:
                paths = frozenset(file.path for file in there)
                expected[paths] = sum(file.size or 0 for file in there)
        listed = {frozenset(paths): size for paths, size in listing}
        if listed != expected:
            known = {path for paths in listed for path in paths}
            changed = [file.path for file in self._batch.files if not file.lost and file.path not in known]
            raise self._changed(changed, "not there, or smaller or larger, when Spark began the batch")

    def _compare_headers(self, relation: Any, paths: Sequence[str]) -> None:
        """Refuse CSV files with a column at another position: Spark's own reader reads by position."""
        if relation.fileFormat().getClass().getSimpleName() != "CSVFileFormat":
            return
        options = relation_options(self.run.session, relation)
        given = {name.lower() for name in options}
        if not headers.has_header(options) or given & {"enforceschema", headers.HEADERS_OPTION.lower()}:
            return
        syntax, split = headers.HeaderSyntax.of(options), headers.header_splitter(self.run.session, options)
        columns, seen = list(relation.dataSchema().fieldNames()), set[str]()
        for path in map(plain_path, paths):
            header = headers.find_header(path, syntax)
            if header is None or header.text in seen:
                continue
            seen.add(header.text)
            column = headers.find_misplaced(split(header.text), columns, str.lower)
            if column is not None:
                flow = self.run.flow
                raise headers.misplaced_column(str(flow.name), path, header.line, column, flow.location)

    def _doubled(self, twice: Sequence[str]) -> errors.FileUnreadableError:
        patterns = [
            plain_path(file.path) for file in self._batch.files if _PATTERN.search(plain_path(file.path))
        ]
        named = patterns[0] if patterns else plain_path(twice[0])
        return errors.FileUnreadableError(
            f"flow {self.run.flow.name}: the file name {named} would make Spark read other files twice",
            location=self.run.flow.location,
            facts=(
                f"Spark takes the name for a pattern, and the batch would have {plain_path(twice[0])} twice",
                NOT_COMMITTED,
            ),
            remedies=(
                "set recursive=True in hr.read_files, or the option recursiveFileLookup: "
                "Spark then reads each file once",
            ),
            params={"flow": self.run.flow.name, "path": named, "twice": [plain_path(path) for path in twice]},
        )

    def _refuse_mixed(self) -> None:
        """Refuse files outside of folders named ``key=value`` beside files inside of such folders.

        In one batch, Spark reads only the files inside, and reports nothing. In several batches, the rows
        lack a column.
        """
        for index, source in self.sources.items():
            if source.identity.get("recursive"):
                continue
            files = [file.path for file in self._batch.files if file.source == index]
            inside = [path for path in files if self._is_keyed(index, path)]
            outside = sorted(set(files) - set(inside))
            known = self._keyed[index]
            if len(known) > 1:
                # They were read with recursive=True, and can lie anywhere.
                known = set()
            if outside and (inside or True in known):
                raise self._mixed(outside, "is not in a folder named key=value, but other files are")
            if inside and False in known:
                how = "is in a folder named key=value, but files that were read before are not"
                raise self._mixed(inside, how)

    def _is_keyed(self, index: int, uri: str) -> bool:
        """Whether a file is in a folder whose name is a partition column and its value."""
        base = lists.folder_of_source(self.sources[index].identity).base
        return _KEYED.search(plain_path(uri).removeprefix(base)) is not None

    def _mixed(self, paths: Sequence[str], how: str) -> errors.FileUnreadableError:
        shown = [plain_path(path) for path in paths]
        flow = self.run.flow
        return errors.FileUnreadableError(
            f"flow {flow.name}: {shown[0]} {how}",
            location=flow.location,
            facts=(
                *shown[1:_SHOWN],
                "Spark would skip such files, or leave out the column of the folders",
                NOT_COMMITTED,
            ),
            remedies=(
                "move them to where the other files are, and drop the planned batch:   "
                f"headrace reset {flow.name}",
                "or set recursive=True in hr.read_files: names of folders are then not columns",
            ),
            params={"flow": flow.name, "path": shown[0]},
        )

    def _vanished(self, gone: Sequence[lists.ReadFile]) -> errors.FileVanishedError:
        paths = [plain_path(file.path) for file in gone]
        more = f" and {len(gone) - 1} more files" if len(gone) > 1 else ""
        return errors.FileVanishedError(
            f"flow {self.run.flow.name}: {paths[0]}{more} vanished before its batch was read",
            location=self.run.flow.location,
            facts=(*paths[1:_SHOWN], f"batch {self._batch.number} was not committed"),
            remedies=(
                "restore the file with the same content, then run again:   headrace run",
                "or let all flows go on after such a loss, and record it; one line in headrace.yml, for one "
                "run:   on_data_loss: record",
                "or continue without its records, which are not recorded as lost:   "
                f"headrace reset {self.run.flow.name}",
            ),
            params={"flow": self.run.flow.name, "paths": paths},
        )

    def _changed(self, changed: Sequence[str], how: str) -> errors.FileChangedError:
        paths = [plain_path(path) for path in changed]
        named = paths[0] if paths else "a file"
        return errors.FileChangedError(
            f"flow {self.run.flow.name}: {named} was {how}",
            location=self.run.flow.location,
            facts=(*paths[1:_SHOWN], f"{NOT_COMMITTED}, and is read again"),
            remedies=("write files elsewhere, and move them into the folder when they are complete",),
            params={"flow": self.run.flow.name, "paths": paths},
        )

    def _corrupt(self, index: int, problem: str, paths: Sequence[str]) -> HeadraceError:
        log = self.run.checkpoint / "sources" / str(folder_of(self.sources[index]))
        return errors.CheckpointCorruptError(
            f"flow {self.run.flow.name}: the checkpoint's log of files cannot be trusted: {problem}",
            location=self.run.flow.location,
            facts=(*(plain_path(path) for path in paths[:_SHOWN]), str(log), "nothing was read or written"),
            remedies=(resume_command(self.run.flow.name),),
            params={"flow": self.run.flow.name, "path": str(log), "paths": [plain_path(p) for p in paths]},
        )
