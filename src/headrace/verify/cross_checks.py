"""What log, ledger and checkpoints state of the same batch must be equal."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path

from headrace.verify.checkpoint_history import Lineage
from headrace.verify.checkpoints import CheckpointLog
from headrace.verify.commits import Batches, CommitClaims, Fold, Ledger
from headrace.verify.delta_log import commit_mark, list_versions
from headrace.verify.equations import RowCounts
from headrace.verify.ranges import order_of
from headrace.verify.report import Finding
from headrace.verify.source_range import OPAQUE, SourceRange


def compare_ledger(
    lineage: Lineage, ledger: Ledger, metadata: CommitClaims, first_version: int
) -> list[Finding]:
    """Compare the ledger with the table's log, for the versions that both hold."""
    checkpoints = {generation.checkpoint for generation in lineage.generations}
    names = {lineage.flow, *(batch.flow for batch in lineage.batches)}
    findings: list[Finding] = []
    for fold in ledger.folds:
        if fold.flow not in names or fold.last_version < first_version:
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
                inside = [b for b in logged if _covers(entry, b)]
                findings += _compare_entry(entry, inside, fold, first_version)
        for batch in logged:
            if not any(_covers(entry, batch) for entry in fold.batches):
                words = f"the ledger does not hold {batch.name} of version {batch.first_version}"
                findings.append(_differs(words, batch, fold))
    return findings


def compare_checkpoints(
    lineage: Lineage, logs: Iterable[CheckpointLog], transactions: Mapping[str, int]
) -> list[Finding]:
    """Compare what Spark's checkpoints have finished with what is in the table.

    Args:
        transactions: The last batch of each checkpoint by the table's own state, which knows of batches
            whose commits are gone or are not judged.
    """
    findings = []
    by_checkpoint = {log.checkpoint: log for log in logs}
    fenced = {g.opening.fences for g in lineage.generations if g.opening is not None}
    for generation in lineage.generations:
        log = by_checkpoint.get(generation.checkpoint)
        if log is None or generation.checkpoint in fenced:
            # What was fenced is read no more: it may have been given up because it is damaged.
            continue
        last = max((batch.last for batch in generation.batches), default=-1)
        last = max(last, transactions.get(generation.checkpoint, -1))
        if log.finished > last:
            name = (
                f"batch {last + 1}" if log.finished == last + 1 else f"batches {last + 1} to {log.finished}"
            )
            text = f"{name}: finished by checkpoint {log.checkpoint}, but not in the table"
            place = {"batches": [last + 1, log.finished]}
            findings.append(Finding(code="TABLE_BEHIND_CHECKPOINT", text=text, place=place))
        for batch in generation.batches:
            positions = log.positions.get(batch.last)
            if positions is not None and batch.last <= log.finished:
                findings += _compare_positions(batch, positions)
    return findings


def compare_upstream(lineage: Lineage, find_table: Callable[[SourceRange], Path | None]) -> list[Finding]:
    """Compare the versions that a flow has read of other tables with what those versions are now.

    Args:
        find_table: Where the table behind a range lies; ``None`` where it is not there any more.
    """
    last = lineage.last
    findings = []
    for source in () if last is None else last.sources:
        path = find_table(source) if source.seen is not None else None
        if source.seen is None or path is None:
            continue
        version = int(source.seen["version"])
        newest = max(list_versions(path), default=-1)
        mark = commit_mark(path, version)
        if version <= newest and mark in (None, source.seen["commit"]):
            continue
        how = f"it ends at version {newest} now" if version > newest else "that is another commit now"
        text = f"version {version} of {path.name} was read, and {how}: it was rolled back or made anew"
        place = {"table": path.name, "version": version}
        findings.append(Finding(code="UPSTREAM_ROLLED_BACK", text=text, place=place))
    return findings


def pending_batch(lineage: Lineage, logs: Sequence[CheckpointLog]) -> int | None:
    """A batch that Spark has planned and that is not in the table yet."""
    log = next((log for log in logs if log.checkpoint == lineage.checkpoint), None)
    last = max((batch.last for batch in lineage.generations[-1].batches), default=-1)
    return log.planned if log is not None and log.planned > max(last, log.finished) else None


def describe_checkpoint(lineage: Lineage, logs: Sequence[CheckpointLog]) -> list[str]:
    """What the next run will say of the checkpoint; nothing of it contradicts the table."""
    if not lineage.in_force:
        return ["no longer feeds the table"]
    if not logs:
        return ["its checkpoint is not in the storage: the next run is refused"]
    newest = logs[-1].checkpoint
    if newest != lineage.checkpoint:
        return [f"the newest checkpoint in the storage is {newest}, and {lineage.checkpoint} feeds the table"]
    return []


def _covers(entry: Batches, batch: Batches) -> bool:
    return entry.checkpoint == batch.checkpoint and entry.first <= batch.first <= entry.last


def _compare_entry(
    entry: Batches, inside: list[Batches], fold: Fold, first_version: int
) -> Iterable[Finding]:
    """An entry of the ledger against the batches of the log that it covers."""
    held = {batch.last: batch for batch in inside}
    is_whole = entry.first_version >= first_version
    if entry.last not in held or (is_whole and len(held) < entry.last - entry.first + 1):
        words = f"the ledger holds {entry.name}, and the table's log does not"
        yield _differs(words, entry, fold)
        return
    last = held[entry.last]
    ends = {source.index: source for source in last.sources}
    for source in entry.sources:
        if source.index in ends and not _ends_alike(source, ends[source.index]):
            words = (
                f"{entry.name} ends at {dict(source.until)} in the ledger "
                f"and at {dict(ends[source.index].until)} in the table's log"
            )
            yield _differs(words, entry, fold)
    if is_whole:
        yield from _compare_files(entry, held, fold)
        sums = reduce(RowCounts.plus, (batch.counts for batch in held.values())).by_name
        for name, number in entry.counts.by_name.items():
            if number != sums[name]:
                text = (
                    f"{entry.name}: {number:,} rows {name} in the ledger, {sums[name]:,} in the table's log"
                )
                yield _differs(text, entry, fold)


def _compare_files(entry: Batches, held: Mapping[int, Batches], fold: Fold) -> Iterable[Finding]:
    """The files that an entry speaks of must be those of its batches, one after another."""
    for source in entry.sources:
        if source.files is None:
            continue
        chain: str | None = None
        for number in sorted(held):
            one = next((s for s in held[number].sources if s.index == source.index), None)
            if one is not None and one.files is not None:
                digest = str(one.files["sha256"])
                joined = f"{chain}{digest}".encode()
                chain = digest if chain is None else hashlib.sha256(joined).hexdigest()
        if chain != source.files["sha256"]:
            yield _differs(f"{entry.name}: other files in the ledger than in the table's log", entry, fold)


def _differs(words: str, batch: Batches, fold: Fold) -> Finding:
    place = {"batch": batch.first, "version": batch.last_version, "file": fold.path.name}
    return Finding(code="LEDGER_DIFFERS", text=words, place=place)


def _ends_alike(one: SourceRange, two: SourceRange) -> bool:
    if one.kind == "kafka":
        return _numbers(one.until) == _numbers(two.until)
    if one.kind == OPAQUE:
        return one.until == two.until
    return order_of(one, one.until) == order_of(two, two.until)


def _numbers(position: object) -> dict[tuple[str, str], int]:
    assert isinstance(position, dict)
    return {(t, str(p)): int(offset) for t, parts in position.items() for p, offset in parts.items()}


def _compare_positions(batch: Batches, positions: Sequence[object]) -> Iterable[Finding]:
    for source in batch.sources:
        position = positions[source.index] if source.index < len(positions) else None
        if source.kind == OPAQUE and position is not None:
            position = {"offset": position}
        if not isinstance(position, dict):
            continue
        if not _ends_alike(source, SourceRange(source.index, source.kind, source.identity, None, position)):
            text = (
                f"{batch.name} ends at {dict(source.until)} in the table, "
                f"and at {position} in the offset log of its checkpoint"
            )
            place = {"batch": batch.last, "version": batch.last_version, "source": source.index}
            yield Finding(code="OFFSETS_DIFFER", text=text, place=place)
