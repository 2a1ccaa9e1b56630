"""The ranges of every batch of a flow, kept in addition to the table's log.

Delta deletes old log files and keeps no commit information in its checkpoints, so the ranges in the commits
are removed some day. Before that, they are folded into files here, together with the row counts of other
writers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from headrace.model.counts import sum_counts
from headrace.model.names import TableName
from headrace.model.ranges import RANGE_KEYS, marks_of
from headrace.state.checkpoint import corrupt, reading
from headrace.storage.layout import Storage
from headrace.storage.location import Location

_LOSSES = "losses.json"
_LATE = "late.json"
_VIEW = "created.json"
_SUPERSEDED = json.dumps({"flow": "", "table_id": "", "versions": [0, -1], "batches": [], "others": []})
"""The content of a fold that was put aside. Its file is not deleted: another process can have folded anew
meanwhile."""
_ENTRIES = 200
"""Entries up to which a fold grows, so that a pipeline run every minute leaves few files."""


JoinMarks = Callable[[str, Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any] | None]
"""Joins the marks of two ranges of a kind of source that follow each other; ``None`` keeps them apart."""


class TargetCommits(Protocol):
    """The commits that a target still has of itself, each as the ledger keeps it."""

    @property
    def span(self) -> range:
        """The versions of these commits, without a gap."""
        ...

    def mark(self, version: int) -> str | None:
        """A text that no other commit of the same version has; ``None`` if the target lacks the commit."""
        ...

    def commits(
        self, first: int, last: int | None = None, *, others: bool = True
    ) -> Iterator[Mapping[str, Any]]:
        """The commits of a range of versions, each with its ``version`` and ``timestamp``.

        Those of this pipeline have their metadata (`headrace`). Those of others that change rows have
        ``operation``, ``engine``, ``added``, ``removed``, ``erasure``, and ``undone`` if they undo commits.
        """
        ...

    def newest_batches(self, after: int = -1) -> Iterator[Mapping[str, Any]]:
        """The batches after a version, the newest first."""
        ...


@dataclass(frozen=True)
class Ledger:
    folder: Location
    dataset: TableName
    flow: str

    def siblings(self) -> tuple[Ledger, ...]:
        """The ledgers of all present and former flows of the same dataset, including this one."""
        above = self.folder.parent
        return tuple(Ledger(above / name, self.dataset, name) for name in above.list_folders())

    def fold(
        self, target: TargetCommits, table_id: str, join_marks: JoinMarks
    ) -> tuple[Mapping[str, Any], ...]:
        """Add the commits of the target that the ledger does not have yet; returns those of other writers."""
        known = target.span
        held = [(data, fold) for data, fold in self._load() if fold["table_id"] == table_id]
        expected = _next_version(fold for _, fold in held)
        if not known or known[-1] < expected or self.stale_folds(target, table_id, known[-1]):
            # What was taken back is put aside when the flow is opened anew, and never grown.
            return ()
        # What the log has lost before it was seen is a hole that stays visible between two folds.
        first = max(expected, known[0])
        found = list(target.commits(first, known[-1]))
        mine = [one for one in found if one.get("flow") == self.flow]
        entries = [one for one in mine if "replay" not in one]
        replays = [one for one in mine if "replay" in one]
        foreign = others = [one for one in found if "headrace" not in one]
        data, before = held[-1] if held and first == expected else (None, None)
        if before is not None and len(before["batches"]) + len(before.get("others", ())) >= _ENTRIES:
            data = before = None
        if before is not None:
            first, entries = before["versions"][0], [*before["batches"], *entries]
            others = [*before.get("others", ()), *others]
            replays = [*before.get("replays", ()), *replays]
        record = {
            "headrace": 1,
            "dataset": str(self.dataset),
            "flow": self.flow,
            "table_id": table_id,
            "versions": [first, known[-1]],
            "mark": target.mark(known[-1]),
            "batches": compact(entries, join_marks),
            "others": others,
            "replays": replays,
        }
        path, text = self._path(first, table_id), json.dumps(record)
        # If another process has folded meanwhile, its fold can hold commits that the log no longer has.
        if data is None:
            is_written = path.create(text) or path.swap(_SUPERSEDED.encode(), text)
        else:
            is_written = path.swap(data, text)
        return tuple(foreign) if is_written else ()

    def _path(self, first: int, table_id: str) -> Location:
        # Named by where it starts, so that a fold that grows replaces itself in one step; a table
        # that was created anew starts at 0 again.
        return self.folder / f"{first:020d}-{table_id[:8]}.json"

    def next_version(self, table_id: str) -> int:
        """The first version of this table that no fold holds."""
        return _next_version(fold for fold in self.folds() if fold["table_id"] == table_id)

    def folds(self) -> tuple[dict[str, Any], ...]:
        return tuple(fold for _, fold in self._load())

    def _load(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """The files of the folds, and what they say."""
        names = [one for one in self.folder.list_files() if one[0].isdigit() and one.endswith(".json")]
        for name, data in self.folder.read_files(names).items():
            try:
                fold = json.loads(data)
            except ValueError as error:
                raise corrupt(self.folder / name, error) from error
            if fold["table_id"]:
                yield data, fold

    def stale_folds(self, target: TargetCommits, table_id: str, version: int) -> tuple[dict[str, Any], ...]:
        """The folds of versions that no longer exist, because an older copy of the table was restored.

        If the table has used the same version numbers again, the mark of a fold's last commit differs from
        the log. A fold is stale, too, if its last commit was never part of the table (`versions`).
        """
        first = target.span.start

        def is_stale(fold: Mapping[str, Any]) -> bool:
            last, mark = fold["versions"][1], fold.get("mark")
            if last > version:
                return True
            known = mark is not None and target.mark(last)
            return known not in (None, False) and (known != mark or last < first)

        mine = [fold for fold in self.folds() if fold["table_id"] == table_id]
        start = min((fold["versions"][0] for fold in mine if is_stale(fold)), default=None)
        return () if start is None else tuple(fold for fold in mine if fold["versions"][0] >= start)

    def rewind(self, target: TargetCommits, table_id: str, version: int) -> bool:
        """Set aside the folds of versions that the table no longer has; returns whether there were any."""
        stale = self.stale_folds(target, table_id, version)
        # The newest first: after a crash, the first stale entry still shows that the ledger is stale.
        for fold in reversed(stale):
            path = self._path(fold["versions"][0], table_id)
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()[:12]
            (self.folder / "superseded" / f"{path.stem}-{digest}.json").create(data.decode())
            if json.loads(data) != fold or not path.swap(data, _SUPERSEDED):
                # Another process has folded it anew.
                break
        return bool(stale)

    def record_losses(self, losses: Iterable[Mapping[str, Any]]) -> None:
        """Record losses of a source before a new checkpoint continues after them."""
        path = self.folder / _LOSSES
        if path.exists():
            with reading(path):
                path.read_json()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        added = [{**loss, "at": now} for loss in losses]
        path.update_json(lambda held: [*(held or ()), *added])

    def losses(self) -> list[Mapping[str, Any]]:
        """The losses of the sources, the oldest first."""
        found = (self.folder / _LOSSES).find_json()
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def record_late(self, checkpoint: str, batch: int, rows: int) -> bool:
        """Add the late rows of a batch; returns whether the batch was not counted yet."""
        is_new = True

        def add(held: Any) -> dict[str, Any]:
            nonlocal is_new
            known = held if isinstance(held, dict) else {}
            before = known.get(checkpoint, {})
            if not (is_new := before.get("batch", -1) < batch):
                return known
            return {**known, checkpoint: {"batch": batch, "rows": before.get("rows", 0) + rows}}

        (self.folder / _LATE).update_json(add)
        return is_new

    def late_rows(self, checkpoint: str) -> int:
        """The late rows that a query has dropped since its checkpoint was opened."""
        held = (self.folder / _LATE).find_json()
        # A count for people to look at: what is damaged begins anew.
        return int((held if isinstance(held, dict) else {}).get(checkpoint, {}).get("rows", 0))

    def last_batch(self, target: TargetCommits, checkpoint: str, batch: int) -> Mapping[str, Any] | None:
        """The metadata of a batch's commit, from the target or else from the ledger."""
        newest, folds = target.span.stop - 1, self.folds()
        folded = max((fold["versions"][1] for fold in folds), default=-1)
        if any(self.stale_folds(target, table_id, newest) for table_id in {one["table_id"] for one in folds}):
            folded = -1
        # A fold has the last batch before it, and the log of a busy table holds too many commits.
        entry = _find_batch(target, checkpoint, batch, folded) or self._folded_batch(checkpoint, batch)
        return _find_batch(target, checkpoint, batch) if entry is None and folded >= 0 else entry

    def _folded_batch(self, checkpoint: str, batch: int) -> Mapping[str, Any] | None:
        # A flow that has another name now has left its folds with the old one.
        folds = [fold for ledger in (*self.siblings(), self) for fold in ledger.folds()]
        for fold in reversed(folds):
            for entry in reversed(fold["batches"]):
                numbered = "batch" in entry or "batches" in entry
                if numbered and entry["checkpoint"] == checkpoint and _batches(entry)[1] == batch:
                    return dict(entry)
        return None


def _next_version(folds: Iterable[Mapping[str, Any]]) -> int:
    return max((int(fold["versions"][1]) for fold in folds), default=-1) + 1


def record_view(folder: Location, pipeline: str, view: TableName, table_id: str) -> None:
    """Record once that a view was created; it has no checkpoint that would show that."""
    path = folder / _VIEW
    record = {"headrace": 1, "pipeline": pipeline, "dataset": str(view), "table_id": table_id}
    if path.find_json() != record:
        path.replace_json(record)


def view_ledgers(storage: Storage) -> Iterator[TableName]:
    folder = storage.root / "ledger"
    names = folder.list_folders()
    held = folder.files.gather(lambda name: (folder / name / "view" / _VIEW).exists(), names)
    return (TableName.parse(name, "default") for name, is_view in zip(names, held, strict=True) if is_view)


def compact(entries: Iterable[Mapping[str, Any]], join_marks: JoinMarks) -> list[dict[str, Any]]:
    """Merge batches that follow each other, range to range, into one entry each."""
    merged: list[dict[str, Any]] = []
    for entry in entries:
        if merged and (sources := _joined_sources(merged[-1], entry, join_marks)) is not None:
            merged[-1] = _join(merged[-1], entry, sources)
        else:
            merged.append(dict(entry))
    return merged


def _find_batch(
    target: TargetCommits, checkpoint: str, batch: int, after: int = -1
) -> Mapping[str, Any] | None:
    batches = target.newest_batches(after)
    return next((one for one in batches if (one["checkpoint"], one["batch"]) == (checkpoint, batch)), None)


def _joined_sources(
    before: Mapping[str, Any], entry: Mapping[str, Any], join_marks: JoinMarks
) -> list[dict[str, Any]] | None:
    """The ranges of two batches as one range of each source; ``None`` where one does not follow the other."""
    if "opens" in before or "opens" in entry or before["checkpoint"] != entry["checkpoint"]:
        return None
    if _batches(entry)[0] != _batches(before)[1] + 1 or len(before["sources"]) != len(entry["sources"]):
        return None
    joined = []
    for one, two in zip(before["sources"], entry["sources"], strict=True):
        # A partition that appears in between makes the two ends differ.
        follows = one["until"] == two["from"]
        if one["index"] != two["index"] or one["identity"] != two["identity"] or not follows:
            return None
        marks = join_marks(two["kind"], marks_of(one), marks_of(two))
        if marks is None:
            return None
        joined.append({**{key: one[key] for key in one if key in RANGE_KEYS}, "until": two["until"], **marks})
    return joined


def _join(
    before: Mapping[str, Any], entry: Mapping[str, Any], sources: list[dict[str, Any]]
) -> dict[str, Any]:
    joined = {key: value for key, value in before.items() if key != "batch"}
    joined.update(
        batches=[_batches(before)[0], _batches(entry)[1]],
        version=[_versions(before)[0], _versions(entry)[1]],
        timestamp=entry["timestamp"],
        sources=sources,
    )
    return joined | sum_counts(before, entry)


def _batches(entry: Mapping[str, Any]) -> tuple[int, int]:
    if "batches" in entry:
        first, last = entry["batches"]
        return first, last
    return entry["batch"], entry["batch"]


def last_version(entry: Mapping[str, Any]) -> int:
    """The table version with which a fold's entry ends."""
    return _versions(entry)[1]


def _versions(entry: Mapping[str, Any]) -> tuple[int, int]:
    version = entry["version"]
    return (version[0], version[1]) if isinstance(version, list) else (version, version)
