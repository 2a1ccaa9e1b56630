"""Changes of a Delta table's columns that a stream of its change data feed cannot read across."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError, SourceLocation, UpstreamSchemaChangedError
from headrace.sources.kind import FailedQuery
from headrace.storage.location import Location
from headrace.storage.table_log import LoggedCommit, commit_file, load_commit, read_actions, versions


@dataclass(frozen=True)
class ColumnChange:
    commit: LoggedCommit
    text: str  # what it did, such as "renamed its column `a` to `b`"


def find_change(table: Location) -> ColumnChange | None:
    """The newest commit that renames or drops columns, or changes their types, as far as the log shows it."""
    after: tuple[int, Any] | None = None
    for version in reversed(versions(table)):
        for _, action in read_actions(commit_file(table, version), "metaData"):
            before = json.loads(action["schemaString"])
            if after is not None and (changes := list(_changes(before, after[1]))):
                return ColumnChange(load_commit(table, after[0]), ", and ".join(changes))
            after = version, before
    return None


def schema_changed(
    failed: FailedQuery, table: str, location: SourceLocation, change: ColumnChange
) -> HeadraceError:
    commit = change.commit
    begins = f"remove the rows of {failed.target}, and begin with the rows that the table has now"
    error = failed.error(
        UpstreamSchemaChangedError,
        f"{table}, which it reads, has {change.text}",
        (
            f"version {commit.version}: {commit.operation} by {commit.engine}",
            "earlier changes cannot be read with the new columns; nothing was written",
        ),
        f"{begins}; its earlier changes are not read again:   headrace full-refresh {failed.target}",
        version=commit.version,
    )
    return error.with_(location=location)


def _changes(before: Any, after: Any) -> Iterator[str]:
    now = dict(_columns(after))
    for key, (name, kind) in _columns(before):
        if key not in now:
            yield f"dropped its column `{name}`"
        elif now[key][0] != name:
            yield f"renamed its column `{name}` to `{now[key][0]}`"
        elif now[key][1] != kind:
            yield f"changed the type of its column `{name}`: {_words(kind)}, then {_words(now[key][1])}"


def _words(kind: Any) -> str:
    return str(kind if isinstance(kind, str) else kind["type"]).upper()


def _columns(
    schema: Mapping[str, Any], key: str = "", above: str = ""
) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Columns and fields of structs, by their names in files, with their names and types."""
    for field in schema["fields"]:
        metadata, kind = field.get("metadata") or {}, field["type"]
        own = f"{key}/{metadata.get('delta.columnMapping.physicalName', field['name'])}"
        name, is_struct = f"{above}{field['name']}", isinstance(kind, dict) and kind["type"] == "struct"
        yield own, (name, "struct" if is_struct else kind)
        if is_struct:
            yield from _columns(kind, own, f"{name}.")
