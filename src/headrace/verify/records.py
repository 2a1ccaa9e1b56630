"""The third grade: every record that the source holds is in the table, once, and nothing else is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.model.ranges import RecordCoordinates
from headrace.model.texts import counted
from headrace.verify.claims import Claim, Claims, join_claims
from headrace.verify.coordinates import (
    ANY,
    Columns,
    CoordinatesUnreadableError,
    Present,
    TableRecords,
    find_columns,
    read_table_records,
)
from headrace.verify.evidence import Evidence
from headrace.verify.keys import keys_of
from headrace.verify.quarantine import Rejected
from headrace.verify.reader import CannotJudgeError, Context, Found, SourceReader
from headrace.verify.registry import Readers
from headrace.verify.report import GradeReport, Judgement, unjudged_records
from headrace.verify.source_range import Layers, Partition, Spans, named, spans_text

READ_WHOLE = 3_000_000
"""Up to so many offsets are read from the source one by one; above, only those the table lacks."""

_REACH = 20_000
"""Ranges with a smaller distance are read together: a new request costs more than reading on."""

_NONE = Spans.of(())


class RecordsJudge:
    """Judges records; what tables have in common is asked and read once."""

    def __init__(self, context: Context, readers: Readers) -> None:
        self._context = context
        self._readers = readers

    def judge(self, evidence: Evidence) -> dict[str, GradeReport]:
        """The third grade of every flow of a table, by flow."""
        alone: dict[str, GradeReport] = {}
        for lineage in evidence.lineages:
            readers = self._readers.of(lineage.source_kinds)
            report = readers[0].judge_records(evidence, lineage) if len(readers) == 1 else None
            if report is not None:
                alone[lineage.flow] = report
        if alone:
            reason = "another flow of the table reads a source whose rows have no coordinates"
            return {**_unjudged(evidence, reason, applies=False), **alone}
        try:
            columns = find_columns(evidence.log.metadata, self._context.kinds)
            if columns is None:
                reason = (
                    "the table keeps no coordinates of its records: it has no _source, or lacks its fields"
                )
                if evidence.kind == "sink":
                    reason = "another system has the rows"
                elif keys_of(evidence.log):
                    reason = "a row is not one record: changes are applied by key"
                elif not evidence.log.active():
                    reason = "the table has no rows"
                return _unjudged(evidence, reason, applies=False)
            claims: dict[str, Claims] = {}
            for lineage in evidence.lineages:
                reader = self._reader(lineage.source_kinds)
                if reader.range.coordinates not in (None, columns.coordinates):
                    reason = "the table keeps the coordinates of another kind of source than it reads"
                    raise CannotJudgeError(reason, applies=False)
                claimed = reader.claims(evidence, lineage)
                replays = (one for one in evidence.replays if one.flow in lineage.names)
                dropped = sum(one.counts.dropped for one in replays)
                claims[lineage.flow] = claimed.with_rejected(
                    lineage, evidence.quarantine, evidence.since, dropped
                )
            return self._judge_claims(evidence, columns, claims)
        except CannotJudgeError as error:
            # No other flow can be judged either: its rows cannot be separated from theirs.
            return _unjudged(evidence, str(error), applies=error.applies)
        except CoordinatesUnreadableError as error:
            return _unjudged(evidence, str(error))

    def _reader(self, kinds: Collection[str]) -> SourceReader:
        readers = self._readers.of(kinds)
        if len(readers) > 1 and not any(one.unjudged for one in readers):
            reason = f"it reads {' and '.join(sorted(kinds))} sources, whose rows cannot be compared together"
            raise CannotJudgeError(reason, applies=False)
        chosen = next((one for one in readers if one.unjudged), None)
        return chosen or (readers[0] if readers else SourceReader(self._context))

    def _judge_claims(
        self, evidence: Evidence, columns: Columns, claims: Mapping[str, Claims]
    ) -> dict[str, GradeReport]:
        is_derived = any(one.is_derived for one in claims.values())
        table = read_table_records(
            self._context.coordinates,
            evidence.log,
            evidence.balance,
            columns,
            all_files=is_derived or evidence.baseline.expected is not None,
        )
        table = replace(table, quarantined=_quarantined(evidence, claims))
        together = join_claims(claims.values())
        asked = _offsets_to_ask(together, table, READ_WHOLE)
        found: dict[Partition, Found] = {}
        for kind in sorted({one.kind for one in claims.values() if one.kind}):
            partitions = {key for one in claims.values() if one.kind == kind for key in one.partitions}
            mine = {key: spans for key, spans in asked.items() if key in partitions}
            held = self._reader([kind]).find(evidence, mine) if mine else {}
            if held is None:
                return self.judge(evidence)
            found.update(held)
        compared = {
            key: _compare_partition(
                together.get(key, Claim()),
                [table.at(key), table.others.came.at(key), table.others.gone.at(key)],
                asked.get(key, _NONE),
                found.get(key, Found(_NONE, is_certain=False)),
            )
            for key in {*together, *table.partitions}
        }
        return {
            flow: _judge_flow(
                one,
                compared,
                table,
                columns.coordinates,
                is_first=number == 0,
                sharing=[
                    other
                    for name, other in claims.items()
                    if name != flow and not one.partitions.keys().isdisjoint(other.partitions)
                ],
            )
            for number, (flow, one) in enumerate(claims.items())
        }


def _unjudged(evidence: Evidence, reason: str, *, applies: bool = True) -> dict[str, GradeReport]:
    return {lineage.flow: unjudged_records(reason, applies=applies) for lineage in evidence.lineages}


def _quarantined(evidence: Evidence, claims: Mapping[str, Claims]) -> Present:
    """The coordinates of the rejected rows of committed batches that were not replayed."""
    found = Rejected.of(evidence.batches, evidence.quarantine.kept, evidence.quarantine.discarded)
    spans = found.with_read([named for one in claims.values() for named in one.named]).spans
    return Present(spans, found.rows - sum(one.total for one in spans.values()), found.rows)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One partition, compared. All spans hold each offset as often as it is at fault."""

    missing: Spans = _NONE  # in the source, or in the table upstream, and not in the table
    twice: Spans = _NONE  # in the table more often than committed
    strangers: Spans = _NONE  # in the table, outside of every committed range
    phantoms: Spans = _NONE  # in the table, within the ranges, where the source holds no committed record
    held: int = 0  # offsets that the source was found to hold, or that the table upstream holds
    again: int = 0  # records that were read again, as declared
    empty: int = 0  # offsets within the ranges that hold no record in the source
    whole: bool = True  # whether the source was asked for every offset


def _offsets_to_ask(
    claims: Mapping[Partition, Claim], table: TableRecords, limit: int
) -> dict[Partition, Spans]:
    """The offsets to read from the source: all up to a limit; above it, those that the table lacks."""
    live = {key: claim.live.merged() for key, claim in claims.items() if claim.live}
    if sum(spans.total for spans in live.values()) <= limit:
        return live
    asked = {}
    for key, spans in live.items():
        if lacking := spans.less(table.at(key)):
            asked[key] = lacking.merged(_REACH)
    return asked


def _compare_partition(claim: Claim, rows: list[Spans], asked: Spans, found: Found) -> Comparison:
    layers = Layers.of(*rows, claim.live, claim.past, claim.derived, claim.may, asked, found.spans)
    present, came, gone, live, past, derived, may, questions, answers = layers.counts
    ours = present - came + gone
    unheld = (questions > 0) & (answers == 0)
    must = np.where(unheld, 0, live) + derived
    surplus = np.maximum(ours - (live + past + derived + may), 0)
    claimed = live + past + derived + may > 0
    only_live = (live > 0) & (past + derived + may == 0)
    return Comparison(
        missing=layers.repeated(np.maximum(must - ours, 0)),
        twice=layers.repeated(np.where(claimed, surplus, 0)),
        strangers=layers.repeated(np.where(claimed, 0, surplus)),
        phantoms=layers.where(unheld & only_live & (ours > 0)) if found.is_certain else _NONE,
        held=layers.times(np.where(live > 0, np.where(unheld, 0, 1), 0) + derived),
        again=layers.times(np.where(unheld, 0, np.maximum(live - 1, 0))),
        empty=layers.times(np.where((live > 0) & unheld & (present == 0), 1, 0)),
        whole=not bool(((live > 0) & (questions == 0)).any()),
    )


def _judge_flow(
    claims: Claims,
    compared: Mapping[Partition, Comparison],
    table: TableRecords,
    coordinates: RecordCoordinates,
    *,
    is_first: bool,
    sharing: Sequence[Claims],
) -> GradeReport:
    """Judge the third grade of one flow; `compared` is the comparison of the whole table.

    The first flow reports the rows that no flow claims. Other flows that have read the same partitions
    (`sharing`) are reported together with this one.
    """
    mine = {
        key: compared[key]
        for key in sorted(compared)
        if key in claims.partitions or (is_first and compared[key].strangers)
    }
    mine = _without_dropped(mine, [claims, *sharing])
    found = Judgement()
    found.reasons += claims.reasons
    finder = _Finder(coordinates, mine, found)
    _judge_missing(claims, table, finder)
    _judge_surplus(claims, table, finder)
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


def _without_dropped(
    mine: Mapping[Partition, Comparison], flows: Sequence[Claims]
) -> dict[Partition, Comparison]:
    """The comparison without the missing records that expectations have dropped.

    Which records a batch has dropped is not kept, only how many. So as many may be missing in its ranges,
    beside replayed records of its quarantine that replays have dropped.
    Batches of a table upstream have no ranges of offsets: there the sum counts.
    """
    missing = {key: one.missing for key, one in mine.items()}
    for claims in flows:
        if claims.is_derived and _total(missing) <= claims.dropped:
            missing = dict.fromkeys(missing, _NONE)
        later = {
            key: Layers.of(missing[key], some) for key, some in claims.replayed.items() if key in missing
        }
        both = {key: one.repeated(np.minimum(*one.counts)) for key, one in later.items()}
        if _total(both) <= claims.dropped_later:
            for key, one in later.items():
                missing[key] = one.repeated(np.maximum(one.counts[0] - one.counts[1], 0))
        for ranges, dropped in claims.drops:
            inside = {key: missing[key].within(*ends) for key, ends in ranges.items() if key in missing}
            if _total(inside) <= dropped:
                for key in inside:
                    low, high = ranges[key]
                    rest = [missing[key].within(None, low), missing[key].within(high, None)]
                    missing[key] = Spans.joined(rest)
    return {key: replace(one, missing=missing[key]) for key, one in mine.items()}


def _total(partitions: Mapping[Partition, Spans]) -> int:
    return sum(spans.total for spans in partitions.values())


@dataclass(frozen=True)
class _Finder:
    coordinates: RecordCoordinates
    compared: Mapping[Partition, Comparison]
    found: Judgement

    def of(self, what: str) -> dict[Partition, Spans]:
        return {key: spans for key, one in self.compared.items() if (spans := getattr(one, what))}

    def find(self, code: str, what: str, words: str) -> None:
        for key, spans in self.of(what).items():
            ranges = spans.pairs()
            text = f"{named(key)}: {spans_text(ranges)} {'is' if spans.total == 1 else 'are'} {words}"
            place = dict(zip(self.coordinates.names, key, strict=False))
            self.found.find(code, text, **place, ranges=[list(pair) for pair in ranges])


def _judge_missing(claims: Claims, table: TableRecords, finder: _Finder) -> None:
    missing = finder.of("missing")
    total = _total(missing)
    reasons, gone = finder.found.reasons, table.others.gone_unknown
    if total and total <= gone:
        removed = "rows" if gone >= ANY else counted(gone, "row")
        reasons.append(
            f"{counted(total, 'record')} missing, and other writers removed {removed} whose files are gone: "
            "which rows they were is not known"
        )
    elif claims.is_derived and total and total <= table.quarantined.without:
        kept_out = counted(table.quarantined.without, "row")
        reasons.append(
            f"{counted(total, 'record')} missing, and {kept_out} in quarantine without the coordinates of a "
            "record, as rows that are too long to be kept whole: which records they were is not known"
        )
    elif claims.is_derived and _begins_later(missing, table):
        first = ", ".join(f"{named(key)} from {_first(table, key):,} on" for key in missing)
        reasons.append(f"it began to read at {first}; {counted(total, 'earlier record')} were not read")
    else:
        finder.find("RECORDS_MISSING", "missing", f"on {claims.holder} and not in the table")


def _judge_surplus(claims: Claims, table: TableRecords, finder: _Finder) -> None:
    finder.find("RECORDS_TWICE", "twice", "in the table more than once")
    words = f"in the table, and no committed record on {claims.holder}"
    finder.find("RECORDS_UNCOMMITTED", "phantoms", words)
    total = _total(finder.of("strangers"))
    if total and total <= table.others.came_unknown + claims.excused:
        finder.found.reasons.append(
            f"{counted(total, 'row')} outside the known ranges: which writer added them is not known"
        )
    else:
        finder.find("RECORDS_STRANGE", "strangers", "in the table, outside the committed ranges")


def _judge_nowhere(table: TableRecords, found: Judgement) -> None:
    """Rows without coordinates can only be other writers', and every active file must be readable."""
    for words in table.unreadable:
        file = words.split(": ")[0]
        found.find("RECORDS_UNREADABLE", f"coordinates cannot be read: {words}", path=file)
    lacking = table.present.without - table.others.came.without + table.others.gone.without
    if lacking <= 0:
        return
    words = f"{counted(lacking, 'row')} in the table without coordinates"
    if lacking <= table.others.came_unknown:
        found.reasons.append(f"{words}, which other writers may have added in files that are gone")
    else:
        found.find("RECORDS_NOWHERE", words, rows=lacking)


def _begins_later(missing: Mapping[Partition, Spans], table: TableRecords) -> bool:
    """Whether only the beginning is missing: a stream can start at a later version."""
    rows = [table.present.at(key) for key in missing]
    return any(rows) and all(
        not present or int(spans.ends.max()) <= int(present.starts.min())
        for present, spans in zip(rows, missing.values(), strict=True)
    )


def _first(table: TableRecords, key: Partition) -> int:
    present = table.present.at(key)
    return int(present.starts.min()) if present else 0


def _text(
    claims: Claims,
    mine: Mapping[Partition, Comparison],
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
    kept_out = {"erased by other writers": gone}
    for words, name in (("in quarantine", "quarantined"), ("discarded", "discarded"), ("dropped", "dropped")):
        kept_out[words] = sum(getattr(one, name) for one in (claims, *sharing))
    others += "".join(f" + {number:,} {words}" for words, number in kept_out.items() if number)
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
    in_table = f"{sign} {rows:,} in the table{others}"
    if claims.is_derived:
        return f"{held:,} in {claims.system} {in_table}"
    if claims.total("past") or claims.total("may"):
        more = ", none missing, none twice" if equal else ""
        compared = f"{held:,} compared with {claims.system}"
        return f"{compared}, {counted(rows, 'row')} in the table{others}{more}{unread}"
    if again := sum(one.again for one in mine.values()):
        return f"{held:,} read from {claims.system} + {again:,} read again, as declared {in_table}{unread}"
    if all(one.whole for one in mine.values()):
        return f"{held:,} read from {claims.system} {in_table}{unread}"
    empty = sum(one.empty for one in mine.values())
    return f"{held + empty:,} offsets {in_table} + {empty:,} without a record{unread}"
