"""What log, ledger and checkpoints state of the same batch must be equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from headrace.verify.checkpoint_history import Lineage
from headrace.verify.checkpoints import CheckpointLog
from headrace.verify.commits import Batches, CommitClaims
from headrace.verify.equations import RowCounts
from headrace.verify.ledger import Fold, Ledger
from headrace.verify.report import Judgement


def compare_ledger(
    lineage: Lineage, ledger: Ledger, metadata: CommitClaims, first_version: int, found: Judgement
) -> None:
    """Compare the ledger with the table's log, for the versions that both hold."""
    checkpoints = {generation.checkpoint for generation in lineage.generations}
    for fold in ledger.folds:
        if fold.flow not in lineage.names or fold.last_version < first_version:
            continue
        logged = [
            batch
            for batch in metadata.batches
            if batch.checkpoint in checkpoints
            and batch.flow == fold.flow
            and fold.first_version <= batch.first_version <= fold.last_version
        ]
        for entry in fold.batches:
            if entry.checkpoint in checkpoints and entry.last_version >= first_version:
                inside = {batch.last: batch for batch in logged if _covers(entry, batch)}
                for text in _differences(entry, inside, first_version):
                    _find_difference(text, entry, fold, found)
        for batch in logged:
            if not any(_covers(entry, batch) for entry in fold.batches):
                text = f"the ledger does not hold {batch.name} of version {batch.first_version}"
                _find_difference(text, batch, fold, found)


def compare_checkpoints(
    lineage: Lineage, logs: Iterable[CheckpointLog], transactions: Mapping[str, int], found: Judgement
) -> None:
    """Compare what Spark's checkpoints have finished with what is in the table.

    The table's own state (`transactions`) knows of batches whose commits are gone or are not judged.
    """
    by_checkpoint = {log.checkpoint: log for log in logs}
    for generation in lineage.generations:
        log, held = by_checkpoint.get(generation.checkpoint), transactions.get(generation.checkpoint)
        named = [one for one in generation.batches if one.last > (-1 if held is None else held)]
        if named:
            text = f"{named[0].name} of checkpoint {generation.checkpoint} has a commit, "
            text += f"but the table's state ends with batch {held}"
            found.find("BATCH_NOT_HELD", text, **named[0].place)
        if log is None or generation.checkpoint in lineage.fenced:
            # What was fenced is read no more: it may have been given up because it is damaged.
            continue
        last = max((batch.last for batch in generation.batches), default=-1)
        last = max(last, transactions.get(generation.checkpoint, -1))
        if log.finished > last:
            name = f"batch {last + 1}" + (f" to {log.finished}" if log.finished > last + 1 else "")
            text = f"{name}: finished by checkpoint {log.checkpoint}, but not in the table"
            found.find("TABLE_BEHIND_CHECKPOINT", text, batches=[last + 1, log.finished])
        for batch in generation.batches:
            positions = log.positions.get(batch.last)
            if positions is not None and batch.last <= log.finished:
                _compare_positions(batch, positions, found)


def pending_batch(lineage: Lineage, logs: Sequence[CheckpointLog]) -> int | None:
    """A batch that Spark has planned and that is not in the table yet."""
    log = next((log for log in logs if log.checkpoint == lineage.checkpoint), None)
    last = max((batch.last for batch in lineage.generations[-1].batches), default=-1)
    return log.planned if log is not None and log.planned > max(last, log.finished) else None


def describe_checkpoint(lineage: Lineage, logs: Sequence[CheckpointLog]) -> list[str]:
    """Notes on the checkpoint; none of them is a finding."""
    if not lineage.in_force:
        return ["the flow no longer writes the table"]
    if not logs:
        return ["its checkpoint is missing: the next run is refused"]
    newest = logs[-1].checkpoint
    if newest != lineage.checkpoint:
        return [f"the table was written with {lineage.checkpoint}, but the newest checkpoint is {newest}"]
    return []


def _covers(entry: Batches, batch: Batches) -> bool:
    return entry.checkpoint == batch.checkpoint and entry.first <= batch.first <= entry.last


def _differences(entry: Batches, held: Mapping[int, Batches], first_version: int) -> Iterable[str]:
    """Where an entry of the ledger differs from the batches of the log that it covers."""
    is_whole = entry.first_version >= first_version
    if entry.last not in held or (is_whole and len(held) < entry.last - entry.first + 1):
        yield f"the ledger holds {entry.name}, and the table's log does not"
        return
    ends = {source.index: source for source in held[entry.last].sources}
    for source in entry.sources:
        if source.index in ends and not source.is_end(ends[source.index].until):
            until = ends[source.index].until
            yield f"{entry.name} ends at {source.until} in the ledger and at {until} in the table's log"
    if is_whole:
        sums = reduce(RowCounts.plus, (batch.counts for batch in held.values())).by_name
        for name, number in entry.counts.by_name.items():
            if number != sums[name]:
                yield f"{entry.name}: {number:,} rows {name} in the ledger, {sums[name]:,} in the table's log"


def _find_difference(text: str, batch: Batches, fold: Fold, found: Judgement) -> None:
    found.find("LEDGER_DIFFERS", text, batch=batch.first, version=batch.last_version, path=fold.path.name)


def _compare_positions(batch: Batches, positions: Sequence[object], found: Judgement) -> None:
    for source in batch.sources:
        position = positions[source.index] if source.index < len(positions) else None
        # `is_end` cannot read a position of another JSON type.
        if position is not None and (type(position) is not type(source.until) or not source.is_end(position)):
            text = (
                f"{batch.name} ends at {source.until} in the table, "
                f"and at {position} in the offset log of its checkpoint"
            )
            where = {"batch": batch.last, "version": batch.last_version, "source": source.index}
            found.find("OFFSETS_DIFFER", text, **where)
