"""Notes of a plan on tables whose key index needs more memory than it may have."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.model.notes import Note
from headrace.model.texts import size_text
from headrace.plan.properties import SCD_TYPE
from headrace.plan.stages import OpenTableStage, Plan
from headrace.storage.location import Location, open_delta
from headrace.storage.table_log import is_table, load_checksum, newest_version


def find_index_notes(plan: Plan) -> Iterator[Note]:
    """A note for each table with changes by key whose index needs more memory than it may have."""
    opens = (stage for stage in plan.stages if isinstance(stage, OpenTableStage))
    stages = [stage for stage in opens if stage.properties.get(SCD_TYPE) == "1"]
    if not stages:
        return
    from headrace.run.targets import index_memory
    from headrace.sinks.delta.key_index import BYTES_PER_KEY
    from headrace.sinks.delta.table_index import memory_of

    limit, taken = index_memory(plan.project), 0
    for stage in stages if limit else ():
        path = plan.project.storage.table(stage.table.name)
        if not is_table(path):
            continue
        rows = _count_rows(path)
        if rows is None:
            continue
        needed = memory_of(rows)
        if needed + taken <= limit:
            taken += rows * BYTES_PER_KEY
        else:
            others = f"; the indexes of other tables need {size_text(taken)}" if taken else ""
            yield Note(
                level="note",
                text=f"{stage.table.name.short} has {rows:,} rows: the index of its keys needs "
                f"{size_text(needed)} while it is built, and all indexes may have "
                f"{size_text(limit)}{others}. Each batch reads the keys of the whole table instead, which is "
                "slower",
                location=stage.table.location,
                remedy=f"give it more memory:   upsert: {{index_memory: {-(-(needed + taken) // 2**30)}g}}",
            )


def _count_rows(table: Location) -> int | None:
    """The number of rows by the statistics of the log; ``None`` if they do not have it."""
    import pyarrow as pa

    try:
        read = open_delta(table)
        added = pa.table(read.get_add_actions())
        numbers = added["num_records"].to_pylist() if "num_records" in added.column_names else [None]
        deleted = load_checksum(table, newest_version(table)).get("numDeletedRecordsOpt") or 0
    except Exception:
        # A note is worth no failure of the plan; a table that cannot be read is refused elsewhere.
        return None
    return None if None in numbers and added.num_rows else sum(filter(None, numbers)) - int(deleted)
