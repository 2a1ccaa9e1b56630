"""Reads the versions and commits of a Delta table's log, with the metadata of Headrace's own commits."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.errors import LogUnreadableError
from headrace.storage.location import Location
from headrace.storage.log_damage import log_unreadable

LOG = "_delta_log"

CLOSES = "headrace_erased_since"
"""A key of user metadata with two versions, the second that of the commit. No commit between them adds rows
for a stream that skips erasures, so a stream may continue with this commit if the log lacks them."""
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*(?:parquet|json)")
_NEWEST = 1000
"""The number of newest commits that are searched for a transaction id, or for the batches of a flow."""


@dataclass(frozen=True)
class LoggedCommit:
    version: int
    timestamp_ms: int  # when it was committed, by the writer's clock
    metadata: Mapping[str, Any] | None  # headrace's user metadata; ``None`` in a commit of another writer
    transactions: Mapping[str, int]
    operation: str
    engine: str
    changes_data: bool  # whether rows were added or removed
    removes_data: bool = False  # whether rows were removed or rewritten
    has_feed: bool = False  # whether the change data feed has rows for it
    delta_id: str | None = None  # delta's id, which its checksum file also has; other writers may set none
    properties: Mapping[str, str] | None = None  # ``None`` if the commit does not change them
    declares_erasure: bool = False  # whether its metadata declares that it removes rows on purpose
    restores: int | datetime | None = None  # the version or time that a RESTORE went back to
    erased_since: int | None = None  # no commit from this version to this one adds rows, see `CLOSES`

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    @property
    def rewrites(self) -> bool:
        """Whether rows that a stream may have read were removed, changed, or brought back."""
        return self.removes_data or (self.changes_data and self.operation == "RESTORE")

    @property
    def is_erasure(self) -> bool:
        """Whether the commit only deletes rows by a condition."""
        return self.operation in ("DELETE", "TRUNCATE")

    @property
    def adds_rows(self) -> bool:
        """Whether a stream that skips erasures reads rows of it, or refuses it."""
        return self.changes_data and not (self.removes_data and self.is_erasure)

    def passes_from(self, version: int) -> bool:
        """Whether a stream at a version may continue with this commit if the log lacks others."""
        return self.erased_since is not None and self.erased_since <= version <= self.version

    @property
    def opens(self) -> bool:
        """Whether a flow's checkpoint was opened with it, for example for a full refresh."""
        return self.metadata is not None and "opens" in self.metadata

    @property
    def refreshes_view(self) -> bool:
        """Whether it is a refresh of a materialized view."""
        return self.metadata is not None and "view" in self.metadata

    @property
    def is_ours(self) -> bool:
        return self.metadata is not None and (
            self.opens
            or self.refreshes_view
            or replay_transaction(str(self.metadata.get("replay")))[0] in self.transactions
            or self.transactions.get(str(self.metadata.get("checkpoint"))) == self.metadata.get("batch")
        )


def replay_transaction(replay: str) -> tuple[str, int]:
    """The transaction id and the number with which a replay is committed, from its name.

    The replays of a flow share one id, with rising even numbers; the number after one of them fences it. An
    older replay has an id of its own.
    """
    name, _, number = replay.rpartition("#")
    return (name, int(number)) if name and number.isdecimal() else (replay, 0)


def logged_batch(table: Location, last: int, checkpoint: str) -> int | None:
    """The last batch of a checkpoint up to a version, by the newest commits; -1 if there is none, ``None`` if
    the log does not show it: it does not hold enough commits, or it is damaged."""
    try:
        # One after another, for the log of a busy table holds too many to be listed for each batch.
        for version in range(last, max(last - _NEWEST, -1), -1):
            commit = load_commit(table, version)
            if checkpoint in commit.transactions:
                return commit.transactions[checkpoint]
            opened = commit.metadata if commit.opens else None
            if opened and opened["checkpoint"] == checkpoint and opened["opens"]["reason"] != "renamed":
                return -1
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Delta cleans logs meanwhile, and may never look at what is damaged.
        return None
    return -1 if last < _NEWEST else None


def versions(table: Location) -> tuple[int, ...]:
    """The versions whose commit files the log still holds, ascending.

    Files below a gap are left out. The log is cleaned from its beginning; a writer that was stopped meanwhile
    can then write a version again, and its commit is not part of the table.
    """
    found = _commit_files(table)
    first = len(found) - 1
    while first > 0 and found[first - 1] == found[first] - 1:
        first -= 1
    return tuple(found[max(first, 0) :])


def stray_versions(table: Location) -> tuple[int, ...]:
    """The versions of commit files that are not part of the table: below a gap, and below a checkpoint."""
    found, held = _commit_files(table), versions(table)
    covered = bool(held) and last_checkpoint(table) >= held[0] - 1
    return tuple(version for version in found if version < held[0]) if covered else ()


def _commit_files(table: Location) -> list[int]:
    names = (table / LOG).list_files()
    return [int(name[:20]) for name in names if len(name) == 25 and name.endswith(".json")]


def commit_file(table: Location, version: int) -> Location:
    return table / LOG / f"{version:020d}.json"


def newest_version(table: Location) -> int:
    """The version of the newest commit; -1 if the log has no commit."""
    return max(versions(table), default=-1)


def is_table(table: Location) -> bool:
    """Whether the table has a commit: a process that is killed at its creation can leave an empty log."""
    # Each batch checks this, and listing a long log is slow.
    return commit_file(table, 0).exists() or last_checkpoint(table) >= 0 or bool(versions(table))


def readable_versions(table: Location) -> Sequence[int]:
    """The versions that can be read: those from the oldest checkpoint, or from version 0, to the newest."""
    commits = versions(table)
    names = (table / LOG).list_files()
    starts = {int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))}
    if commits and commits[0] == 0:
        starts.add(0)
    newest = max([*starts, *commits[-1:]], default=-1)
    first = commits[0] - 1 if commits and commits[-1] == newest else newest
    oldest = min((start for start in starts if start >= first), default=newest + 1)
    return range(oldest, newest + 1)


def last_checkpoint(table: Location) -> int:
    """The version of the newest Delta checkpoint; -1 if there is none."""
    try:
        return int((table / LOG / "_last_checkpoint").read_json()["version"])
    except (FileNotFoundError, ValueError, KeyError):
        return -1


def load_checksum(table: Location, version: int) -> Any:
    """The checksum that Delta writes beside a commit, as JSON."""
    return (table / LOG / f"{version:020d}.crc").read_json()


def committed_ms(table: Location, version: int) -> int:
    """When a version was committed, or when its file was written if the commit is damaged or has no time."""
    if (commit := readable_commit(table, version)) is not None and commit.timestamp_ms > 0:
        return commit.timestamp_ms
    state = commit_file(table, version).look()
    return 0 if state is None else state.modified_ms


def newest_commits(table: Location, most: int | None = None) -> Iterator[LoggedCommit]:
    """The commits that the log still holds, the newest first."""
    known = versions(table)
    for version, data in read_ahead(table, known[::-1][:most]):
        yield load_commit(table, version, data)


def commits_since_compaction(table: Location, newest: int, most: int) -> int:
    """The number of commits that changed rows since the last compaction, up to a number."""
    number = 0
    # One after another: listing a long log is slow.
    for version in range(newest, -1, -1):
        if number >= most:
            break
        try:
            commit = readable_commit(table, version)
        except FileNotFoundError:
            if version == newest:
                continue
            break
        if commit is None or commit.operation == "OPTIMIZE":
            break
        number += commit.changes_data
    return number


def iter_commits(table: Location, first: int = 0, last: int | None = None) -> Iterator[LoggedCommit]:
    """The commits of a range of versions that the log still has."""
    chosen = [one for one in versions(table) if one >= first and (last is None or one <= last)]
    for version, data in read_ahead(table, chosen):
        yield load_commit(table, version, data)


def read_ahead(table: Location, chosen: Sequence[int]) -> Iterator[tuple[int, bytes | None]]:
    """The contents of commits, ``None`` for a missing one. Several are read at once, at first a few."""
    first, number = 0, 4
    while part := {version: commit_file(table, version).name for version in chosen[first : first + number]}:
        held = (table / LOG).read_files(list(part.values()))
        yield from ((version, held.pop(name, None)) for version, name in part.items())
        first, number = first + number, min(2 * number, 32)


def follow_commits(table: Location, first: int, last: int | None = None) -> Iterator[LoggedCommit]:
    """The commits from a version on, without listing the whole log.

    It ends at the end of the log or after ``last``; versions that the log no longer has are skipped.
    """
    version = first
    while last is None or version <= last:
        try:
            yield load_commit(table, version)
        except FileNotFoundError:
            if last is None:
                return
        version += 1


def find_missing(table: Location, first: int, last: int) -> int | None:
    """The first version of a range that the log no longer has, and that may have added rows for a stream."""
    expected = first
    for commit in follow_commits(table, first, last):
        if commit.version > expected and not commit.passes_from(expected):
            return expected
        expected = commit.version + 1
    if expected <= last:
        # The closing commit of an erasure may come after the range.
        later = next((one for one in versions(table) if one > last), None)
        if later is None or not load_commit(table, later).passes_from(expected):
            return expected
    return None


def erased_since(table: Location, newest: int) -> int:
    """The first version from which on no commit adds rows for a stream that skips erasures."""
    first = newest + 1
    for commit in newest_commits(table):
        if commit.version > newest:
            continue
        if commit.adds_rows:
            break
        first = commit.version if commit.erased_since is None else min(commit.version, commit.erased_since)
    return first


def find_commit(table: Location, after: int, matches: Callable[[LoggedCommit], bool]) -> LoggedCommit | None:
    # Listing a long log is slow, and the first version is nearly always there.
    found = next(filter(matches, follow_commits(table, after + 1)), None)
    return found or next(filter(matches, iter_commits(table, after + 1)), None)


def is_followed(table: Location, version: int) -> bool:
    """Whether a commit that was made after a version is part of the table for sure: the log has that version,
    and no checkpoint is newer, so no later version can have been cleaned away and written again."""
    return (version < 0 or commit_file(table, version).exists()) and last_checkpoint(table) <= version


def read_actions(file: Location, *names: str, data: bytes | None = None) -> Iterator[tuple[str, Any]]:
    """The actions of a commit that have one of these names. `data`: its content, if it was read already."""
    starts = tuple(f'{{"{name}"' for name in names)
    for line in _text_lines(file, data):
        if line.startswith(starts):
            yield from parse_actions(line, file).items()


def _text_lines(file: Location, data: bytes | None = None) -> Iterator[str]:
    lines = file.read_lines() if data is None else (line.decode() for line in data.splitlines())
    try:
        for line in filter(str.strip, lines):
            if not line.startswith("{"):
                raise log_unreadable(file, f"is not JSON: {line[:60]!r}")
            yield line
    except UnicodeDecodeError as error:
        raise log_unreadable(file, f"is not text: {error}") from error


def action_lines(file: Location, data: bytes | None = None) -> Iterator[str]:
    """The lines of a commit, without blank ones. `data`: its content, if it was read already."""
    line = ""
    for line in _text_lines(file, data):
        yield line
    if not line:
        # Delta would take it for a commit that changes nothing.
        raise log_unreadable(file, "is empty")


def parse_actions(line: str, file: Location) -> dict[str, Any]:
    try:
        actions: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise log_unreadable(file, f"cannot be read: {error}") from error
    return actions


def load_commit(table: Location, version: int, data: bytes | None = None) -> LoggedCommit:
    """One commit; lines of added files are not parsed. `data`: its content, if it was read already."""
    info: dict[str, Any] = {}
    transactions: dict[str, int] = {}
    properties: dict[str, str] | None = None
    changes_data = removes_data = has_feed = False
    file = commit_file(table, version)
    for line in action_lines(file, data):
        if line.startswith('{"commitInfo"'):
            info = parse_actions(line, file)["commitInfo"]
        elif line.startswith('{"txn"'):
            action = parse_actions(line, file)["txn"]
            transactions[action["appId"]] = action["version"]
        elif line.startswith('{"metaData"'):
            properties = parse_actions(line, file)["metaData"].get("configuration") or {}
        elif not removes_data and line.startswith('{"remove"'):
            removes_data = '"dataChange":true' in line
        elif not changes_data and line.startswith('{"add"'):
            changes_data = '"dataChange":true' in line
        elif line.startswith('{"cdc"'):
            has_feed = True
    metadata = _user_metadata(info)
    return LoggedCommit(
        version=version,
        timestamp_ms=int(info.get("inCommitTimestamp") or info.get("timestamp") or 0),
        metadata=metadata if "headrace" in metadata else None,
        transactions=transactions,
        operation=str(info.get("operation", "unknown")),
        engine=str(info.get("engineInfo", "unknown")),
        changes_data=changes_data or removes_data,
        removes_data=removes_data,
        has_feed=has_feed,
        delta_id=info.get("txnId"),
        properties=properties,
        declares_erasure=_declares_erasure(info, metadata),
        restores=_restored(info),
        erased_since=_erased_since(metadata, version),
    )


def readable_commit(table: Location, version: int) -> LoggedCommit | None:
    """One commit; ``None`` if it is damaged. Readers that begin at a later checkpoint do not need it."""
    try:
        return load_commit(table, version)
    except LogUnreadableError:
        return None


def undone_versions(table: Location, restore: LoggedCommit) -> tuple[int, ...]:
    """The commits with rows of this pipeline that a RESTORE has undone, as far as the log shows them."""
    to = restore.restores
    if isinstance(to, datetime):
        before = iter_commits(table, 0, restore.version - 1)
        to = max((commit.version for commit in before if commit.at <= to), default=None)
    if to is None:
        return ()
    between = iter_commits(table, to + 1, restore.version - 1)
    return tuple(commit.version for commit in between if commit.is_ours and commit.changes_data)


def added_bytes(table: Location, version: int) -> int:
    """The size of the data files that a commit adds."""
    actions = read_actions(commit_file(table, version), "add")
    return sum(int(action["size"]) for _, action in actions if action.get("dataChange"))


def checksum_matches_log(
    table: Location, last: int, latest: Mapping[str, int | None], owner: str | None = None
) -> bool:
    """Whether the commits up to a version have the transactions that a checksum states. Also False if the log
    does not show it: it holds no commit of an id any more, or it is damaged.

    `latest`: the highest batch number of each transaction id, or None if no commit has one. `owner`: Delta's
    id of the commit of that version, if the checksum states it.
    """
    asked = dict(latest)
    try:
        if owner is not None and load_commit(table, last).delta_id != owner:
            return False
        # One after another, for the log of a busy table holds too many to be listed for each batch.
        for version in range(last, max(last - _NEWEST, -1), -1):
            if not asked:
                return True
            for name, number in load_commit(table, version).transactions.items():
                if name in asked and asked.pop(name) != number:
                    return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Delta cleans logs meanwhile, and may never look at what is damaged.
        return False
    return not asked or (last < _NEWEST and set(asked.values()) == {None})


def property_since(table: Location, name: str) -> int | None:
    """The first version since which a boolean property of the table has been true; the version after the
    newest one if it is false now, and ``None`` if no commit of the log has it."""
    since: int | None = None
    last, was_true = -1, False
    for commit in iter_commits(table):
        last = commit.version
        if commit.properties is not None:
            is_true = commit.properties.get(name, "false").lower() == "true"
            since = since if is_true and was_true else last
            was_true = is_true
    return since if since is None or was_true else last + 1


def commit_mark(table: Location, version: int) -> str | None:
    """The mark of a commit, which differs from other commits of the same version; ``None`` if the log does
    not have it."""
    try:
        text = commit_file(table, version).read_bytes()
    except FileNotFoundError:
        return None
    return hashlib.sha256(text).hexdigest()[:16]


def mark_version(table: Location, version: int) -> dict[str, Any] | None:
    """A version with the mark of its commit; ``None`` if the log does not have it."""
    mark = commit_mark(table, version)
    return None if mark is None else {"version": version, "commit": mark}


def mark_newest(table: Location) -> dict[str, Any] | None:
    """The newest version with the mark of its commit; ``None`` if the table has no commit."""
    return mark_version(table, newest_version(table))


def describe_rollback(table: Location, seen: Mapping[str, Any]) -> str | None:
    """How the table differs from the version that was read; ``None`` if its log shows no difference."""
    known = versions(table)
    if known and seen["version"] > known[-1]:
        return f"version {seen['version']} was read, but the table now ends at version {known[-1]}"
    if commit_mark(table, seen["version"]) in (None, seen["commit"]):
        return None
    return f"version {seen['version']} was read, but the table now has another commit of this version"


def _restored(info: Mapping[str, Any]) -> int | datetime | None:
    if info.get("operation") != "RESTORE":
        return None
    parameters = info.get("operationParameters") or {}
    version, at = (str(parameters.get(name)).strip('"') for name in ("version", "timestamp"))
    try:
        return int(version) if version.isdecimal() else datetime.fromisoformat(at).replace(tzinfo=UTC)
    except ValueError:
        return None


def _user_metadata(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The user metadata of a commit; empty if Headrace has no part in it."""
    text = info.get("userMetadata")
    if not isinstance(text, str) or '"headrace' not in text:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _declares_erasure(info: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether a commit's user metadata declares an erasure, or it is a MERGE that only deleted rows."""
    if "headrace_erasure" in metadata:
        return metadata["headrace_erasure"] is True
    metrics = info.get("operationMetrics") or {}
    kept = [str(metrics.get(name)) for name in ("numTargetRowsInserted", "numTargetRowsUpdated")]
    return info.get("operation") == "MERGE" and kept == ["0", "0"]


def _erased_since(metadata: Mapping[str, Any], version: int) -> int | None:
    try:
        since, own = metadata[CLOSES]
        # Delta may have moved the commit behind one that adds rows.
        return int(since) if own == version else None
    except (ValueError, LookupError, TypeError):
        return None
