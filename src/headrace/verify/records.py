"""The third grade: every record that the broker holds is in the table, once, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.model.texts import counted
from headrace.verify.claims import Claim, Claims
from headrace.verify.coordinates import ANY, TableRecords
from headrace.verify.offsets import Topic
from headrace.verify.report import GradeReport, Judgement
from headrace.verify.source_range import TopicPartition
from headrace.verify.spans import Layers, Spans
from headrace.verify.wording import spans_text

READ_WHOLE = 3_000_000
"""Up to so many offsets are read from the broker one by one; above, only those the table lacks."""

_REACH = 20_000
"""Ranges with a smaller distance are read together: a new request costs more than reading on."""

_NONE = Spans.of(())


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One partition of a topic, compared. All spans hold each offset as often as it is at fault."""

    missing: Spans = _NONE  # on the broker, or in the table upstream, and not in the table
    twice: Spans = _NONE  # in the table more often than committed
    strangers: Spans = _NONE  # in the table, outside of every committed range
    phantoms: Spans = _NONE  # in the table, within the ranges, where the broker holds no committed record
    held: int = 0  # offsets that the broker was found to hold, or that the table upstream holds
    again: int = 0  # records that were read again, as declared
    empty: int = 0  # offsets within the ranges that hold no record on the broker
    whole: bool = True  # whether the broker was asked for every offset


def offsets_to_ask(
    claims: Mapping[TopicPartition, Claim], table: TableRecords, limit: int
) -> dict[TopicPartition, Spans]:
    """What has to be read from the broker to judge the claims.

    Args:
        limit: Up to so many offsets, every one is asked for; above, only those that the table lacks.
    """
    live = {key: claim.live.merged() for key, claim in claims.items() if claim.live}
    if sum(spans.total for spans in live.values()) <= limit:
        return live
    asked = {}
    for key, spans in live.items():
        layers = Layers.of(spans, table.at(key))
        lacking = layers.where((layers.counts[0] > 0) & (layers.counts[1] < 1))
        if lacking:
            asked[key] = lacking.merged(_REACH)
    return asked


def compare(
    claims: Mapping[TopicPartition, Claim],
    table: TableRecords,
    asked: Mapping[TopicPartition, Spans],
    found: Mapping[TopicPartition, Spans],
    topics: Mapping[str, Topic | None],
) -> dict[TopicPartition, Comparison]:
    """Compare what the flows claim with what the table and the broker hold."""
    partitions = {*claims, *table.partitions}
    return {
        key: _compare_place(
            claims.get(key, Claim()),
            [table.at(key), table.others.came.at(key), table.others.gone.at(key)],
            asked.get(key, _NONE),
            found.get(key, _NONE),
            topics.get(key[0]),
        )
        for key in partitions
    }


def judge_records(
    claims: Claims,
    compared: Mapping[TopicPartition, Comparison],
    table: TableRecords,
    *,
    is_first: bool,
    sharing: Sequence[Claims] = (),
) -> GradeReport:
    """Judge the third grade of one flow.

    Args:
        compared: The whole table's comparison; this flow's partitions are taken from it.
        is_first: Whether rows that no flow claims are to be reported here.
        sharing: The other flows of the table that have read the same partitions: their rows are reported
            together.
    """
    mine = {
        key: compared[key]
        for key in sorted(compared)
        if key in claims.partitions or (is_first and compared[key].strangers)
    }
    mine = _without_dropped(mine, [claims, *sharing])
    found = Judgement()
    found.reasons += claims.reasons
    _judge_missing(mine, claims, table, found)
    _judge_surplus(mine, claims, table, found)
    if is_first:
        _judge_nowhere(table, found)
    figures = {
        "rows": sum(table.present.at(key).total for key in claims.partitions),
        "held": sum(one.held for one in mine.values()),
        **{
            name: sum(getattr(one, name).total for one in mine.values())
            for name in ("missing", "twice", "strangers", "phantoms")
        },
    }
    report = found.report("records", _text(claims, mine, table, found, sharing), figures)
    checked = claims.total("live") + claims.total("derived")
    is_past = report.verdict == "partial" and not checked and claims.total("past") > 0
    return replace(report, verdict="unjudged") if is_past else report


def _compare_place(
    claim: Claim, rows: list[Spans], asked: Spans, found: Spans, topic: Topic | None
) -> Comparison:
    layers = Layers.of(*rows, claim.live, claim.past, claim.derived, claim.may, asked, found)
    present, came, gone, live, past, derived, may, questions, answers = layers.counts
    ours = present - came + gone
    unheld = (questions > 0) & (answers == 0)
    must = np.where(unheld, 0, live) + derived
    surplus = np.maximum(ours - (live + past + derived + may), 0)
    claimed = live + past + derived + may > 0
    only_live = (live > 0) & (past + derived + may == 0)
    is_certain = topic is not None and topic.compacted is False
    return Comparison(
        missing=_repeated(layers, np.maximum(must - ours, 0)),
        twice=_repeated(layers, np.where(claimed, surplus, 0)),
        strangers=_repeated(layers, np.where(claimed, 0, surplus)),
        phantoms=layers.where(unheld & only_live & (ours > 0)) if is_certain else _NONE,
        held=layers.times(np.where(live > 0, np.where(unheld, 0, 1), 0) + derived),
        again=layers.times(np.where(unheld, 0, np.maximum(live - 1, 0))),
        empty=layers.times(np.where((live > 0) & unheld & (present == 0), 1, 0)),
        whole=not bool(((live > 0) & (questions == 0)).any()),
    )


def _repeated(layers: Layers, counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Spans:
    most = int(counts.max(initial=0))
    return Spans.joined([layers.where(counts >= times) for times in range(1, most + 1)])


def _without_dropped(
    mine: Mapping[TopicPartition, Comparison], flows: Sequence[Claims]
) -> dict[TopicPartition, Comparison]:
    """The comparison without the missing records that expectations have dropped.

    Which records a batch has dropped is not kept, only how many. So as many may be missing in its ranges,
    beside replayed records of its quarantine that replays have dropped.
    Batches of a table upstream have no ranges of offsets: there the sum counts.
    """
    missing = {key: one.missing for key, one in mine.items()}
    for claims in flows:
        if claims.upstream is not None and sum(map(_total, missing.values())) <= claims.dropped:
            missing = dict.fromkeys(missing, _NONE)
        later = {key: _parted(missing[key], some) for key, some in claims.replayed.items() if key in missing}
        if sum(both.total for both, _ in later.values()) <= claims.dropped_later:
            missing |= {key: rest for key, (_, rest) in later.items()}
        for ranges, dropped in claims.drops:
            inside = {key: missing[key].within(*ends) for key, ends in ranges.items() if key in missing}
            if sum(map(_total, inside.values())) <= dropped:
                for key in inside:
                    low, high = ranges[key]
                    rest = [missing[key].within(None, low), missing[key].within(high, None)]
                    missing[key] = Spans.joined(rest)
    return {key: replace(one, missing=missing[key]) for key, one in mine.items()}


def _parted(missing: Spans, replayed: Spans) -> tuple[Spans, Spans]:
    """The missing records that were replayed, and the others."""
    layers = Layers.of(missing, replayed)
    lacking, later = layers.counts
    return _repeated(layers, np.minimum(lacking, later)), _repeated(layers, np.maximum(lacking - later, 0))


def _total(spans: Spans) -> int:
    return spans.total


def _judge_missing(
    mine: Mapping[TopicPartition, Comparison], claims: Claims, table: TableRecords, found: Judgement
) -> None:
    missing = {key: one.missing for key, one in mine.items() if one.missing}
    total = sum(spans.total for spans in missing.values())
    if not total:
        return
    if total <= table.others.gone_unknown:
        found.reasons.append(
            f"{counted(total, 'record')} missing, and other writers removed "
            f"{_some(table.others.gone_unknown)} whose files are gone: which rows they were is not known"
        )
    elif claims.upstream is not None and _begins_later(missing, table):
        first = ", ".join(f"{t}/{p} from {_first(table, (t, p)):,} on" for t, p in missing)
        found.reasons.append(f"it began to read at {first}; {counted(total, 'earlier record')} were not read")
    else:
        held = "the broker" if claims.upstream is None else claims.upstream
        _find(found, "RECORDS_MISSING", missing, f"on {held} and not in the table")


def _judge_surplus(
    mine: Mapping[TopicPartition, Comparison], claims: Claims, table: TableRecords, found: Judgement
) -> None:
    twice = {key: one.twice for key, one in mine.items() if one.twice}
    _find(found, "RECORDS_TWICE", twice, "in the table more than once")
    phantoms = {key: one.phantoms for key, one in mine.items() if one.phantoms}
    words = "in the table, and no committed record on the broker"
    _find(found, "RECORDS_UNCOMMITTED", phantoms, words)
    strangers = {key: one.strangers for key, one in mine.items() if one.strangers}
    total = sum(spans.total for spans in strangers.values())
    excused = table.others.came_unknown + claims.excused
    if total and total <= excused:
        found.reasons.append(
            f"{counted(total, 'row')} outside the known ranges: which writer added them is not known"
        )
    else:
        _find(found, "RECORDS_STRANGE", strangers, "in the table, outside the committed ranges")


def _some(rows: int) -> str:
    return "rows" if rows >= ANY else counted(rows, "row")


def _judge_nowhere(table: TableRecords, found: Judgement) -> None:
    """Rows without coordinates can only be other writers', and every active file must be readable."""
    for words in table.unreadable:
        file = words.split(": ")[0]
        found.find("RECORDS_UNREADABLE", f"coordinates cannot be read: {words}", file=file)
    lacking = table.present.without - table.others.came.without + table.others.gone.without
    if lacking <= 0:
        return
    words = f"{counted(lacking, 'row')} in the table without coordinates"
    if lacking <= table.others.came_unknown:
        found.reasons.append(f"{words}, which other writers may have added in files that are gone")
    else:
        found.find("RECORDS_NOWHERE", words, rows=lacking)


def _find(found: Judgement, code: str, partitions: Mapping[TopicPartition, Spans], words: str) -> None:
    for (topic, partition), spans in partitions.items():
        ranges = spans.pairs()
        text = f"{topic}/{partition}: {spans_text(ranges)} {'is' if spans.total == 1 else 'are'} {words}"
        found.find(code, text, topic=topic, partition=partition, ranges=[list(pair) for pair in ranges])


def _begins_later(missing: Mapping[TopicPartition, Spans], table: TableRecords) -> bool:
    """Whether only the beginning is missing: a stream can start at a later version."""
    rows = [table.present.at(key) for key in missing]
    return any(rows) and all(
        not present or int(spans.ends.max()) <= int(present.starts.min())
        for present, spans in zip(rows, missing.values(), strict=True)
    )


def _first(table: TableRecords, key: TopicPartition) -> int:
    present = table.present.at(key)
    return int(present.starts.min()) if present else 0


def _text(
    claims: Claims,
    mine: Mapping[TopicPartition, Comparison],
    table: TableRecords,
    found: Judgement,
    sharing: Sequence[Claims],
) -> str:
    present, came, gone = (
        sum(one.at(key).total for key in claims.partitions)
        for one in (table.present, table.others.came, table.others.gone)
    )
    rows = present - came
    held = sum(one.held for one in mine.values())
    others = f" (and {came:,} by other writers)" if came else ""
    others += f" + {gone:,} erased by other writers" if gone else ""
    quarantined = sum(one.quarantined for one in (claims, *sharing))
    discarded = sum(one.discarded for one in (claims, *sharing))
    dropped = sum(one.dropped for one in (claims, *sharing))
    others += f" + {quarantined:,} in quarantine" if quarantined else ""
    others += f" + {discarded:,} discarded" if discarded else ""
    others += f" + {dropped:,} dropped" if dropped else ""
    unread = f"; {claims.unread:,} unread" if claims.unread else ""
    if not claims.partitions:
        return f"no record yet{unread}"
    if not claims.total("live") and not claims.total("derived"):
        twice = any(one.twice or one.strangers for one in mine.values())
        return f"{counted(rows, 'row')} in the table{others}" + ("" if twice else ", none twice")
    equal = not any(one.missing or one.twice or one.phantoms or one.strangers for one in mine.values())
    sign = "=" if equal else "and" if not found.findings else "≠"
    if sharing:
        sign = f"by each of {len(sharing) + 1} flows {sign}"
    if claims.upstream is not None:
        return f"{held:,} in {claims.upstream} {sign} {rows:,} in the table{others}"
    if claims.total("past") or claims.total("may"):
        more = ", none missing, none twice" if equal else ""
        return f"{held:,} compared with Kafka, {counted(rows, 'row')} in the table{others}{more}{unread}"
    if again := sum(one.again for one in mine.values()):
        return (
            f"{held:,} read from Kafka + {again:,} read again, as declared {sign} {rows:,} in the table"
            f"{others}{unread}"
        )
    if all(one.whole for one in mine.values()):
        return f"{held:,} read from Kafka {sign} {rows:,} in the table{others}{unread}"
    empty = sum(one.empty for one in mine.values())
    return (
        f"{held + empty:,} offsets {sign} {rows:,} in the table{others} + {empty:,} without a record{unread}"
    )
