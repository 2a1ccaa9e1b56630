"""The first grade: the batches of a flow follow each other, range to range, from first to last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from headrace.verify.checkpoint_history import Generation, Lineage
from headrace.verify.commits import Batches, Ledger
from headrace.verify.report import Finding, GradeReport, verdict_of
from headrace.verify.source_range import OPAQUE, Position, SourceRange
from headrace.verify.wording import counted, spans_text

Place = tuple[str, int]
"""A topic and a partition."""


_Key = tuple[str, ...]
"""A source beyond one checkpoint: a partition of one topic id, a table id, or a folder of files, and the
number of the source where Spark opens a DataFrame that is used twice as two."""

_Ends = dict[_Key, Any]
"""Where earlier generations ended: an offset, or a position of another kind."""


@dataclass
class _Judgement:
    """What has been found so far, while one flow is judged."""

    findings: list[Finding] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def find(self, code: str, text: str, **place: Any) -> None:
        self.findings.append(Finding(code=code, text=text, place=place))


def judge_ranges(lineage: Lineage, ledger: Ledger, first_version: int) -> GradeReport:
    """Judge the first grade of one flow.

    Args:
        lineage: The flow.
        ledger: Its losses are compared with what the openings say.
        first_version: The first version that the table's log still holds.
    """
    found = _Judgement()
    _judge_beginning(lineage, found)
    ended: _Ends = {}
    for index, generation in enumerate(lineage.generations):
        _judge_generation(lineage, generation, found)
        if index > 0:
            _judge_fence(lineage.generations[index - 1], generation, found)
            _judge_succession(ended, generation, found)
        for batch in generation.batches:
            ended.update(_ends(batch))
    for batch in lineage.late:
        found.find(
            "FENCED_BATCH",
            f"{batch.name} was committed through checkpoint {batch.checkpoint} after it had been fenced",
            version=batch.last_version,
            batch=batch.last,
        )
    losses = _judge_losses(lineage, ledger, found)
    return _report(lineage, found, losses, first_version)


def kafka_positions(source: SourceRange, position: Position | None) -> dict[Place, int]:
    """A Kafka position by topic and partition; empty for other kinds."""
    if source.kind != "kafka" or position is None:
        return {}
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in position.items()
        for partition, offset in partitions.items()
    }


def topic_id(source: SourceRange, topic: str) -> str | None:
    """The id of a topic as the batch knew it."""
    found = source.identity.get("topics", {}).get(topic)
    return None if found is None else str(found)


def _judge_beginning(lineage: Lineage, found: _Judgement) -> None:
    first = next((g for g in lineage.generations if g.batches), None)
    if first is None or first.opening is not None or lineage.since is not None:
        return
    version = first.batches[0].first_version
    lacking = [hole for hole in lineage.unwitnessed if hole[0] < version]
    if lacking:
        found.reasons.append(
            f"versions {lacking[0][0]} to {lacking[-1][1]} are neither in the table's log nor in the ledger: "
            f"judged from version {version} on"
        )
    else:
        found.find(
            "CHECKPOINT_UNOPENED",
            f"{first.batches[0].name} was committed through checkpoint {first.checkpoint}, "
            "which no commit of the table opened",
            version=version,
            batch=first.batches[0].first,
        )


def _judge_generation(lineage: Lineage, generation: Generation, found: _Judgement) -> None:
    opening = generation.opening
    if opening is not None and not opening.fenced:
        found.find(
            "FENCE_MISSING",
            f"generation {opening.generation} was opened without fencing checkpoint {opening.fences}",
            version=opening.version,
        )
    batches = sorted(generation.batches, key=lambda b: (b.first, b.first_version))
    if opening is not None and batches and batches[0].first > 0:
        _missing_batches(lineage, 0, batches[0].first, opening.version, batches[0], found)
    for one in batches:
        _judge_batch(one, found)
    for one, two in pairwise(batches):
        if two.first <= one.last:
            found.find(
                "BATCH_TWICE",
                f"batch {two.first} of checkpoint {generation.checkpoint} was committed twice: "
                f"in version {one.last_version} and in version {two.first_version}",
                batch=two.first,
                versions=[one.last_version, two.first_version],
            )
            continue
        if two.first_version <= one.last_version:
            found.find(
                "BATCH_OUT_OF_ORDER",
                f"batch {two.first} is in version {two.first_version}, "
                f"and batch {one.last} before it in version {one.last_version}",
                batch=two.first,
                version=two.first_version,
            )
        if two.first > one.last + 1:
            _missing_batches(lineage, one.last + 1, two.first, one.last_version, two, found)
        for before, after in _paired(one, two, found):
            _judge_step(before, after, two, found)


def _missing_batches(
    lineage: Lineage, first: int, until: int, after_version: int, then: Batches, found: _Judgement
) -> None:
    name = f"batch {first}" if until == first + 1 else f"batches {first} to {until - 1}"
    unknown = [
        hole for hole in lineage.unwitnessed if hole[1] > after_version and hole[0] < then.first_version
    ]
    if unknown:
        found.reasons.append(
            f"{name}: versions {unknown[0][0]} to {unknown[-1][1]} are neither in the table's log "
            "nor in the ledger"
        )
    else:
        found.find(
            "BATCH_MISSING",
            f"{name} of checkpoint {then.checkpoint} is not in the table: "
            f"{then.name} follows in version {then.first_version}",
            batches=[first, until - 1],
            version=then.first_version,
        )


def _paired(one: Batches, two: Batches, found: _Judgement) -> Iterator[tuple[SourceRange, SourceRange]]:
    after = {source.index: source for source in two.sources}
    for before in one.sources:
        if before.index in after:
            yield before, after[before.index]
        else:
            found.find(
                "SOURCE_MISSING",
                f"batch {two.first} has no range for source {before.index}, which batch {one.last} read",
                batch=two.first,
                version=two.first_version,
                source=before.index,
            )


def _judge_batch(batch: Batches, found: _Judgement) -> None:
    """A range must not run backwards, and each partition must have a start."""
    for source in batch.sources:
        start, until = kafka_positions(source, source.start), kafka_positions(source, source.until)
        backwards = {
            place: (start[place], end) for place, end in until.items() if end < start.get(place, end)
        }
        for (topic, partition), (low, high) in backwards.items():
            found.find(
                "RANGE_BACKWARDS",
                f"{batch.name} goes backwards in {topic}/{partition}: from {low} until {high}",
                batch=batch.first,
                version=batch.first_version,
                topic=topic,
                partition=partition,
                ranges=[[high, low]],
            )
        if batch.first == batch.last and set(until) - set(start):
            places = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(set(until) - set(start)))
            found.find(
                "RANGE_OPEN",
                f"{batch.name} has no start for {places}",
                batch=batch.first,
                version=batch.first_version,
            )
        if order_of(source, source.start) > order_of(source, source.until):
            found.find(
                "RANGE_BACKWARDS",
                f"{batch.name} goes backwards in source {source.index}: "
                f"from {dict(source.start or {})} until {dict(source.until)}",
                batch=batch.first,
                version=batch.first_version,
                source=source.index,
            )


def order_of(source: SourceRange, position: Position | None) -> tuple[int, ...]:
    """What positions of one delta or files source compare by; a Kafka position never differs."""
    if position is None or source.kind in ("kafka", OPAQUE):
        return ()
    if source.kind == "files":
        return (int(position["logOffset"]),)
    # The initial snapshot of version v comes before the changes of v and later.
    return (
        int(position["reservoirVersion"]),
        int(not position.get("isStartingVersion")),
        int(position["index"]),
    )


def _judge_step(before: SourceRange, after: SourceRange, batch: Batches, found: _Judgement) -> None:
    """Two batches of one checkpoint: the later must start where the earlier ended."""
    if not _is_same_source(before, after):
        found.find(
            "SOURCE_CHANGED",
            f"{batch.name} reads {_named(after)} through a checkpoint that read {_named(before)}",
            batch=batch.first,
            version=batch.first_version,
            source=after.index,
        )
        return
    if after.kind == "kafka":
        _judge_offsets(
            kafka_positions(before, before.until), kafka_positions(after, after.start), batch, found
        )
    else:
        _judge_position(before, after, batch, found)


def _is_same_source(one: SourceRange, two: SourceRange) -> bool:
    """Whether two ranges are of one source; a topic pattern may come to match more topics."""
    if one.kind != "kafka" or two.kind != "kafka":
        return one.kind == two.kind and _other_key(one) == _other_key(two)
    shared = set(one.until) & set(two.until)
    return all(topic_id(one, topic) == topic_id(two, topic) for topic in shared)


def _judge_position(before: SourceRange, after: SourceRange, batch: Batches, found: _Judgement) -> None:
    """A delta or files source goes on where it ended."""
    ended, began = order_of(before, before.until), order_of(after, after.start)
    if ended == began and (after.kind != OPAQUE or before.until == after.start):
        return
    code, what = ("RANGE_TWICE", "reads again") if began < ended else ("RANGE_MISSING", "skips")
    found.find(
        code,
        f"{batch.name} {what} a part of {_named(after)}: the batch before ended at {dict(before.until)}, "
        f"this one starts at {dict(after.start) if after.start is not None else 'the beginning'}",
        batch=batch.first,
        version=batch.first_version,
        source=after.index,
    )


def _judge_offsets(
    ended: Mapping[Place, int],
    began: Mapping[Place, int],
    batch: Batches,
    found: _Judgement,
    lost: Mapping[Place, list[tuple[int, int]]] | None = None,
) -> None:
    """Every partition goes on where it ended; one that is new begins at its first offset.

    Args:
        lost: Recorded losses, which a range may pass over.
    """
    for place in sorted(set(ended) | set(began)):
        topic, partition = place
        where = {"batch": batch.first, "version": batch.first_version, "topic": topic, "partition": partition}
        if place not in began:
            found.find("PARTITION_MISSING", f"{batch.name} has no range for {topic}/{partition}", **where)
            continue
        at = ended.get(place, 0)
        for low, high in sorted((lost or {}).get(place, ())):
            at = high if low == at else at
        if began[place] > at:
            found.find(
                "RANGE_MISSING",
                f"{topic}/{partition}: {spans_text([(at, began[place])])} in no batch: "
                f"{batch.name} starts at {began[place]}",
                **where,
                ranges=[[at, began[place]]],
            )
        elif began[place] < at:
            found.find(
                "RANGE_TWICE",
                f"{topic}/{partition}: {spans_text([(began[place], at)])} in two batches: "
                f"{batch.name} starts at {began[place]}",
                **where,
                ranges=[[began[place], at]],
            )


def _judge_fence(before: Generation, after: Generation, found: _Judgement) -> None:
    opening = after.opening
    if opening is not None and opening.fences is not None and opening.fences != before.checkpoint:
        found.find(
            "FENCE_ELSEWHERE",
            f"generation {opening.generation} fences checkpoint {opening.fences}, "
            f"and checkpoint {before.checkpoint} fed the table before it",
            version=opening.version,
        )


def _judge_succession(ended: Mapping[_Key, Any], after: Generation, found: _Judgement) -> None:
    """A later generation goes on where the earlier ones ended, but for recorded losses.

    A topic of another id is another topic, and begins where it likes.
    """
    lost: dict[Place, list[tuple[int, int]]] = {}
    for loss in () if after.opening is None else after.opening.losses:
        span = (int(loss["from"]), int(loss["until"]))
        lost.setdefault((loss["topic"], int(loss["partition"])), []).append(span)
    begun: set[_Key] = set()
    for batch in after.batches:
        for source, starts in _keyed(batch, lambda one: one.start):
            fresh = {key: at for key, at in starts.items() if key not in begun}
            begun.update(fresh)
            again = {key: at for key, at in fresh.items() if key in ended}
            if source.kind == "kafka":
                places = {key: (key[0], int(key[2])) for key in again}
                before = {places[key]: ended[key] for key in again}
                _judge_offsets(before, {places[key]: at for key, at in again.items()}, batch, found, lost)
            elif again:
                (key,) = again
                _judge_position(replace(source, until=ended[key]), source, batch, found)
    if after.batches:
        _judge_left_behind(ended, begun, after.batches[-1], found)


def _judge_left_behind(ended: Mapping[_Key, Any], begun: set[_Key], last: Batches, found: _Judgement) -> None:
    """A partition of a topic that is still read must not stay behind in an earlier generation."""
    topics = {
        (topic, str(topic_id(source, topic)))
        for source in last.sources
        if source.kind == "kafka"
        for topic in source.until
    }
    assigned = {
        topic: parts
        for source in last.sources
        for topic, parts in source.identity.get("partitions", {}).items()
    }
    still_read = {key[:3] for key in begun}
    for key in sorted(key for key in ended if key[:3] not in still_read and key[:2] in topics):
        if int(key[2]) not in assigned.get(key[0], [int(key[2])]):
            # The query names its partitions, and this one no more.
            continue
        found.find(
            "PARTITION_MISSING",
            f"{key[0]}/{key[2]} was read up to {ended[key]} before checkpoint {last.checkpoint}, "
            "which has no range for it",
            version=last.last_version,
            topic=key[0],
            partition=int(key[2]),
        )


def _ends(batch: Batches) -> _Ends:
    return {key: at for _, ends in _keyed(batch, lambda one: one.until) for key, at in ends.items()}


def _keyed(
    batch: Batches, position: Callable[[SourceRange], Position | None]
) -> Iterator[tuple[SourceRange, _Ends]]:
    """Each source of a batch with its positions; one DataFrame that is used twice can be two sources."""
    reads: Counter[_Key] = Counter()
    for source in sorted(batch.sources, key=lambda one: one.index):
        if source.kind == "kafka":
            found = {_kafka_key(source, p): at for p, at in kafka_positions(source, position(source)).items()}
            names: list[_Key] = [(topic, str(topic_id(source, topic))) for topic in source.until]
            yield source, {(*key, str(reads[key[:2]])): at for key, at in found.items()}
        else:
            names = [_other_key(source)]
            yield source, {(*names[0], str(reads[names[0]])): position(source)}
        reads.update(names)


def _kafka_key(source: SourceRange, place: Place) -> _Key:
    return (place[0], str(topic_id(source, place[0])), str(place[1]))


def _other_key(source: SourceRange) -> _Key:
    names = {"delta": "table_id", OPAQUE: "format"}
    return (source.kind, str(source.identity.get(names.get(source.kind, "path"))))


def _judge_losses(lineage: Lineage, ledger: Ledger, found: _Judgement) -> int:
    """Every loss that an opening speaks of must have been written down before."""
    recorded = {_loss_key(loss) for loss in ledger.losses if "topic" in loss}
    total = 0
    for generation in lineage.generations:
        for loss in () if generation.opening is None else generation.opening.losses:
            total += int(loss["until"]) - int(loss["from"])
            if _loss_key(loss) not in recorded:
                found.find(
                    "LOSS_UNRECORDED",
                    f"{loss['topic']}/{loss['partition']}: {spans_text([(loss['from'], loss['until'])])} "
                    "lost, and the ledger does not record the loss",
                    topic=loss["topic"],
                    partition=int(loss["partition"]),
                    ranges=[[loss["from"], loss["until"]]],
                )
    return total


def _loss_key(loss: Mapping[str, Any]) -> tuple[str, int, int, int]:
    return (str(loss["topic"]), int(loss["partition"]), int(loss["from"]), int(loss["until"]))


def _named(source: SourceRange) -> str:
    if source.kind == "kafka":
        topics = source.identity.get("topics", {})
        return "Kafka " + ", ".join(f"{topic} ({id})" for topic, id in sorted(topics.items()))
    if source.kind == OPAQUE:
        return f"the stream {source.identity.get('format')}"
    return f"{source.kind} {source.identity.get('path')}"


def _report(lineage: Lineage, found: _Judgement, losses: int, first_version: int) -> GradeReport:
    partitions: set[tuple[str, int, str | None]] = set()
    offsets = commits = 0
    kinds: dict[str, int] = {}
    for batch in lineage.batches:
        commits += batch.last - batch.first + 1
        for source in batch.sources:
            kinds[source.kind] = max(kinds.get(source.kind, 0), source.index + 1)
            start = kafka_positions(source, source.start)
            for place, end in kafka_positions(source, source.until).items():
                partitions.add((*place, topic_id(source, place[0])))
                offsets += end - start.get(place, end)
    parts = []
    if "kafka" in kinds:
        parts += [counted(len(partitions), "partition"), counted(offsets, "offset")]
    parts += [f"{kind} source" for kind in sorted(kinds) if kind != "kafka"]
    parts.append(counted(commits, "commit"))
    if not found.findings:
        parts.append("no gap, no overlap")
    if losses:
        parts.append(f"{counted(losses, 'offset')} lost, as recorded")
    ledgered = [batch for batch in lineage.batches if batch.first_version < first_version]
    if ledgered:
        parts.append(f"up to version {first_version - 1} by the ledger alone")
    verdict = verdict_of(found.findings, found.reasons)
    if not lineage.batches:
        parts = ["no batch yet"]
    return GradeReport(
        grade="ranges",
        verdict=verdict,
        text=", ".join(parts),
        reasons=tuple(found.reasons),
        findings=tuple(found.findings),
        figures={
            "partitions": len(partitions),
            "offsets": offsets,
            "commits": commits,
            "lost": losses,
            "generations": len(lineage.generations),
        },
    )
