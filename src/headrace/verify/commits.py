"""The metadata of Headrace's commits: batches with their ranges, openings, refreshes.

It is read from the table's log; the ledger holds the same (`ledger`). Nothing here judges.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.verify.delta_log import Commit, TableLog
from headrace.verify.equations import RowCounts
from headrace.verify.source_range import DeclaredRange, Kinds, Partition, SourceRange

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
    losses: tuple[DeclaredRange, ...] = ()
    repeats: tuple[DeclaredRange, ...] = ()  # the ranges that it reads again, because the user has allowed it
    renamed_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class Refresh:
    version: int
    rows: int | None  # rows written, if the commit states them
    inputs: Mapping[str, tuple[str, int]]  # the id and the version of each table that it was computed from
    update: str = ""
    quarantined: int = 0


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
    """The metadata of all commits of a table."""

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
    """The batch of a commit, or of an entry of the ledger."""
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
    """The opening of a commit, or of an entry of the ledger, which has no transactions."""
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
        inputs={name: (str(value["table_id"]), int(value["version"])) for name, value in inputs},
    )
