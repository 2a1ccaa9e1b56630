"""Sources that read a Delta table: a flow must hold what that table held at the version it has read."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.names import TableName
from headrace.verify.checkpoints import CheckpointLog, Lineage
from headrace.verify.claims import Claim, Claims
from headrace.verify.coordinates import (
    Columns,
    CoordinatesUnreadableError,
    Present,
    find_columns,
    find_named,
    read_others,
)
from headrace.verify.delta_log import LogDamagedError, commit_mark, list_versions, load_table_log
from headrace.verify.evidence import Evidence, load_evidence
from headrace.verify.reader import CannotJudgeError, SourceReader
from headrace.verify.report import GradeReport, Judgement
from headrace.verify.source_range import Position, SourceRange
from headrace.verify.stored import Storage, StoredPath, plain_path

_END_INDEX = 1 << 62
"""Delta marks a version that was read whole by an index beyond every file."""


class DeltaRange(SourceRange):
    """The versions that a batch read; ``seen`` has the last one, with the mark of its commit."""

    mark_names = ("seen",)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind, str(self.table_id))

    @property
    def name(self) -> str:
        return f"{self.kind} {self.identity.get('path')}"

    @property
    def table_id(self) -> str | None:
        found = self.identity.get("table_id")
        return None if found is None else str(found)

    def order_of(self, position: Position | None) -> tuple[int, ...]:
        if position is None:
            return ()
        # The initial snapshot of version v comes before the changes of v and later.
        version, is_snapshot = int(position["reservoirVersion"]), bool(position.get("isStartingVersion"))
        return (version, int(not is_snapshot), int(position["index"]))


class DeltaReader(SourceReader):
    """Compares the rows of a table with the rows of the table that it was read from."""

    range = DeltaRange

    def judge_ranges(
        self, evidence: Evidence, lineage: Lineage, logs: Sequence[CheckpointLog], ranges: GradeReport
    ) -> GradeReport:
        """With the versions that the flow has read, compared with what those versions are now."""
        found = Judgement()
        for source in lineage.last_sources:
            seen = source.marks.get("seen")
            path = find_upstream(self.context.storage, source) if seen is not None else None
            if seen is None or path is None:
                continue
            version = int(seen["version"])
            newest = max(list_versions(path), default=-1)
            if version <= newest and commit_mark(path, version) in (None, seen["commit"]):
                continue
            how = f"it ends at version {newest} now" if version > newest else "that is another commit now"
            text = (
                f"version {version} of {path.name} was read, and {how}: an older copy was restored, or the "
                "table was created again"
            )
            found.find("UPSTREAM_ROLLED_BACK", text, table=path.name, version=version)
        return ranges.with_findings(found.findings)

    def claims(self, evidence: Evidence, lineage: Lineage) -> Claims:
        musts, mays, names, named = [], [], [], []
        excused = 0
        for source in lineage.last_sources:
            version = int(source.until["reservoirVersion"])
            upstream = self._upstream(source, version)
            try:
                columns = find_columns(upstream.log.metadata, self.context.kinds)
                if columns is None:
                    reason = f"{upstream.dataset}, which it reads, keeps no coordinates"
                    raise CannotJudgeError(reason, applies=False)
                must, may, whole = self._rows_read(upstream, columns, source)
            except (CoordinatesUnreadableError, LogDamagedError) as error:
                raise CannotJudgeError(
                    f"what {upstream.dataset} held at version {version} is gone: {error}"
                ) from error
            others = read_others(self.context.coordinates, upstream.log, upstream.balance, columns)
            excused += others.gone_unknown
            named.append(find_named(upstream.log.metadata, columns))
            musts.append(must)
            mays += [may, others.gone]
            names.append(f"{upstream.dataset.name} v{whole}")
        must, may = Present.joined(musts), Present.joined(mays)
        keys = {*must.partitions, *may.partitions}
        return Claims(
            partitions={key: Claim(derived=must.at(key), may=may.at(key)) for key in keys},
            system=" and ".join(names),
            holder=" and ".join(names),
            is_derived=True,
            named=tuple(named),
            excused=excused,
        )

    def _rows_read(
        self, upstream: Evidence, columns: Columns, source: SourceRange
    ) -> tuple[Present, Present, int]:
        """The rows of the versions that were read whole, and those of one that was read in part."""
        version, index = int(source.until["reservoirVersion"]), int(source.until["index"])
        if source.until.get("isStartingVersion") and index < _END_INDEX:
            files = upstream.log.active(version).values()
            return Present(), self.context.coordinates.read_all(upstream.log, files, columns), version
        whole = version if index >= _END_INDEX else version - 1
        part = Present()
        if 0 <= index < _END_INDEX:
            added = [c.added for c in upstream.log.commits if c.version == version]
            part = self.context.coordinates.read_all(
                upstream.log, [f for files in added for f in files], columns
            )
        if whole < 0:
            return Present(), part, whole
        must = self.context.coordinates.read_all(upstream.log, upstream.log.active(whole).values(), columns)
        return must, part, whole

    def _upstream(self, source: SourceRange, version: int) -> Evidence:
        """The table that a flow reads, at the version that it has read or later."""
        path, found = find_upstream(self.context.storage, source), None
        if path is not None and path.parent.parent.name == "tables":
            storage, name = Storage(path.parent.parent.parent), TableName(path.parent.name, path.name)
            found = self.context.tables.get(name) if storage == self.context.storage else None
            if found is None or found.log.version < version - 1 or found.since is not None:
                found = self._load(storage, name)
        if found is None or found.log.metadata.id != source.table_id:
            reason = f"it reads {source.identity.get('path')}, which is not a table of a pipeline"
            raise CannotJudgeError(reason, applies=False)
        return found

    def _load(self, storage: Storage, name: TableName) -> Evidence:
        try:
            found = load_evidence(storage, name, self.context.kinds, inspect=False)
        except LogDamagedError as error:
            raise CannotJudgeError(f"{name}, which it reads: {error}") from error
        if storage == self.context.storage:
            self.context.tables[name] = found
        return found


def find_upstream(storage: Storage, source: SourceRange) -> StoredPath | None:
    """The table behind a range; ``None`` where it is not there any more.

    Its name in our own storage comes first, since the storage may have been moved; where a table lies at
    the recorded path as well, its id decides.
    """
    text = str(source.identity.get("path", ""))
    *_, schema, name = ["", "", *plain_path(text).rstrip("/").split("/")]
    moved = storage.table(TableName(schema, name)) if name else None
    candidates = dict.fromkeys((moved, storage.root.find(text)))
    there = [path for path in candidates if path is not None and list_versions(path)]
    if len(there) > 1:
        there = [path for path in there if _table_id(path) == source.table_id] or there
    return there[0] if there else None


def _table_id(path: StoredPath) -> str | None:
    try:
        return load_table_log(path, since=list_versions(path)[-1]).metadata.id
    except LogDamagedError:
        return None
