"""The metadata of Headrace's commits: batches with their ranges, openings, refreshes.

It is read from the table's log and from the ledger. Nothing here judges.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headrace.verify.delta_log import Commit, TableLog
from headrace.verify.equations import RowCounts
from headrace.verify.source_range import OPAQUE, SourceRange
from headrace.verify.wording import counted

FENCED = 2**63 - 1
"""The batch number of the transaction that ends a checkpoint for good."""

PROPERTY_PIPELINE = "headrace.pipeline"
PROPERTY_DATASET = "headrace.dataset"
PROPERTY_KIND = "headrace.kind"
PROPERTY_COORDINATES = "headrace.coordinates"
PROPERTY_CHECKPOINT = "headrace.checkpoint."
"""Prefix of the properties that name the checkpoint which feeds the table, by flow."""

_LOSSES = "losses.json"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a damaged file raises."""

ERASURE = "headrace_erasure"
"""Key of a commit's user metadata by which another writer declares that it removes rows on purpose."""

_DELETIONS = frozenset({"DELETE", "TRUNCATE"})
_KEPT_BY_MERGE = ("numTargetRowsInserted", "numTargetRowsUpdated")

Role = Literal["batch", "opening", "view", "rewrite", "foreign", "unnumbered", "metadata"]
"""What a commit is to the proof. ``rewrite`` moves rows and changes none; ``foreign`` is another
writer's; ``unnumbered`` carries a batch's metadata without its transaction, so its ranges do not count."""


@dataclass(frozen=True, kw_only=True)
class Batches:
    """One batch of a checkpoint, or several that the ledger has merged."""

    flow: str
    checkpoint: str
    first: int
    last: int
    first_version: int
    last_version: int
    counts: RowCounts
    sources: tuple[SourceRange, ...]

    @property
    def name(self) -> str:
        return f"batch {self.first}" if self.first == self.last else f"batches {self.first} to {self.last}"

    @property
    def place(self) -> dict[str, int]:
        """Its first batch and version, for findings."""
        return {"batch": self.first, "version": self.first_version}


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A generation begins: which checkpoint feeds the table from here on, and why."""

    flow: str
    checkpoint: str
    generation: int
    reason: str
    version: int
    fences: str | None = None
    fenced: bool = True
    """Whether the commit holds the fence that its metadata names; the ledger does not keep it."""
    losses: tuple[Mapping[str, Any], ...] = ()
    renamed_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class Refresh:
    """A materialized view was computed anew.

    Args:
        rows: Rows written, if the commit states them.
        inputs: The id and the version of each table that it was computed from.
    """

    version: int
    rows: int | None
    inputs: Mapping[str, tuple[str, int]]


@dataclass(frozen=True, kw_only=True)
class Other:
    """What another writer did to the number of rows, as the ledger keeps it.

    Args:
        added: Rows; ``None`` where they could not be counted any more.
        removed: The same.
        erasure: Whether it removed rows on purpose.
    """

    version: int
    operation: str
    engine: str
    added: int | None = None
    removed: int | None = None
    erasure: bool = False

    @property
    def net(self) -> int | None:
        return None if self.added is None or self.removed is None else self.added - self.removed

    @property
    def came(self) -> int | None:
        """Rows that it may have brought."""
        return 0 if self.operation == "DELETE" else self.added

    @property
    def gone(self) -> int | None:
        """Rows that it may have taken out on purpose."""
        if not self.erasure:
            return 0
        if self.operation == "DELETE":
            return None if self.net is None else -self.net
        return self.removed

    @property
    def text(self) -> str:
        """What the commit did, for people."""
        if self.net is None:
            did = "added or removed rows that were not counted"
        elif self.operation == "DELETE":
            did = f"removed {counted(-self.net, 'row')}"
        elif not self.removed:
            did = f"added {counted(self.net, 'row')}"
        else:
            did = f"wrote {counted(self.added or 0, 'row')} in place of {self.removed:,}"
        return f"version {self.version}: {self.operation} by {self.engine} {did}, by the ledger"


@dataclass(frozen=True, kw_only=True)
class Fold:
    """One file of the ledger."""

    path: Path
    flow: str
    table_id: str
    first_version: int
    last_version: int
    batches: tuple[Batches, ...]
    openings: tuple[Opening, ...]
    others: tuple[Other, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A dataset's ledger.

    Args:
        folds: In the order of their versions.
        losses: What was written down as lost, before a flow went on behind it.
        damaged: The reason for each file that cannot be read.
    """

    folds: tuple[Fold, ...] = ()
    losses: tuple[Mapping[str, Any], ...] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)

    def others(self, first: int, last: int) -> tuple[Other, ...]:
        """What other writers did in these versions, by the ledgers of all flows."""
        found = {other.version: other for fold in self.folds for other in fold.others}
        return tuple(found[version] for version in sorted(found) if first <= version <= last)


@dataclass(frozen=True, kw_only=True)
class CommitClaims:
    """The metadata of all commits of a table.

    Args:
        roles: What each commit of the log is, by version.
        repeated: Versions that name a batch of ours whose ranges they do not hold, with the reason.
    """

    batches: tuple[Batches, ...]
    openings: tuple[Opening, ...]
    refreshes: tuple[Refresh, ...]
    roles: Mapping[int, Role]
    repeated: Mapping[int, str]


def build_claims(log: TableLog) -> CommitClaims:
    """Read the meaning of every commit that the log still holds."""
    batches, openings, refreshes = [], [], []
    roles: dict[int, Role] = {}
    repeated: dict[int, str] = {}
    known = {value for key, value in log.metadata.properties.items() if key.startswith(PROPERTY_CHECKPOINT)}
    for commit in log.commits:
        metadata = _ours(commit.user_metadata)
        role = roles[commit.version] = _role(commit, metadata)
        numbered = metadata is not None and _is_numbered(metadata, commit)
        for application, batch in commit.transactions.items():
            if application in known and batch != FENCED and not numbered:
                repeated[commit.version] = f"it has the transaction of batch {batch}, and no ranges"
        if role == "unnumbered":
            repeated[commit.version] = "its metadata names a batch, and it has no transaction of that batch"
        try:
            if metadata is not None and role == "view":
                refreshes.append(_refresh(metadata, commit))
            if metadata is not None and role == "opening":
                openings.append(_opening(metadata, commit.version, commit.transactions))
                known.add(metadata["checkpoint"])
            if metadata is not None and numbered:
                batches.append(_batches(metadata, commit.version))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            repeated[commit.version] = f"its metadata cannot be read ({error!r})"
    return CommitClaims(
        batches=tuple(batches),
        openings=tuple(openings),
        refreshes=tuple(refreshes),
        roles=roles,
        repeated=repeated,
    )


def feeding_checkpoints(properties: Mapping[str, str]) -> dict[str, str]:
    """The flow that each checkpoint feeds the table through, by checkpoint id."""
    return {
        value: key.removeprefix(PROPERTY_CHECKPOINT)
        for key, value in properties.items()
        if key.startswith(PROPERTY_CHECKPOINT) and value
    }


def is_erasure(commit: Commit) -> bool:
    """Whether a commit of another writer removes rows on purpose: it only deletes, or it declares itself."""
    if declares_erasure(commit):
        return True
    if commit.operation == "MERGE":
        return all(str(commit.metrics.get(name)) == "0" for name in _KEPT_BY_MERGE)
    return commit.operation in _DELETIONS


def declares_erasure(commit: Commit) -> bool:
    """Whether the commit's user metadata is JSON with ``"headrace_erasure": true``."""
    return _user_metadata(commit.user_metadata).get(ERASURE) is True


def load_folds(folder: Path) -> Ledger:
    """Read the folds of all flows of a dataset; to be read before the table's log.

    What a running flow commits and folds meanwhile is then in the log, and not in the ledger alone.

    Args:
        folder: ``ledger/<dataset>``.
    """
    folds, damaged = [], {}
    # Losses and the count of late rows lie beside them.
    for path in sorted(folder.glob("*/[0-9]*.json")):
        try:
            folds.append(_fold(path, json.loads(path.read_text(encoding="utf-8"))))
        except FileNotFoundError:
            # A run that starts has put it aside since the folder was listed.
            continue
        except _UNREADABLE as error:
            damaged[f"{path.parent.name}/{path.name}"] = repr(error)
    folds.sort(key=lambda fold: (fold.first_version, fold.last_version))
    return Ledger(folds=tuple(folds), damaged=damaged)


def load_losses(folder: Path, ledger: Ledger, table_id: str) -> Ledger:
    """Complete a ledger; to be read after the table's log, whose openings come after their losses.

    Args:
        folder: ``ledger/<dataset>``.
        ledger: The folds.
        table_id: Folds of an earlier table of the same name are left out.
    """
    losses: list[Mapping[str, Any]] = []
    damaged = dict(ledger.damaged)
    for path in sorted(folder.glob(f"*/{_LOSSES}")):
        try:
            losses += [dict(loss) for loss in json.loads(path.read_text(encoding="utf-8"))]
        except _UNREADABLE as error:
            damaged[f"{path.parent.name}/{path.name}"] = repr(error)
    return Ledger(
        folds=tuple(fold for fold in ledger.folds if fold.table_id == table_id),
        losses=tuple(losses),
        damaged=damaged,
    )


def _role(commit: Commit, metadata: Mapping[str, Any] | None) -> Role:
    if metadata is not None and "opens" in metadata:
        return "opening"
    if metadata is not None and "view" in metadata and (commit.changes_data or not commit.added):
        return "view"
    if metadata is not None and _is_numbered(metadata, commit):
        return "batch"
    if not commit.changes_data:
        return "rewrite" if commit.added or commit.removed else "metadata"
    return "unnumbered" if metadata is not None and "batch" in metadata else "foreign"


def _is_numbered(metadata: Mapping[str, Any], commit: Commit) -> bool:
    return (
        "batch" in metadata and commit.transactions.get(str(metadata.get("checkpoint"))) == metadata["batch"]
    )


def _ours(text: str | None) -> Mapping[str, Any] | None:
    value = _user_metadata(text)
    return value if value.get("headrace") == 1 else None


def _user_metadata(text: str | None) -> Mapping[str, Any]:
    """A commit's user metadata where it is a JSON object, else an empty one."""
    if text is None or '"headrace' not in text:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _fold(path: Path, value: Mapping[str, Any]) -> Fold:
    batches, openings = [], []
    for entry in value["batches"]:
        version = entry["version"]
        if "opens" in entry:
            openings.append(_opening(entry, version, None))
        if "batch" in entry or "batches" in entry:
            batches.append(_batches(entry, version))
    first, last = value["versions"]
    return Fold(
        path=path,
        flow=value["flow"],
        table_id=value["table_id"],
        first_version=first,
        last_version=last,
        batches=tuple(batches),
        openings=tuple(openings),
        others=tuple(_other(other) for other in value.get("others", ())),
    )


def _other(value: Mapping[str, Any]) -> Other:
    added, removed = value["added"], value["removed"]
    return Other(
        version=int(value["version"]),
        operation=str(value["operation"]),
        engine=str(value["engine"]),
        added=None if added is None else int(added),
        removed=None if removed is None else int(removed),
        erasure=bool(value.get("erasure", value["operation"] in _DELETIONS)),
    )


def _batches(metadata: Mapping[str, Any], version: int | Sequence[int]) -> Batches:
    first, last = metadata["batches"] if "batches" in metadata else (metadata["batch"], metadata["batch"])
    first_version, last_version = version if isinstance(version, Sequence) else (version, version)
    return Batches(
        flow=metadata["flow"],
        checkpoint=metadata["checkpoint"],
        first=int(first),
        last=int(last),
        first_version=first_version,
        last_version=last_version,
        counts=RowCounts.parse(metadata),
        sources=_sources(metadata["sources"]),
    )


def _sources(values: Iterable[Mapping[str, Any]]) -> tuple[SourceRange, ...]:
    return tuple(
        SourceRange(
            index=int(value["index"]),
            kind=value["kind"],
            identity=value["identity"],
            start=None if value["from"] is None else _position(value["from"], value["kind"]),
            until=_position(value["until"], value["kind"]),
            seen=None if value.get("seen") is None else _position(value["seen"]),
            files=None if value.get("files") is None else _position(value["files"]),
            last=None if value.get("last") is None else _position(value["last"]),
        )
        for value in values
    )


def _position(value: Any, kind: str = "") -> Mapping[str, Any]:
    if kind == OPAQUE:
        return {"offset": value}
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not a position")
    return value


def _opening(metadata: Mapping[str, Any], version: int, transactions: Mapping[str, int] | None) -> Opening:
    opens = metadata["opens"]
    fences = opens.get("fences")
    return Opening(
        flow=metadata["flow"],
        checkpoint=metadata["checkpoint"],
        generation=int(opens["generation"]),
        reason=opens["reason"],
        version=version,
        fences=fences,
        fenced=fences is None or transactions is None or transactions.get(fences) == FENCED,
        losses=tuple(opens.get("losses") or ()),
        renamed_from=(opens.get("renamed_from") or {}).get("flow"),
    )


def _refresh(metadata: Mapping[str, Any], commit: Commit) -> Refresh:
    return Refresh(
        version=commit.version,
        rows=None if metadata.get("rows") is None else int(metadata["rows"]),
        inputs={
            name: (str(value["table_id"]), int(value["version"]))
            for name, value in metadata["inputs"].items()
        },
    )
