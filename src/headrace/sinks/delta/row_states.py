"""Changes what became of rejected rows, in one commit on their quarantine table; starts no JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import QuarantineChangedError
from headrace.storage.arrow_rows import select
from headrace.storage.location import Location, open_delta

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_ATTEMPTS = 5
"""`deltalake` fails if a flow appends rejected rows at the same time, whichever rows they are."""


def change_rows(
    path: Location, rows: pa.Table, *, before: str, values: Mapping[str, str], metadata: Mapping[str, Any]
) -> None:
    """Change columns of rows in one commit. `values`: the new values of columns, in SQL; `new` is the row in
    ``rows``, `old` the one in the table."""
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError

    if not rows.num_rows:
        return
    now = datetime.now(UTC).isoformat()
    set_ = {**values, "changed_at": f"""arrow_cast('{now}', 'Timestamp(Microsecond, Some("UTC"))')"""}
    properties = CommitProperties(custom_metadata={"userMetadata": json.dumps(metadata)})
    for attempt in range(_ATTEMPTS):
        table = open_delta(path)
        if missing := _count_others(table, rows, before):
            raise QuarantineChangedError(
                f"{missing} of {rows.num_rows} rows of the quarantine {path.name} are not {before} any more",
                facts=("another process has changed them", "no row was changed"),
                remedies=(f"headrace quarantine list {path.name}",),
                params={"quarantine": str(path), "rows": missing},
            )
        # A merge writes the files of changed rows again: at most one for each row.
        sizes = table.get_add_actions(flatten=True).column("size_bytes").to_pylist()
        path.check_space(sum(sorted(sizes)[-rows.num_rows :]))
        merge = table.merge(
            rows, "old.id = new.id", source_alias="new", target_alias="old", commit_properties=properties
        )
        try:
            merge.when_matched_update(set_).execute()
            return
        except CommitFailedError:
            if attempt == _ATTEMPTS - 1:
                raise


def replaying_rows(path: Location, replay: str) -> pa.Table:
    return _select(path, "id", f"state = 'replaying' AND replay = '{replay}'")


def unsettled_replays(path: Location) -> Mapping[str, str]:
    rows = _select(path, "DISTINCT replay, flow", "state = 'replaying'").to_pylist()
    return {row["replay"]: row["flow"] for row in rows}


def _select(path: Location, columns: str, where: str) -> pa.Table:
    import pyarrow as pa

    query = f"SELECT {columns} FROM t WHERE {where}"
    found = pa.table(select(open_delta(path), query))
    return found.cast(pa.schema([(name, pa.string()) for name in found.column_names]))


def _count_others(table: DeltaTable, rows: pa.Table, state: str) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    query = f"SELECT id FROM t WHERE state = '{state}'"
    ids = pc.cast(pa.table(select(table, query)).column("id"), pa.string())
    held = pc.sum(pc.is_in(rows.column("id"), value_set=ids.combine_chunks())).as_py()
    return int(rows.num_rows) - int(held or 0)
