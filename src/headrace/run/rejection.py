"""The limit of rejected records of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import MaxRejectedExceededError
from headrace.model.counts import BatchCounts
from headrace.plan.stages import PlannedFlow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_SHOWN: Final = 5


def check_rejected(planned: PlannedFlow, batch: int, counts: BatchCounts, rejected: DataFrame | None) -> None:
    """Check that a batch has no more rejected records than its table allows. Nothing is committed yet.

    Args:
        planned: The flow.
        batch: The batch's number.
        counts: The batch's counts.
        rejected: The rows for the quarantine table, if there are any.

    Raises:
        MaxRejectedExceededError: It has more.
    """
    limit = planned.max_rejected
    skipped = sum(one.records for one in counts.bad_records if one.action == "drop")
    count = counts.quarantined + counts.dropped - skipped
    if limit is None or limit.allows(count, counts.input):
        return
    shown = [] if rejected is None else rejected.select("source", "reasons").limit(_SHOWN).collect()
    failed = [one for one in counts.expectations if one.failed and one.action in ("quarantine", "drop")]
    raise MaxRejectedExceededError(
        f"flow {planned.flow.name}: {count:,} of {counts.input:,} records of a batch are rejected "
        f"({count / counts.input:.1%}), and max_rejected is {limit}",
        location=planned.flow.location,
        facts=(
            *(f"`{one.name}`: {one.failed:,} rows" for one in failed),
            *(
                f"{one.name}: {one.records:,} records"
                for one in counts.bad_records
                if one.action == "quarantine"
            ),
            *map(_line, shown),
            f"batch {batch} was not written",
        ),
        remedies=(
            "correct the source, the schema or the expectations, and run again:   headrace run",
            "or allow more rejected records: max_rejected",
        ),
        params={
            "flow": planned.flow.name,
            "batch": batch,
            "rejected": count,
            "records": counts.input,
            "max_rejected": str(limit),
        },
    )


def _line(row: Row) -> str:
    """A rejected row in one line: its coordinates and reasons."""
    source = row["source"]
    place = ""
    if source is not None and source["offset"] is not None:
        place = f"{source['topic']}/{source['partition']} offset {source['offset']}: "
    elif source is not None and source["path"] is not None:
        place = f"{source['path']}: "
    reasons = (one["message"] or f"`{one['name']}`" for one in row["reasons"])
    return place + ", ".join(reasons)
