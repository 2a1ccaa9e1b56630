"""The limit of rejected records of a batch or refresh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.contracts.rejected import describe_record
from headrace.errors import MaxRejectedExceededError
from headrace.model.counts import BatchCounts
from headrace.model.declarations import Flow, RefreshFlow, RejectionLimit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_SHOWN: Final = 5


def check_rejected(
    flow: Flow,
    limit: RejectionLimit,
    counts: BatchCounts,
    rejected: DataFrame | None,
    outcome: str,
    past: Iterable[Mapping[str, Any]] = (),
) -> None:
    """Check that no more records are rejected than a dataset allows. Nothing is committed yet.

    Args:
        rejected: The rows for the quarantine table, if there are any.

    Raises:
        MaxRejectedExceededError: There are more.
    """
    if not _rejected(own := counts.to_json()):
        return
    judged = [own, *past]
    count, records = sum(map(_rejected, judged)), sum(one["input"] for one in judged)
    if limit.allows(count, records):
        return
    name, what = f"flow {flow.name}", f"the last {len(judged)} batches" if len(judged) > 1 else "a batch"
    if isinstance(flow, RefreshFlow):
        name, what = flow.target.short, "a refresh"
    shown = [] if rejected is None else rejected.select("source", "reasons").limit(_SHOWN).collect()
    failed = [one for one in counts.expectations if one.failed and one.action in ("quarantine", "drop")]
    raise MaxRejectedExceededError(
        f"{name}: {count:,} of {records:,} records of {what} are rejected "
        f"({count / records:.1%}), and max_rejected is {limit}",
        location=flow.location,
        facts=(
            *(f"`{one.name}`: {one.failed:,} rows" for one in failed),
            *(
                f"{one.name}: {one.records:,} records"
                for one in counts.bad_records
                if one.action == "quarantine"
            ),
            *map(_line, shown),
            outcome,
        ),
        remedies=(
            "correct the source, the schema or the expectations, and run again:   headrace run",
            "or allow more rejected records: max_rejected",
        ),
        params={
            "flow": flow.name,
            "rejected": count,
            "records": records,
            "max_rejected": str(limit),
        },
    )


def _rejected(counts: Mapping[str, Any]) -> int:
    """The rejected records of a batch; tombstones that a reader skips are none."""
    skipped = sum(one["records"] for one in counts.get("bad_records", ()) if one["action"] == "drop")
    return int(counts["quarantined"] + counts["dropped"] - skipped)


def _line(row: Row) -> str:
    """A rejected row in one line: its coordinates and reasons."""
    source = row["source"]
    place = "" if source is None else describe_record(source.asDict())
    reasons = (one["message"] or f"`{one['name']}`" for one in row["reasons"])
    return (f"{place}: " if place else "") + ", ".join(reasons)
