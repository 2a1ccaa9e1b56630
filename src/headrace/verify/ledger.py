"""A dataset's ledger: batches and openings that were folded out of the table's log, and losses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.model.texts import counted
from headrace.verify.commits import (
    DELETIONS,
    Batches,
    Opening,
    Replay,
    read_batches,
    read_opening,
    read_replay,
)
from headrace.verify.source_range import DeclaredRange, Kinds
from headrace.verify.stored import StoredPath

_LOSSES = "losses.json"


_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a damaged file raises."""


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
    """Complete a ledger; to be read after the table's log, whose openings come after their losses.

    Folds of an earlier table of the same name are left out.
    """
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
