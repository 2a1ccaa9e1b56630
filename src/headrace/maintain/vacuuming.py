"""One vacuum of a table: it is checked, recorded, and then done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from headrace.errors import ReaderLagsError, RetentionTooShortError
from headrace.maintain.condition import TableCondition
from headrace.maintain.holders import UNKNOWN, Holder, lag_seconds
from headrace.maintain.kept import KeptTable
from headrace.maintain.record import load_care, record_care
from headrace.maintain.vacuum import delete_stored
from headrace.model.care import SAFE_RETENTION_S
from headrace.model.durations import duration_text
from headrace.model.sizes import counted, size_text
from headrace.storage.layout import Storage

BESIDE_S = 3600.0
"""With a shorter retention, a vacuum could delete files that a running flow still reads."""


def check_vacuum(kept: KeptTable, condition: TableCondition, remedies: Sequence[str] = ()) -> None:
    """Check that a vacuum is allowed.

    Args:
        kept: The table.
        condition: Its condition, with what the vacuum would delete.
        remedies: How a short retention is allowed; by default, how the table's own one is.

    Raises:
        RetentionTooShortError: The retention is below 7 days, and nobody has allowed it.
        ReaderLagsError: A flow has not read for a long time.
    """
    policy, name = condition.policy, kept.dataset
    if policy.retention_s < SAFE_RETENTION_S and not policy.allow_short_retention:
        raise RetentionTooShortError(
            f"a retention of {duration_text(policy.retention_s)} is below {duration_text(SAFE_RETENTION_S)}",
            facts=("no file was deleted",),
            remedies=remedies
            or (
                f"allow it:   headrace maintain {name.short} --allow-short-retention",
                "or set `allow_short_retention: true` beside `retention` in the spec",
            ),
            params={"table": str(name), "retention_s": policy.retention_s},
        )
    now = datetime.now(UTC)
    for holder in condition.vacuum.holders:
        if holder.kind != "flow":
            continue
        lag = lag_seconds(holder, condition.table, condition.snapshot, now)
        if lag is not None and lag > policy.reader_lag_s:
            raise _lags(kept, holder, lag, condition)


def vacuum_table(
    storage: Storage, kept: KeptTable, condition: TableCondition, examine: Callable[[], TableCondition]
) -> bool:
    """Delete the files that nobody needs any more; returns whether there were any.

    Args:
        storage: The storage.
        kept: The table.
        condition: Its condition, with what is to be deleted.
        examine: Looks at the table again.

    Raises:
        StorageUnwritableError: A file cannot be deleted.
    """
    # First it writes what can no longer be pinned, then it reads the pins again.
    before = load_care(storage, kept.dataset, kept.role).get("vacuumed", {}).get("readable_from", 0)
    readable_from = max(int(before), condition.vacuum.readable_from)
    outcome = {**condition.vacuum.to_json(), "readable_from": readable_from}
    record_care(storage, kept.dataset, "vacuumed", outcome, kept.role)
    allowed = {one.path for one in examine().vacuum.expired}
    expired = [one for one in condition.vacuum.expired if one.path in allowed]
    delete_stored(condition.table, expired)
    return bool(expired)


def files_text(number: int, size: int) -> str:
    """A number of files with their bytes: ``3 files (1.2 MB)``."""
    return f"{counted(number, 'file')} ({size_text(size)})"


def _lags(kept: KeptTable, holder: Holder, lag_s: float, condition: TableCondition) -> ReaderLagsError:
    is_unknown = holder.version == UNKNOWN
    at = "to an unknown version" if is_unknown else f"up to version {(holder.first_unread or 1) - 1}"
    held, short = condition.vacuum, kept.dataset.short
    return ReaderLagsError(
        f"flow {holder.name} has commits of {short} to read that are {duration_text(lag_s)} old; the limit "
        f"(`reader_lag`) is {duration_text(condition.policy.reader_lag_s)}",
        facts=(
            f"it has read {at}; the table is at version {condition.snapshot.version}",
            f"for it, {files_text(len(held.held), held.held_bytes)} are kept",
            "no file was deleted",
        ),
        remedies=(
            "run the flow:   headrace run",
            f"or ignore the flow; it may need a full refresh later:   headrace maintain {short} "
            f"--ignore-reader {holder.name}",
        ),
        params={"table": str(kept.dataset), "flow": holder.name, "lag_s": round(lag_s)},
    )
