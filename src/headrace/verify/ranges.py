"""The first grade: the batches of a flow follow each other, range to range, from first to last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from headrace.model.texts import counted
from headrace.verify.checkpoints import Generation, Lineage, Pairs
from headrace.verify.commits import Batches, Ledger
from headrace.verify.report import GradeReport, Judgement
from headrace.verify.source_range import DeclaredRange, Partition, SourceRange, Spans, named, spans_text


class _Key(NamedTuple):
    partition: Partition  # a partition; or the key of a source without partitions
    id: str | None  # the id of its stream
    read: int  # which one of several sources, where Spark opens a DataFrame that is used twice as two


_Positions = dict[_Key, Any]
"""Where sources begin or end: an offset, or a position of a source without partitions."""


def judge_ranges(lineage: Lineage, ledger: Ledger, first_version: int) -> GradeReport:
    found = Judgement()
    _judge_beginning(lineage, found)
    ended: _Positions = {}
    read: dict[_Key, Pairs] = {}
    for index, generation in enumerate(lineage.generations):
        _judge_generation(lineage, generation, found)
        if index > 0:
            unread = _unread(lineage, read)
            _judge_succession(ended, read, unread, generation, found, unknown=bool(lineage.unknown_versions))
        for batch in generation.batches:
            for source, starts, ends in _keyed(batch):
                ended.update(ends)
                for key in ends.keys() & starts.keys() if source.coordinates is not None else ():
                    low, spans = starts[key], read.setdefault(key, [])
                    if spans and spans[-1][1] == low:
                        low = spans.pop()[0]
                    spans.append((low, ends[key]))
    for batch in lineage.late:
        text = f"{batch.name} was committed through checkpoint {batch.checkpoint} after it had been fenced"
        found.find("FENCED_BATCH", text, version=batch.last_version, batch=batch.last)
    _judge_losses(lineage, ledger, found)
    return _report(lineage, found, read, first_version)


def _judge_beginning(lineage: Lineage, found: Judgement) -> None:
    """The first known batch belongs to a checkpoint that a commit of the table opened."""
    first = next((g for g in lineage.generations if g.batches), None)
    if first is None or first.opening is not None or lineage.since is not None:
        return
    batch = first.batches[0]
    lacking = [hole for hole in lineage.unknown_versions if hole[0] < batch.first_version]
    if lacking:
        found.reasons.append(
            f"versions {lacking[0][0]} to {lacking[-1][1]} are neither in the table's log nor in the ledger: "
            f"judged from version {batch.first_version} on"
        )
    else:
        text = f"{batch.name} was committed through checkpoint {first.checkpoint}, "
        found.find("CHECKPOINT_UNOPENED", text + "which no commit of the table opened", **batch.place)


def _judge_generation(lineage: Lineage, generation: Generation, found: Judgement) -> None:
    """The batches of one checkpoint: each number once, none missing, each range after the other."""
    opening = generation.opening
    if opening is not None and not opening.fenced:
        text = f"generation {opening.generation} was opened without fencing checkpoint {opening.fences}"
        found.find("FENCE_MISSING", text, version=opening.version)
    batches = sorted(generation.batches, key=lambda b: (b.first, b.first_version))
    if opening is not None and batches and batches[0].first > 0:
        _judge_missing(lineage, range(batches[0].first), opening.version, batches[0], found)
    for one in batches:
        _judge_batch(one, found)
    for one, two in pairwise(batches):
        if two.first <= one.last:
            text = (
                f"batch {two.first} of checkpoint {generation.checkpoint} was committed twice: "
                f"in version {one.last_version} and in version {two.first_version}"
            )
            versions = [one.last_version, two.first_version]
            found.find("BATCH_TWICE", text, batch=two.first, versions=versions)
            continue
        if two.first > one.last + 1:
            _judge_missing(lineage, range(one.last + 1, two.first), one.last_version, two, found)
        _judge_step(one, two, found)


def _judge_missing(
    lineage: Lineage, numbers: range, after_version: int, then: Batches, found: Judgement
) -> None:
    """Batches that are not in the table: a finding, unless commits between are not known any more."""
    first, last = numbers[0], numbers[-1]
    name = f"batch {first}" if first == last else f"batches {first} to {last}"
    unknown = [
        hole for hole in lineage.unknown_versions if hole[1] > after_version and hole[0] < then.first_version
    ]
    if unknown:
        held = (
            f"versions {unknown[0][0]} to {unknown[-1][1]} are neither in the table's log nor in the ledger"
        )
        found.reasons.append(f"{name}: {held}")
    else:
        text = f"{name} of checkpoint {then.checkpoint} is not in the table: "
        text += f"{then.name} follows in version {then.first_version}"
        found.find("BATCH_MISSING", text, batches=[first, last], version=then.first_version)


def _judge_batch(batch: Batches, found: Judgement) -> None:
    """A range has a start for each partition, and no partition ends before its start."""
    for source in batch.sources:
        starts = source.starts
        for key, high in source.ends.items():
            low = starts.get(key)
            if low is None and batch.first == batch.last:
                text = f"{batch.name} has no start for {named(key)}"
                found.find("RANGE_OPEN", text, **batch.place, **source.place(key))
            elif low is not None and high < low:
                text = f"{batch.name} goes backwards in {named(key)}: from {low} until {high}"
                where = {**batch.place, **source.place(key)}
                found.find("RANGE_BACKWARDS", text, **where, ranges=[[high, low]])


def _judge_step(one: Batches, two: Batches, found: Judgement) -> None:
    """Two batches of one checkpoint: the later begins where the earlier ended, in each source."""
    later = {source.index: source for source in two.sources}
    for before in one.sources:
        after = later.get(before.index)
        where = {**two.place, "source": before.index}
        if after is None:
            text = f"batch {two.first} has no range for source {before.index}, which batch {one.last} read"
            found.find("SOURCE_MISSING", text, **where)
        elif not before.is_same_source(after):
            text = f"{two.name} reads {after.name} through a checkpoint that read {before.name}"
            found.find("SOURCE_CHANGED", text, **where)
        elif (other := _replaced_by(before, after, one.sources)) is not None:
            text = (
                f"source {before.index} of {two.name} reads {after.name} that was source {other.index} of "
                f"the batch before, which ended at {other.until}, on from {after.start}"
            )
            found.find("SOURCE_CHANGED", text, **where)
        elif after.coordinates is not None:
            _judge_offsets(after, before.ends, after.starts, two, found)
        else:
            _judge_position(before, after, two, found)


def _replaced_by(
    before: SourceRange, after: SourceRange, others: Sequence[SourceRange]
) -> SourceRange | None:
    """The other source of the batch before that has taken the place of a source, but not its position."""
    if before.variant == after.variant:
        return None
    for one in others:
        if one.index != before.index and one.is_same_source(after) and one.variant == after.variant:
            return None if one.is_end(after.start) else one
    return None


def _judge_position(before: SourceRange, after: SourceRange, batch: Batches, found: Judgement) -> None:
    """A source without partitions continues where it ended."""
    if before.is_end(after.start):
        return
    is_again = after.order_of(after.start) < before.order_of(before.until)
    code, what = ("RANGE_TWICE", "reads again") if is_again else ("RANGE_MISSING", "skips")
    begin = "the beginning" if after.start is None else after.start
    text = (
        f"{batch.name} {what} a part of {after.name}: the batch before ended at {before.until}, "
        f"this one starts at {begin}"
    )
    found.find(code, text, **batch.place, source=after.index)


def _judge_offsets(
    source: SourceRange,
    ended: Mapping[Partition, int],
    began: Mapping[Partition, int],
    batch: Batches,
    found: Judgement,
    lost: Mapping[Partition, Pairs] | None = None,
    read: Mapping[Partition, Pairs] | None = None,
    repeats: Mapping[Partition, Pairs] | None = None,
    *,
    is_whole: bool = False,
) -> None:
    """Every partition continues where it ended; one that is new begins at its first offset.

    A range may pass over losses. A new generation may pass over what earlier batches have `read`, and may
    read `repeats` again. If `read` is all that was ever read (`is_whole`), nothing else can be read twice.
    """
    for key in sorted({*ended, *began}):
        end, begin = ended.get(key, 0), began.get(key)
        if begin == end and not (lost or {}).get(key):
            continue
        where = {**batch.place, **source.place(key)}
        if begin is None:
            found.find("PARTITION_MISSING", f"{batch.name} has no range for {named(key)}", **where)
            continue
        for low, high in sorted((lost or {}).get(key, ())):
            end = high if low == end else end
        code, held = ("RANGE_MISSING", "no batch") if begin > end else ("RANGE_TWICE", "two batches")
        excused = [one.get(key, []) for one in ((lost, read) if begin > end else (repeats,)) if one]
        span = Spans.of([(min(begin, end), max(begin, end))])
        if begin < end and is_whole:
            # Offsets that nobody has read before are read for the first time.
            span = span.less(span.less(Spans.of((read or {}).get(key, []))))
        spans = span.less(Spans.of(pair for one in excused for pair in one)).pairs()
        if spans:
            text = f"{named(key)}: {spans_text(spans)} in {held}: {batch.name} starts at {begin}"
            found.find(code, text, **where, ranges=[list(pair) for pair in spans])


def _judge_succession(
    ended: _Positions,
    read: Mapping[_Key, Pairs],
    unread: Mapping[_Key, Pairs],
    after: Generation,
    found: Judgement,
    *,
    unknown: bool,
) -> None:
    """A later generation continues where earlier ones ended, but for recorded losses and declared repeats.

    A stream with another id is another stream, and can begin at any offset. Parts of a range can be
    `unknown`.
    """
    opening = after.opening
    lost = _by_partition(() if opening is None else opening.losses)
    repeats = _by_partition(() if opening is None else opening.repeats)
    begun: set[_Key] = set()
    for batch in after.batches:
        for source, starts, _ in _keyed(batch):
            again = {key: at for key, at in starts.items() if key in ended and key not in begun}
            begun.update(starts)
            if source.coordinates is None:
                for key in again:
                    _judge_position(replace(source, until=ended[key]), source, batch, found)
                continue
            _judge_offsets(
                source,
                {key.partition: ended[key] for key in again},
                {key.partition: at for key, at in again.items()},
                batch,
                found,
                lost,
                {} if opening is None else {key.partition: read.get(key, []) for key in again},
                {
                    key.partition: [*repeats.get(key.partition, []), *unread.get(key._replace(read=0), [])]
                    for key in again
                },
                is_whole=opening is not None and not unknown,
            )
    if after.batches:
        _judge_left_behind(ended, begun, after.batches[-1], found)


def _judge_left_behind(ended: _Positions, begun: set[_Key], last: Batches, found: Judgement) -> None:
    """A partition of a stream that is still read must not stay behind in an earlier generation."""
    still_read = {key[:2] for key in begun}
    for source in last.sources:
        streams = {source.stream(key) for key in source.ends}
        for key in sorted(ended, key=str):
            partition = key.partition
            is_left = key[:2] not in still_read and (source.stream(partition)[0], key.id) in streams
            if is_left and source.reads(partition):
                still_read.add(key[:2])
                text = f"{named(partition)} was read up to {ended[key]} before checkpoint {last.checkpoint}, "
                where = {"version": last.last_version, **source.place(partition)}
                found.find("PARTITION_MISSING", text + "which has no range for it", **where)


def _keyed(batch: Batches) -> Iterator[tuple[SourceRange, _Positions, _Positions]]:
    """Each source of a batch with where it begins and ends; a DataFrame used twice can be two sources."""
    reads: Counter[Any] = Counter()
    for source in sorted(batch.sources, key=lambda one: one.index):
        if source.coordinates is None:
            key = _Key(source.key, None, reads[source.key])
            yield source, {key: source.start}, {key: source.until}
            reads[source.key] += 1
            continue
        starts, ends = source.starts, source.ends
        streams = {key: source.stream(key) for key in {**starts, **ends}}
        keys = {key: _Key(key, stream[1], reads[stream]) for key, stream in streams.items()}
        yield source, {keys[k]: at for k, at in starts.items()}, {keys[k]: at for k, at in ends.items()}
        reads.update({streams[key] for key in ends})


def _judge_losses(lineage: Lineage, ledger: Ledger, found: Judgement) -> None:
    """Every loss that an opening names must be in the ledger."""
    for generation in lineage.generations:
        for loss in () if generation.opening is None else generation.opening.losses:
            if loss not in ledger.lost:
                lost = spans_text([(loss.low, loss.high)])
                text = f"{named(loss.partition)}: {lost} lost, and the ledger does not record the loss"
                found.find("LOSS_UNRECORDED", text, **loss.place, ranges=[[loss.low, loss.high]])


def _by_partition(ranges: Iterable[DeclaredRange]) -> dict[Partition, Pairs]:
    found: dict[Partition, Pairs] = {}
    for one in ranges:
        found.setdefault(one.partition, []).append((one.low, one.high))
    return found


def _report(
    lineage: Lineage, found: Judgement, read: Mapping[_Key, Pairs], first_version: int
) -> GradeReport:
    partitions: set[tuple[Partition, str | None]] = set()
    offsets = 0
    for source in lineage.sources:
        for key, (low, end) in source.spans.items():
            partitions.add((key, source.id_of(key)))
            offsets += end - low
    # How often offsets were read again, by one read of a query.
    repeated = sum(one.total - one.merged().total for one in map(Spans.of, read.values()))
    losses = sum(Spans.of(pairs).total for pairs in _unread(lineage, read).values())
    commits = sum(batch.last - batch.first + 1 for batch in lineage.batches)
    has_parts = any(source.coordinates is not None for source in lineage.sources)
    parts = [counted(len(partitions), "partition"), counted(offsets, "offset")] if has_parts else []
    parts += sorted({f"{source.kind} source" for source in lineage.sources if source.coordinates is None})
    parts.append(counted(commits, "commit"))
    if not found.findings:
        parts.append("no gap, no other overlap" if repeated else "no gap, no overlap")
        if repeated:
            parts.append(f"{counted(repeated, 'offset')} read again, as declared")
    if losses:
        parts.append(f"{counted(losses, 'offset')} lost, as recorded")
    if any(batch.first_version < first_version for batch in lineage.batches):
        parts.append(f"up to version {first_version - 1} from the ledger only")
    figures = {
        "partitions": len(partitions),
        "offsets": offsets,
        "commits": commits,
        "lost": losses,
        "repeated": repeated,
        "generations": len(lineage.generations),
    }
    return found.report("ranges", ", ".join(parts) if lineage.batches else "no batch yet", figures)


def _unread(lineage: Lineage, read: Mapping[_Key, Pairs]) -> dict[_Key, Pairs]:
    """The offsets of recorded losses that no batch has read."""
    found: dict[_Key, Pairs] = {}
    for name, lost in lineage.declared("losses").items():
        pairs = (pair for key, pairs in read.items() if key[:2] == name for pair in pairs)
        found[_Key(*name, 0)] = Spans.of(lost).less(Spans.of(pairs)).pairs()
    return found
