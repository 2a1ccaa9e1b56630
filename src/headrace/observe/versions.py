"""The commits of a table: the version that a user asks for, by number or as the newest at a time, and the
last ones for the status; without Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from headrace.errors import LogUnreadableError, ReadVersionGoneError, ReadVersionUnknownError, first_line
from headrace.storage.arrow_rows import select
from headrace.storage.layout import locate
from headrace.storage.location import Location, open_delta
from headrace.storage.log_damage import find_damage
from headrace.storage.table_log import LoggedCommit, load_commit, newest_commits, readable_versions

_WALKED = 100  # the versions that are looked at to find one whose files are still there
CHECKPOINT = "headrace.checkpoint."
"""What the property of a table begins with that names a flow's checkpoint."""
_LOOKED_BACK = 500
"""The number of commits in which a flow's last batch is searched; older batches are in the ledger."""
_RATE_WINDOW_MS = 30_000


def find_version(
    table: Location, *, version: int | None = None, timestamp: datetime | None = None
) -> int | None:
    """The chosen version; ``None`` for the newest."""
    if version is None and timestamp is None:
        return None
    known = readable_versions(table)
    if version is not None:
        if version not in known:
            raise _no_version(table, known, f"has no version {version}", {"version": version})
        return version
    assert timestamp is not None
    return _newest_at(table, known, timestamp)


def check_files(table: Location, version: int) -> None:
    """Check that the data files of a version still exist: a vacuum removes files, but no versions."""
    missing = _missing_file(table, version)
    if missing is None:
        return
    known = readable_versions(table)
    whole = [known[-1]] if known and _missing_file(table, known[-1]) is None else []
    if whole:
        for older in list(reversed(known))[1:_WALKED]:
            if older <= version or _missing_file(table, older) is not None:
                break
            whole.append(older)
    raise ReadVersionGoneError(
        f"version {version} of the table {table.name} cannot be read: a vacuum has removed data files",
        facts=(f"missing: {missing}", *([f"can be read: {_span(whole[-1], whole[0])}"] if whole else ())),
        remedies=(f"read the newest version:   headrace read {table.name}",)
        if whole
        else ("headrace verify",),
        params={"dataset": table.name, "version": version, "whole": [whole[-1], whole[0]] if whole else None},
    )


def _newest_at(table: Location, known: Sequence[int], moment: datetime) -> int:
    asked = {"timestamp": moment.isoformat()}
    if moment > datetime.now(UTC):
        raise _no_version(table, known, f"has no version at {_shown(moment)}, which is in the future", asked)
    low, high = 0, len(known)
    # Commits follow each other in time; a writer whose clock is behind moves the answer by as much.
    while low < high:
        middle = (low + high) // 2
        committed = _committed(table, known[middle])
        if committed is None or committed <= moment:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        first = _committed(table, known[0]) if known else None
        when = "" if first is None else f"; the first was committed at {_shown(first)}"
        raise _no_version(table, known, f"has no version as old as {_shown(moment)}", asked, when)
    return known[low - 1]


def _committed(table: Location, version: int) -> datetime | None:
    """When a version was committed; ``None`` if only a checkpoint of Delta still has it."""
    try:
        return load_commit(table, version).at
    except FileNotFoundError:
        return None


def _missing_file(table: Location, version: int) -> str | None:
    """The first file of a version that does not exist; ``None`` if all exist."""
    for uri in open_delta(table, version).file_uris():
        file = locate(uri)
        if not file.exists() and not locate(unquote(file.path)).exists():
            return file.name
    return None


def _no_version(
    table: Location, known: Sequence[int], what: str, params: Mapping[str, object], first: str = ""
) -> ReadVersionUnknownError:
    held = f"its log has {_span(known[0], known[-1])}{first}" if known else "its log has no version"
    return ReadVersionUnknownError(
        f"the table {table.name} {what}",
        facts=(held,),
        remedies=(f"read the newest version:   headrace read {table.name}",),
        params={"dataset": table.name, **params, "versions": [known[0], known[-1]] if known else None},
    )


def _span(first: int, last: int) -> str:
    return f"version {first}" if first == last else f"versions {first} to {last}"


def _shown(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, kw_only=True)
class RecentCommits:
    version: int
    table_id: str
    properties: Mapping[str, str]
    rows: int | None  # the number of rows; ``None`` if it is not known
    files: int
    size_bytes: int
    commits: tuple[LoggedCommit, ...]

    @property
    def changed(self) -> datetime | None:
        return next((commit.at for commit in self.commits if commit.changes_data), None)

    def last_batch(self, checkpoint: str) -> LoggedCommit | None:
        return next((commit for commit in self.commits if _is_batch(commit, checkpoint)), None)

    def last_refresh(self) -> LoggedCommit | None:
        return next((commit for commit in self.commits if commit.refreshes_view), None)

    def rate(self, checkpoint: str, now: datetime) -> float | None:
        """Rows per second that a flow has committed in the last minutes; ``None`` if none."""
        since_ms = now.timestamp() * 1000 - _RATE_WINDOW_MS
        recent = [c for c in self.commits if _is_batch(c, checkpoint) and c.timestamp_ms > since_ms]
        if not recent:
            return None
        rows = sum(int((commit.metadata or {}).get("accepted", 0)) for commit in recent)
        if len(recent) == 1:
            return rows / (_RATE_WINDOW_MS / 1000)
        # The rows of the oldest commit were gathered before the time that is measured.
        rows -= int((recent[-1].metadata or {}).get("accepted", 0))
        return rows / max((now.timestamp() * 1000 - recent[-1].timestamp_ms) / 1000, 0.001)


def load_tail(path: Location) -> RecentCommits:
    """Read a table's newest commits and its size."""
    commits = newest_commits(path, _LOOKED_BACK)
    try:
        table = open_delta(path)
        actions = table.get_add_actions(flatten=True)
        metadata = table.metadata()
        return RecentCommits(
            version=table.version(),
            table_id=str(metadata.id),
            properties=metadata.configuration,
            rows=_count(table, actions),
            files=len(actions),
            size_bytes=sum(actions.column("size_bytes").to_pylist()),
            commits=tuple(_needed(commits, metadata.configuration, table.version())),
        )
    except LogUnreadableError:
        raise
    except Exception as error:  # DataFusion's own errors come through arro3 without a class.
        raise find_damage(path) or ValueError(first_line(error)) from error


def _needed(
    commits: Iterable[LoggedCommit], properties: Mapping[str, str], newest: int
) -> Iterator[LoggedCommit]:
    """The commits up to the one that answers the last question of the status."""
    missing = {value for key, value in properties.items() if key.startswith(CHECKPOINT) and value}
    if properties.get("headrace.kind") == "materialized_view":
        missing.add("view")
    changed, since_ms = False, time.time() * 1000 - _RATE_WINDOW_MS
    for commit in commits:
        if commit.version > newest:
            continue
        yield commit
        changed |= commit.changes_data
        metadata = commit.metadata or {}
        missing -= {"view"} & metadata.keys()
        if "batch" in metadata and commit.is_ours:
            missing.discard(metadata["checkpoint"])
        if not missing and changed and commit.timestamp_ms < since_ms:
            return


def _is_batch(commit: LoggedCommit, checkpoint: str) -> bool:
    metadata = commit.metadata
    return (
        metadata is not None
        and "batch" in metadata
        and metadata.get("checkpoint") == checkpoint
        and commit.is_ours
    )


def _count(table: Any, actions: Any) -> int | None:
    numbers = actions.column("num_records").to_pylist() if "num_records" in actions.schema.names else [None]
    if any(number is None for number in numbers):
        return None
    features = table.protocol().reader_features or []
    if "deletionVectors" in features and any(batch.num_rows for batch in table.deletion_vectors()):
        # The statistics count deleted rows too.
        return int(select(table, "SELECT count(*) AS n FROM t").column("n").to_pylist()[0])
    return sum(numbers)
