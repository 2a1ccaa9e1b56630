"""The vacuum of a table: its check, its record, and the deletion of files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from headrace.errors import ReaderLagsError, RetentionTooShortError
from headrace.maintain.condition import TableCondition
from headrace.maintain.dataset_tables import DatasetTable, load_maintenance, record_maintenance
from headrace.maintain.holders import UNKNOWN, Holder, lag_seconds
from headrace.maintain.vacuum import delete_stored
from headrace.model.maintenance import SAFE_RETENTION_S
from headrace.model.texts import duration_text, files_text, typed_duration
from headrace.storage.layout import Storage

UNUSED = "or, if nothing else uses the table and its older versions are not needed"
"""When a short retention does no harm, as the beginning of a remedy."""
MIN_RETENTION_DURING_RUNS_S = 3600.0
"""With a shorter retention, a vacuum could delete files that a running flow still reads."""


def check_vacuum(target: DatasetTable, condition: TableCondition, remedies: Sequence[str] = ()) -> None:
    """Check that a vacuum is allowed. `remedies`: how to allow a short retention; by default, how to allow it
    for the table's policy."""
    policy, name = condition.policy, target.dataset
    if policy.retention_s < SAFE_RETENTION_S and not policy.allow_short_retention:
        raise RetentionTooShortError(
            f"{target.title}: a retention of {typed_duration(policy.retention_s)} is below "
            f"{typed_duration(SAFE_RETENTION_S)}",
            facts=(
                "a reader or writer that runs could still need the files, and older versions of the table "
                "could no longer be read; no file was deleted",
            ),
            remedies=remedies
            or (
                "set a longer `retention` in the spec:   retention: 7d",
                f"{UNUSED}:   headrace maintain {name.short} --allow-short-retention",
                "or set `allow_short_retention: true` beside `retention` in the spec",
            ),
            params={"dataset": str(name), "retention_s": policy.retention_s},
        )
    now = datetime.now(UTC)
    for holder in condition.vacuum.holders:
        if holder.kind != "flow":
            continue
        lag = lag_seconds(holder, condition.table, condition.snapshot.commits, now)
        if lag is not None and lag > policy.reader_lag_s:
            raise _lags(target, holder, lag, condition)


def vacuum_table(
    storage: Storage, target: DatasetTable, condition: TableCondition, examine: Callable[[], TableCondition]
) -> bool:
    """Delete the files that no reader needs any more; returns whether there were any."""
    # The oldest version that can still be pinned is recorded before the pins are read again: a version that
    # is pinned meanwhile is either kept here, or refused by `headrace pin`.
    before = (
        load_maintenance(storage, target.dataset, target.role).get("vacuumed", {}).get("readable_from", 0)
    )
    readable_from = max(int(before), condition.vacuum.readable_from)
    outcome = {**condition.vacuum.to_json(), "readable_from": readable_from}
    record_maintenance(storage, target.dataset, "vacuumed", outcome, target.role)
    allowed = {one.path for one in examine().vacuum.expired}
    expired = [one for one in condition.vacuum.expired if one.path in allowed]
    delete_stored(condition.table, expired)
    return bool(expired)


def _lags(target: DatasetTable, holder: Holder, lag_s: float, condition: TableCondition) -> ReaderLagsError:
    is_unknown = holder.version == UNKNOWN
    at = "to an unknown version" if is_unknown else f"up to version {(holder.first_unread or 1) - 1}"
    held, short = condition.vacuum, target.dataset.short
    return ReaderLagsError(
        f"flow {holder.name} has not read commits of {short} that are {duration_text(lag_s)} old; the limit "
        f"(`reader_lag`) is {duration_text(condition.policy.reader_lag_s)}",
        facts=(
            f"it has read {at}; the table is at version {condition.snapshot.version}",
            f"kept for the flow: {files_text(len(held.held), held.held_bytes)}",
            "no file was deleted",
        ),
        remedies=(
            "run the flow:   headrace run",
            f"or ignore the flow; it may need a full refresh later:   headrace maintain {short} "
            f"--ignore-reader {holder.name}",
        ),
        params={"dataset": str(target.dataset), "flow": holder.name, "lag_s": round(lag_s)},
    )
