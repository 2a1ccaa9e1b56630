"""The metadata of Headrace's commits: batches with their ranges, openings, refreshes.

It is read from the table's log; a dataset's ledger holds the same of commits that were folded out of the log,
and losses. Nothing here judges.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from headrace.model.texts import counted
from headrace.verify.delta_log import Commit, TableLog
from headrace.verify.equations import RowCounts
from headrace.verify.source_range import DeclaredRange, Kinds, Partition, SourceRange
from headrace.verify.stored import StoredPath

FENCED = 2**63 - 1
"""The batch number of the transaction that ends a checkpoint for good."""

PROPERTY_PIPELINE = "headrace.pipeline"
PROPERTY_DATASET = "headrace.dataset"
PROPERTY_KIND = "headrace.kind"
PROPERTY_COORDINATES = "headrace.coordinates"
PROPERTY_CHECKPOINT = "headrace.checkpoint."
"""Prefix of the properties that name the checkpoint which feeds the table, by flow."""

ERASURE = "headrace_erasure"
"""Key of a commit's user metadata by which another writer declares that it removes rows on purpose."""

DELETIONS = frozenset({"DELETE", "TRUNCATE"})
_KEPT_BY_MERGE = ("numTargetRowsInserted", "numTargetRowsUpdated")

Role = Literal["batch", "opening", "view", "replay", "rewrite", "foreign", "unnumbered", "metadata"]
"""What a commit is to the proof. ``replay`` adds rows of the quarantine; ``rewrite`` moves rows and changes
none; ``foreign`` is another writer's; ``unnumbered`` has the metadata of a batch or a replay without its
transaction, so that they do not count."""
_LOSSES = "losses.json"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a damaged file raises."""


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
    def spans(self) -> dict[Partition, tuple[int, int]]:
        return {key: span for one in self.sources for key, span in one.spans.items()}

    @property
    def place(self) -> dict[str, int]:
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
    losses: tuple[DeclaredRange, ...] = ()
    repeats: tuple[DeclaredRange, ...] = ()  # the ranges that it reads again, because the user has allowed it
    renamed_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class Increment:
    """What a refresh states of the rows that it changed. `start`: the version of each table after which it
    has the changes. `groups`: the columns that identify a row, if it combined aggregates."""

    added: int
    removed: int
    start: Mapping[str, int]
    groups: tuple[str, ...] | None

    @classmethod
    def parse(cls, stated: Mapping[str, Any]) -> Self:
        groups = stated.get("groups")
        start = {name: int(version) for name, version in stated.get("from", {}).items()}
        return cls(
            added=int(stated["added"]),
            removed=int(stated["removed"]),
            start=start,
            groups=None if groups is None else tuple(groups),
        )


@dataclass(frozen=True, kw_only=True)
class Refresh:
    version: int
    rows: int | None  # rows written, if the commit states them
    inputs: Mapping[str, tuple[str, int]]  # the id and the version of each table that it was computed from
    update: str = ""
    quarantined: int = 0
    definition: str = ""  # the fingerprint of the view's query
    total: int | None = None  # rows of the view after it, if the commit states them
    increment: Increment | None = None  # ``None`` if the rows were computed as a whole


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A commit that moved rejected rows from the quarantine into the table."""

    flow: str
    id: str  # its transaction, which the moved rows also name
    version: int
    rows: int
    counts: RowCounts


@dataclass(frozen=True)
class CommitClaims:
    batches: list[Batches] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)
    refreshes: list[Refresh] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)
    roles: dict[int, Role] = field(default_factory=dict)
    repeated: dict[int, str] = field(default_factory=dict)  # why versions do not count as the batch they name


def build_claims(log: TableLog, kinds: Kinds) -> CommitClaims:
    """Read the meaning of every commit that the log still holds."""
    found = CommitClaims()
    known = {value for key, value in log.metadata.properties.items() if key.startswith(PROPERTY_CHECKPOINT)}
    for commit in log.commits:
        version = commit.version
        metadata = _user_metadata(commit)
        metadata = metadata if metadata.get("headrace") == 1 else {}
        role = found.roles[version] = _role(commit, metadata)
        numbered = _is_numbered(metadata, commit)
        for application, batch in commit.transactions.items():
            if application in known and batch != FENCED and not numbered:
                found.repeated[version] = f"it has the transaction of batch {batch}, and no ranges"
        if role == "unnumbered":
            text = "its metadata names a batch or a replay, and it has no transaction of it"
            found.repeated[version] = text
        try:
            if role == "view":
                found.refreshes.append(_refresh(metadata, commit))
            if role == "replay":
                found.replays.append(read_replay(metadata, version))
            if role == "opening":
                found.openings.append(read_opening(metadata, version, commit.transactions, kinds))
                known.add(metadata["checkpoint"])
            if numbered:
                found.batches.append(read_batches(metadata, version, kinds))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            found.repeated[version] = f"its metadata cannot be read ({error!r})"
    return found


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
    return commit.operation in DELETIONS


def declares_erasure(commit: Commit) -> bool:
    """Whether the commit's user metadata is JSON with ``"headrace_erasure": true``."""
    return _user_metadata(commit).get(ERASURE) is True


def _role(commit: Commit, metadata: Mapping[str, Any]) -> Role:
    if "opens" in metadata:
        return "opening"
    if "view" in metadata and (commit.changes_data or not commit.added):
        return "view"
    if _is_numbered(metadata, commit):
        return "batch"
    if metadata and "fenced" not in metadata:
        name, number = replay_transaction(str(metadata.get("replay")))
        if commit.transactions.get(name) == number:
            return "replay"
    if not commit.changes_data:
        return "rewrite" if commit.added or commit.removed else "metadata"
    return "unnumbered" if {"batch", "replay"} & metadata.keys() else "foreign"


def replay_transaction(replay: str) -> tuple[str, int]:
    """The transaction id and the number of a replay: ``ID#NUMBER``, or an id of its own with number 0."""
    name, _, number = replay.rpartition("#")
    return (name, int(number)) if name and number.isdecimal() else (replay, 0)


def holds_replay(replay: str, held: int | None, *, settled: bool) -> bool:
    """Whether a table holds a replay that the quarantine calls committed (`settled`) or begun.

    The last number of its transaction id is `held`: the number after its own fences it, a later one is of
    another replay, which began when this one was settled.
    """
    number = replay_transaction(replay)[1]
    later = held is not None and number + 1 < held < FENCED
    return held == number or (later and settled)


def _is_numbered(metadata: Mapping[str, Any], commit: Commit) -> bool:
    checkpoint = str(metadata.get("checkpoint"))
    return "batch" in metadata and commit.transactions.get(checkpoint) == metadata["batch"]


def _user_metadata(commit: Commit) -> Mapping[str, Any]:
    """A commit's user metadata where it is a JSON object, else an empty one."""
    text = commit.user_metadata or ""
    try:
        value = json.loads(text) if '"headrace' in text else None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def read_batches(metadata: Mapping[str, Any], version: int | Sequence[int], kinds: Kinds) -> Batches:
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
        sources=tuple(map(kinds.read_range, metadata["sources"])),
    )


def read_replay(metadata: Mapping[str, Any], version: int) -> Replay:
    return Replay(
        flow=metadata["flow"],
        id=metadata["replay"],
        version=version,
        rows=int(metadata["rows"]),
        counts=RowCounts.parse(metadata),
    )


def read_opening(
    metadata: Mapping[str, Any], version: int, transactions: Mapping[str, int] | None, kinds: Kinds
) -> Opening:
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
        losses=tuple(filter(None, map(kinds.read_declared, opens.get("losses") or ()))),
        repeats=tuple(filter(None, map(kinds.read_declared, opens.get("repeats") or ()))),
        renamed_from=(opens.get("renamed_from") or {}).get("flow"),
    )


def _refresh(metadata: Mapping[str, Any], commit: Commit) -> Refresh:
    inputs = metadata["inputs"].items()
    stated = metadata.get("accepted")
    return Refresh(
        version=commit.version,
        rows=None if stated is None else int(stated) - int(metadata.get("kept", 0)),
        update=str(metadata.get("update", "")),
        quarantined=int(metadata.get("quarantined", 0)),
        definition=str(metadata.get("definition", "")),
        total=None if stated is None else int(stated),
        increment=Increment.parse(metadata["increment"]) if "increment" in metadata else None,
        inputs={name: (str(value["table_id"]), int(value["version"])) for name, value in inputs},
    )


@dataclass(frozen=True, kw_only=True)
class Other:
    """What another writer did to the number of rows, as the ledger keeps it."""

    version: int
    operation: str
    engine: str
    added: int | None = None  # rows; ``None`` where they could not be counted any more
    removed: int | None = None
    erasure: bool = False  # whether it removed rows on purpose

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
    path: StoredPath
    flow: str
    table_id: str
    first_version: int
    last_version: int
    batches: tuple[Batches, ...]
    openings: tuple[Opening, ...]
    others: tuple[Other, ...] = ()
    replays: tuple[Replay, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A dataset's ledger. A loss is recorded before a flow continues after it."""

    folds: tuple[Fold, ...] = ()
    lost: frozenset[DeclaredRange] = frozenset()
    other_losses: tuple[Mapping[str, Any], ...] = ()  # of kinds without coordinates, such as files
    damaged: Mapping[str, str] = field(default_factory=dict)  # the reason for each file that cannot be read

    def others(self, first: int, last: int) -> tuple[Other, ...]:
        """What other writers did in these versions, by the ledgers of all flows."""
        found = {other.version: other for fold in self.folds for other in fold.others}
        return tuple(found[version] for version in sorted(found) if first <= version <= last)


def load_folds(folder: StoredPath, kinds: Kinds) -> Ledger:
    """Read the folds of all flows of a dataset; to be read before the table's log.

    What a running flow commits and folds meanwhile is then in the log, and not in the ledger alone.
    """
    folds, damaged = [], {}
    # Losses and the count of late rows lie beside them.
    for path in _files_of_flows(folder):
        if not (path.name[0].isdigit() and path.name.endswith(".json")):
            continue
        try:
            folds.append(_fold(path, json.loads(path.read_text()), kinds))
        except FileNotFoundError:
            # A run that starts has put it aside since the folder was listed.
            continue
        except _UNREADABLE as error:
            damaged[f"{path.parent.name}/{path.name}"] = repr(error)
    folds.sort(key=lambda fold: (fold.first_version, fold.last_version))
    return Ledger(folds=tuple(folds), damaged=damaged)


def load_losses(folder: StoredPath, ledger: Ledger, table_id: str, kinds: Kinds) -> Ledger:
    """Complete a ledger; to be read after the table's log, whose openings come after their losses."""
    lost: set[DeclaredRange] = set()
    others: list[Mapping[str, Any]] = []
    damaged = dict(ledger.damaged)
    for path in _files_of_flows(folder):
        if path.name != _LOSSES:
            continue
        try:
            for entry in map(dict, json.loads(path.read_text())):
                if (declared := kinds.read_declared(entry)) is None:
                    others.append(entry)
                else:
                    lost.add(declared)
        except _UNREADABLE as error:
            damaged[f"{path.parent.name}/{path.name}"] = repr(error)
    return Ledger(
        folds=tuple(fold for fold in ledger.folds if fold.table_id == table_id),
        lost=frozenset(lost),
        other_losses=tuple(others),
        damaged=damaged,
    )


def _files_of_flows(folder: StoredPath) -> Iterator[StoredPath]:
    return (flow / file.name for flow in folder.list_folders() for file in flow.list_files())


def _fold(path: StoredPath, value: Mapping[str, Any], kinds: Kinds) -> Fold:
    batches, openings = [], []
    for entry in value["batches"]:
        version = entry["version"]
        if "opens" in entry:
            openings.append(read_opening(entry, version, None, kinds))
        if "batch" in entry or "batches" in entry:
            batches.append(read_batches(entry, version, kinds))
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
        replays=tuple(read_replay(one, one["version"]) for one in value.get("replays", ())),
    )


def _other(value: Mapping[str, Any]) -> Other:
    added, removed = value["added"], value["removed"]
    return Other(
        version=int(value["version"]),
        operation=str(value["operation"]),
        engine=str(value["engine"]),
        added=None if added is None else int(added),
        removed=None if removed is None else int(removed),
        erasure=bool(value.get("erasure", value["operation"] in DELETIONS)),
    )
