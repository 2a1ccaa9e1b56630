"""The first grade: the batches of a flow follow each other, range to range, from first to last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

from headrace.model.texts import counted
from headrace.verify.checkpoint_history import Generation, Lineage
from headrace.verify.commits import Batches
from headrace.verify.declared import Pairs, less, merged, total
from headrace.verify.ledger import Ledger
from headrace.verify.report import GradeReport, Judgement
from headrace.verify.source_range import OPAQUE, SourceRange, TopicPartition
from headrace.verify.wording import spans_text

_Key = tuple[str, ...]
"""A source beyond one checkpoint: a partition of one topic id, a table id, or a folder of files, and the
number of the source where Spark opens a DataFrame that is used twice as two."""

_Positions = dict[_Key, Any]
"""Where sources begin or end: an offset, or a position of another kind."""


def judge_ranges(lineage: Lineage, ledger: Ledger, first_version: int) -> GradeReport:
    """Judge the first grade of one flow."""
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
            for (source, starts), (_, ends) in zip(
                _keyed(batch, "start"), _keyed(batch, "until"), strict=True
            ):
                ended.update(ends)
                if source.kind == "kafka":
                    for key in ends.keys() & starts.keys():
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
    """A Kafka range has a start for each partition, and no partition ends before its start."""
    for source in batch.sources:
        starts, ends = source.starts, source.ends
        for (topic, partition), high in ends.items():
            low = starts.get((topic, partition))
            where = {**batch.place, "topic": topic, "partition": partition}
            if low is None and batch.first == batch.last:
                found.find("RANGE_OPEN", f"{batch.name} has no start for {topic}/{partition}", **where)
            elif low is not None and high < low:
                text = f"{batch.name} goes backwards in {topic}/{partition}: from {low} until {high}"
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
        elif after.kind == "kafka":
            _judge_offsets(before.ends, after.starts, two, found)
        else:
            _judge_position(before, after, two, found)


def _judge_position(before: SourceRange, after: SourceRange, batch: Batches, found: Judgement) -> None:
    """A source that is not Kafka goes on where it ended."""
    ended, began = before.order_of(before.until), after.order_of(after.start)
    if ended == began and (after.kind != OPAQUE or before.until == after.start):
        return
    code, what = ("RANGE_TWICE", "reads again") if began < ended else ("RANGE_MISSING", "skips")
    begin = "the beginning" if after.start is None else dict(after.start)
    text = (
        f"{batch.name} {what} a part of {after.name}: the batch before ended at {dict(before.until)}, "
        f"this one starts at {begin}"
    )
    found.find(code, text, **batch.place, source=after.index)


def _judge_offsets(
    ended: Mapping[TopicPartition, int],
    began: Mapping[TopicPartition, int],
    batch: Batches,
    found: Judgement,
    lost: Mapping[TopicPartition, Pairs] | None = None,
    read: Mapping[TopicPartition, Pairs] | None = None,
    repeats: Mapping[TopicPartition, Pairs] | None = None,
    *,
    is_whole: bool = False,
) -> None:
    """Every partition goes on where it ended; one that is new begins at its first offset.

    Args:
        lost: Recorded losses, which a range may pass over.
        read: What earlier batches have read, which a new generation may pass over.
        repeats: What a new generation may read again.
        is_whole: Whether `read` is all that was ever read, so that nothing else can be read twice.
    """
    for key in sorted({*ended, *began}):
        topic, partition = key
        where = {**batch.place, "topic": topic, "partition": partition}
        if key not in began:
            found.find("PARTITION_MISSING", f"{batch.name} has no range for {topic}/{partition}", **where)
            continue
        end, begin = ended.get(key, 0), began[key]
        for low, high in sorted((lost or {}).get(key, ())):
            end = high if low == end else end
        code, held = ("RANGE_MISSING", "no batch") if begin > end else ("RANGE_TWICE", "two batches")
        excused = [one.get(key, []) for one in ((lost, read) if begin > end else (repeats,)) if one]
        span = [(min(begin, end), max(begin, end))]
        if begin < end and is_whole:
            # Offsets that nobody has read before are read for the first time.
            span = less(span, less(span, (read or {}).get(key, [])))
        spans = less(span, (pair for one in excused for pair in one))
        if spans:
            text = f"{topic}/{partition}: {spans_text(spans)} in {held}: {batch.name} starts at {begin}"
            found.find(code, text, **where, ranges=[list(pair) for pair in spans])


def _judge_succession(
    ended: Mapping[_Key, Any],
    read: Mapping[_Key, Pairs],
    unread: Mapping[_Key, Pairs],
    after: Generation,
    found: Judgement,
    *,
    unknown: bool,
) -> None:
    """A later generation goes on where the earlier ones ended, but for recorded losses and declared repeats.

    A topic of another id is another topic, and begins where it likes.

    Args:
        unknown: Whether some of what was read is not known any more.
    """
    opening = after.opening
    lost = _by_partition(() if opening is None else opening.losses)
    repeats = _by_partition(() if opening is None else opening.repeats)
    is_whole = opening is not None and not unknown
    begun: set[_Key] = set()
    for batch in after.batches:
        for source, starts in _keyed(batch, "start"):
            fresh = {key: at for key, at in starts.items() if key not in begun}
            begun.update(fresh)
            again = {key: at for key, at in fresh.items() if key in ended}
            if source.kind == "kafka":
                names = {key: (key[0], int(key[2])) for key in again}
                before = {name: ended[key] for key, name in names.items()}
                begun_at = {names[key]: at for key, at in again.items()}
                passed = {} if opening is None else {names[key]: read.get(key, []) for key in again}
                again_at = {
                    name: [*repeats.get(name, []), *unread.get(key[:3], [])] for key, name in names.items()
                }
                _judge_offsets(before, begun_at, batch, found, lost, passed, again_at, is_whole=is_whole)
            elif again:
                (key,) = again
                _judge_position(replace(source, until=ended[key]), source, batch, found)
    if after.batches:
        _judge_left_behind(ended, begun, after.batches[-1], found)


def _judge_left_behind(ended: Mapping[_Key, Any], begun: set[_Key], last: Batches, found: Judgement) -> None:
    """A partition of a topic that is still read must not stay behind in an earlier generation."""
    sources = [source for source in last.sources if source.kind == "kafka"]
    topics = {(topic, str(source.topic_id(topic))) for source in sources for topic in source.until}
    assigned = {
        topic: parts for one in sources for topic, parts in one.identity.get("partitions", {}).items()
    }
    still_read = {key[:3] for key in begun}
    for key in sorted(key for key in ended if key[:3] not in still_read and key[:2] in topics):
        topic, _, partition, _ = key
        if int(partition) not in assigned.get(topic, [int(partition)]):
            # The query names its partitions, and this one no more.
            continue
        text = f"{topic}/{partition} was read up to {ended[key]} before checkpoint {last.checkpoint}, "
        where = {"version": last.last_version, "topic": topic, "partition": int(partition)}
        found.find("PARTITION_MISSING", text + "which has no range for it", **where)


def _keyed(batch: Batches, edge: Literal["start", "until"]) -> Iterator[tuple[SourceRange, _Positions]]:
    """Each source of a batch with its positions; one DataFrame that is used twice can be two sources."""
    reads: Counter[_Key] = Counter()
    for source in sorted(batch.sources, key=lambda one: one.index):
        if source.kind == "kafka":
            names: list[_Key] = [(topic, str(source.topic_id(topic))) for topic in source.until]
            offsets = source.starts if edge == "start" else source.ends
            found: _Positions = {}
            for (topic, partition), offset in offsets.items():
                name = (topic, str(source.topic_id(topic)))
                found[*name, str(partition), str(reads[name])] = offset
        else:
            names = [source.key]
            found = {(*source.key, str(reads[source.key])): getattr(source, edge)}
        yield source, found
        reads.update(names)


def _judge_losses(lineage: Lineage, ledger: Ledger, found: Judgement) -> None:
    """Every loss that an opening names must be in the ledger."""
    recorded = {_loss_key(loss) for loss in ledger.losses if "topic" in loss}
    for generation in lineage.generations:
        for loss in () if generation.opening is None else generation.opening.losses:
            topic, partition, *span = _loss_key(loss)
            if _loss_key(loss) not in recorded:
                lost = spans_text([(span[0], span[1])])
                text = f"{topic}/{partition}: {lost} lost, and the ledger does not record the loss"
                where = {"topic": topic, "partition": partition, "ranges": [span]}
                found.find("LOSS_UNRECORDED", text, **where)


def _by_partition(ranges: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, Pairs]:
    found: dict[TopicPartition, Pairs] = {}
    for one in ranges:
        topic, partition, low, high = _loss_key(one)
        found.setdefault((topic, partition), []).append((low, high))
    return found


def _loss_key(loss: Mapping[str, Any]) -> tuple[str, int, int, int]:
    return (str(loss["topic"]), int(loss["partition"]), int(loss["from"]), int(loss["until"]))


def _report(
    lineage: Lineage, found: Judgement, read: Mapping[_Key, Pairs], first_version: int
) -> GradeReport:
    partitions: set[tuple[str, int, str | None]] = set()
    offsets = 0
    kinds: set[str] = set()
    for source in (source for batch in lineage.batches for source in batch.sources):
        kinds.add(source.kind)
        starts = source.starts
        for key, end in source.ends.items():
            partitions.add((*key, source.topic_id(key[0])))
            offsets += end - starts.get(key, end)
    repeated, losses = _count_repeated(read), sum(map(total, _unread(lineage, read).values()))
    commits = sum(batch.last - batch.first + 1 for batch in lineage.batches)
    parts = [counted(len(partitions), "partition"), counted(offsets, "offset")] if "kafka" in kinds else []
    parts += [f"{kind} source" for kind in sorted(kinds - {"kafka"})]
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


def _count_repeated(read: Mapping[_Key, Pairs]) -> int:
    """How often offsets were read again, by one read of a query."""
    return sum(total(pairs) - total(merged(pairs)) for pairs in read.values())


def _unread(lineage: Lineage, read: Mapping[_Key, Pairs]) -> dict[_Key, Pairs]:
    """The offsets of recorded losses that no batch has read, by topic, topic id and partition."""
    found: dict[_Key, Pairs] = {}
    for (topic, topic_id, partition), lost in lineage.losses.items():
        name = (topic, str(topic_id), str(partition))
        found[name] = less(lost, (pair for key, pairs in read.items() if key[:3] == name for pair in pairs))
    return found
