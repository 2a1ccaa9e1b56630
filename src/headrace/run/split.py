"""Splits the rows of a batch or refresh into accepted, quarantined and dropped ones, with their counts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice
from typing import Any, Final

from headrace import errors
from headrace.contracts.expectations import RowSplit, read_counts, with_checks
from headrace.contracts.rejected import REASONS, Rejection, as_rejected
from headrace.errors import SourceLocation
from headrace.model.counts import BadRecordCount, BatchCounts
from headrace.model.declarations import Expectation, ExpectationCount, Flow, RefreshFlow, RejectionLimit
from headrace.model.texts import counted
from headrace.plan.stages import Coordinates, PlannedFlow, RefreshViewStage
from headrace.run.bad_records import BadRecordSearch
from headrace.run.limits import count_records
from headrace.run.narrowing import RaisingRecord, union
from headrace.runtime.lazy_pyspark import DataFrame, Row, SparkSession
from headrace.sinks.delta.quarantine import QuarantineTable
from headrace.sinks.protocol import check_not_replaced
from headrace.sinks.target import BatchStamp, RefreshStamp, SplitRows, TargetReader
from headrace.sources.registry import describe_record
from headrace.syntax.locations import udf_declared

_SHOWN: Final = 5
_SEARCHED: Final = 1000
"""The number of newest versions among which the batches of a flow are searched."""


def check_rejected(
    flow: Flow,
    limit: RejectionLimit,
    counts: BatchCounts,
    *,
    expectations: Sequence[Expectation],
    examples: Iterable[str],
    outcome: str,
    past: Iterable[Mapping[str, Any]] = (),
    place: SourceLocation | None = None,
) -> None:
    """Check that no more records are rejected than a dataset allows. Nothing is committed yet.

    `examples`: a line for each of the first rejected records; they are computed as they are taken. `place`:
    where the spec sets the limit.
    """
    if not _rejected(own := counts.to_json()):
        return
    judged = [own, *past]
    count, records = sum(map(_rejected, judged)), sum(one["input"] for one in judged)
    if limit.allows(count, records):
        return
    name, what = f"flow {flow.name}", f"the last {len(judged)} batches" if len(judged) > 1 else "a batch"
    if isinstance(flow, RefreshFlow):
        name, what = flow.target.short, "a refresh"
    enough = f"{math.ceil(100 * count / records)}%" if str(limit).endswith("%") else str(count)
    where = f"at {place}" if place else "in headrace.yml or the declaration"
    failed = [one for one in counts.expectations if one.failed and one.action in ("quarantine", "drop")]
    declared = (one for one in expectations if any(one.name == other.name for other in failed))
    raise errors.MaxRejectedExceededError(
        f"{name}: {count:,} of {counted(records, 'record')} of {what} "
        f"{'is' if count == 1 else 'are'} rejected ({count / records:.1%}), and max_rejected is {limit}",
        location=next((one.location for one in declared), flow.location),
        facts=(
            *(f"`{one.name}`: {counted(one.failed, 'row')}" for one in failed),
            *(
                f"{one.name}: {counted(one.records, 'record')}"
                for one in counts.bad_records
                if one.action == "quarantine"
            ),
            *islice(examples, _SHOWN),
            outcome,
        ),
        remedies=(
            "correct the source, the schema or the expectations, and run again:   headrace run",
            f"or allow more rejected records, {where}: max_rejected: {enough}"
            + (
                "; the rows that fail are then dropped" if any(one.action == "drop" for one in failed) else ""
            ),
        ),
        params={"flow": flow.name, "rejected": count, "records": records, "max_rejected": str(limit)},
    )


def _rejected(counts: Mapping[str, Any]) -> int:
    """The rejected records of a batch; tombstones that a reader skips are none."""
    skipped = sum(one["records"] for one in counts.get("bad_records", ()) if one["action"] == "drop")
    return int(counts["quarantined"] + counts["dropped"] - skipped)


def _line(row: Row) -> str:
    source = row["source"]
    place = "" if source is None else describe_record(source.asDict())
    reasons = (one["message"] or f"`{one['name']}`" for one in row["reasons"])
    return (f"{place}: " if place else "") + ", ".join(reasons)


_SHOWN_ROWS = 5
_KEPT = "the view keeps its rows"
_SHOWN_CHARACTERS = 300


@dataclass(kw_only=True)
class BatchSplit:
    """Splits the batches of one query of a flow.

    The expectations of the flow's target decide about each row. The rejected rows go to the quarantine,
    together with the bad records that the readers of the query have left out.
    """

    planned: PlannedFlow
    quarantine: QuarantineTable
    update: str
    records: BadRecordSearch
    target: TargetReader
    session: SparkSession
    _is_first: bool = field(default=True, init=False)

    def begin(
        self,
        rows: DataFrame,
        stamp: BatchStamp,
        raising: Sequence[RaisingRecord] = (),
        *,
        is_built_again: bool = False,
    ) -> SplitRows:
        """Split a batch that the flow's target does not hold yet; the caller settles it before the commit.

        Rejected rows are computed a second time. If that could give other rows, Spark keeps the batch
        meanwhile. `is_built_again`: whether the rows come from another query than the streaming one. Spark
        keeps them, too: each job would compute them with a current timestamp of its own.
        """
        planned = self.planned
        is_built_again = is_built_again or bool(raising)
        reads_twice = any(one.action in ("quarantine", "fail") for one in planned.expectations)
        is_repeatable = planned.repeatable and not is_built_again
        kept = rows.persist() if reads_twice and not is_repeatable else None
        split = RowSplit(
            kept or rows,
            planned.expectations,
            str(planned.flow.target),
            is_counted=planned.max_rejected is not None,
        )
        is_first, self._is_first = self._is_first, False
        bad: list[BadRecordCount] = []
        found = SplitRows(
            accepted=split.accepted,
            counts=lambda accepted: split.counts(accepted).with_bad_records(bad),
            settle=lambda: bad.extend(self._settle(split, stamp, raising, is_first=is_first)),
            release=None if kept is None else kept.unpersist,
            is_kept=kept is not None,
            most=count_records(stamp.ranges),
        )
        # A query that was built again does not count the rows of its views.
        views = () if is_built_again else planned.checked_views
        return _with_counts(found, partial(self._view_counts, stamp.flow)) if views else found

    def _view_counts(self, flow: str) -> tuple[ExpectationCount, ...]:
        query: Any = next(one for one in self.session.streams.active if one.name == flow)
        execution = query._jsq.streamingQuery().lastExecution()
        return read_counts(execution.observedMetrics(), self.planned.checked_views)

    def _settle(
        self, split: RowSplit, stamp: BatchStamp, raising: Sequence[RaisingRecord], *, is_first: bool
    ) -> Sequence[BadRecordCount]:
        """Stop the flow, or commit the rejected rows and the bad records. `is_first`: whether it is the first
        batch of the query, which may have been tried before."""
        planned = self.planned
        if split.stopping_rows:
            what = f"batch {stamp.batch} was not written"
            raise _failed(split, planned.flow, what, planned.coordinates)
        rejection = self._rejection(stamp)
        with self.records.search(split.session, stamp, rejection, raising) as found:
            counted = split.quarantined_rows

            def rows() -> DataFrame:
                frames = [] if found.rows is None else [found.rows]
                if counted or not frames:
                    # No row at all replaces those of an earlier attempt, too.
                    frames.append(as_rejected(split.quarantined, rejection))
                return union(frames)

            if planned.max_rejected is not None:
                rejected, records = split.rejected_rows
                counts = split.counts(records - rejected).with_bad_records(found.counts)
                check_rejected(
                    planned.flow,
                    planned.max_rejected,
                    counts,
                    expectations=planned.expectations,
                    examples=self._examples(split, rows),
                    outcome=f"batch {stamp.batch} was not written",
                    past=self._past(planned.max_rejected.batches - 1),
                    place=planned.limit_place,
                )
            if counted or found.quarantined or (is_first and self.quarantine.holds(split.session, stamp)):
                written = self.quarantine.write(
                    split.session, rows(), stamp, partial(check_not_replaced, self.target, stamp)
                )
                if written != counted + found.quarantined:
                    raise self._not_repeatable(stamp, counted, written - found.quarantined)
            return found.counts

    def _examples(self, split: RowSplit, quarantined: Callable[[], DataFrame]) -> Iterator[str]:
        """A line for each of the first rejected records."""
        yield from map(_line, quarantined().select("source", "reasons").limit(_SHOWN).collect())
        if self.planned.repeatable:
            # Dropped rows are computed once more, and have to be the same rows.
            yield from (
                shown_row(row, self.planned.coordinates) for row in split.dropped.limit(_SHOWN).collect()
            )

    def _past(self, batches: int) -> Iterator[Mapping[str, Any]]:
        """The metadata of the flow's last batches in the target; reads nothing before the first is taken."""
        if batches:
            newest = self.target.newest_batches(self.target.span.stop - _SEARCHED)
            yield from islice((one for one in newest if one["flow"] == self.planned.flow.name), batches)

    def _rejection(self, stamp: BatchStamp) -> Rejection:
        planned = self.planned
        places = planned.coordinates
        return Rejection(
            pipeline=stamp.pipeline,
            flow=stamp.flow,
            update=self.update,
            query=planned.fingerprint,
            ranges=[one.to_json() for one in stamp.ranges],
            checkpoint=stamp.checkpoint,
            batch=stamp.batch,
            coordinates={} if places is None else places.to_json(),
        )

    def _not_repeatable(self, stamp: BatchStamp, first: int, second: int) -> errors.RowsNotRepeatableError:
        planned, called = self.planned, self.planned.python_functions
        checks = " or ".join(
            f"`{one.name}` ({one.text})" for one in planned.expectations if one.action == "quarantine"
        )
        found = [udf_declared(planned.flow.location, one) for one in called]
        names = ", ".join(f"{name}()" for name in called) or "a Python function"
        one = f"one of the functions {names}" if len(called) > 1 else names
        return errors.RowsNotRepeatableError(
            f"flow {stamp.flow}: batch {stamp.batch} was computed twice and gave other rows",
            location=found[0][0] if len(found) == 1 else planned.flow.location,
            facts=(
                f"{counted(first, 'row')} failed the expectation {checks} the first time, "
                f"{second:,} the second time",
                f"{one} gives another result each time, which Spark does not expect",
                "the batch was not committed; the next attempt replaces its rows in the quarantine",
            ),
            remedies=(
                *(text for _, text in found or [udf_declared(planned.flow.location, "FUNCTION")]),
                "and run again:   headrace run",
            ),
            params={"flow": stamp.flow, "batch": stamp.batch, "functions": list(called)},
        )


@dataclass(frozen=True, kw_only=True)
class RefreshSplit:
    """Splits the rows of each refresh of a materialized view by its expectations.

    Spark keeps the rows meanwhile: they are counted before the commit, whose metadata holds the counts.
    """

    stage: RefreshViewStage
    quarantine: QuarantineTable
    max_rejected: RejectionLimit | None
    limit_place: SourceLocation | None = None  # where the spec sets the limit; ``None`` if the view has it

    def begin(self, rows: DataFrame, stamp: RefreshStamp) -> SplitRows:
        split = self._split(rows, stamp)
        views = self.stage.planned.checked_views
        if not views:
            return split
        kept = split.keep()
        return _with_counts(split, lambda: read_counts(kept._jdf.queryExecution().observedMetrics(), views))

    def _split(self, rows: DataFrame, stamp: RefreshStamp) -> SplitRows:
        expectations = self.stage.view.expectations
        if not expectations:
            return SplitRows(accepted=rows, settle=lambda: self.quarantine.clear(rows.sparkSession))
        kept = with_checks(rows, expectations).persist()
        split = RowSplit(kept, expectations, str(self.stage.view.name))
        return SplitRows(
            accepted=split.accepted,
            counts=split.counts,
            settle=lambda: self._settle(split, stamp),
            release=kept.unpersist,
            is_kept=True,
        )

    def _settle(self, split: RowSplit, stamp: RefreshStamp) -> None:
        stage = self.stage
        if split.stopping_rows:
            raise _failed(split, stage.planned.flow, _KEPT, None)
        if self.max_rejected is not None:
            rejected, rows = split.rejected_rows
            counts = split.counts(rows - rejected)
            check_rejected(
                stage.planned.flow,
                self.max_rejected,
                counts,
                expectations=stage.view.expectations,
                examples=_examples(split),
                outcome=_KEPT,
                place=self.limit_place,
            )
        self.quarantine.forget_missing(split.session)
        if split.quarantined_rows or self.quarantine.exists(split.session):
            rejection = Rejection(
                pipeline=stamp.pipeline,
                flow=stamp.view,
                update=stamp.update,
                query=stage.planned.fingerprint,
                ranges={name: dict(version) for name, version in stamp.inputs.items()},
            )
            self.quarantine.replace(split.session, as_rejected(split.quarantined, rejection), stamp)


def _examples(split: RowSplit) -> Iterator[str]:
    """The first rejected rows of a refresh, each as a line."""
    for rows in (split.quarantined, split.dropped):
        yield from (shown_row(row, None) for row in rows.limit(_SHOWN).collect())


def _failed(
    split: RowSplit, flow: Flow, outcome: str, coordinates: Coordinates | None
) -> errors.ExpectationFailedError:
    first = split.stopping.limit(_SHOWN_ROWS).collect()
    failed = split.stopping_expectations
    names = ", ".join(f"`{one.name}`" for one in failed)
    count = split.stopping_rows
    rows = "1 row fails" if count == 1 else f"{count:,} rows fail"
    return errors.ExpectationFailedError(
        f"flow {flow.name}: {rows} the expectation{'s' if len(failed) > 1 else ''} {names}",
        location=failed[0].location,
        facts=(
            *(f"`{one.name}`: {one.text}" for one in failed),
            *(shown_row(row, coordinates) for row in first),
            *([f"and {count - len(first):,} more"] if count > len(first) else []),
            outcome,
        ),
        remedies=(
            "keep such rows out of the table: expect_or_drop, or expect_or_quarantine",
            "or correct the condition or the source, and run again:   headrace run",
        ),
        params={"flow": flow.name, "expectations": [one.name for one in failed], "rows": count},
    )


def shown_row(row: Row, coordinates: Coordinates | None) -> str:
    values = row.asDict(recursive=True)
    values.pop(REASONS, None)
    place = ""
    if coordinates is not None:
        parts = {name: _value(values, path) for name, path in coordinates.columns.items()}
        place = f"{coordinates.record.describe(parts)}: "
        values.pop("_source", None)
    text = json.dumps(values, default=str, ensure_ascii=False)
    return place + (text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..")


def _value(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _with_counts(split: SplitRows, read: Callable[[], tuple[ExpectationCount, ...]]) -> SplitRows:
    """Add the counts of temporary views to those of a split, after the rows were computed once."""
    # Spark counts a second computation, such as that of the rejected rows, too.
    once, settle, counts = cache(read), split.settle, split.counts

    def settle_after_counts() -> None:
        once()
        settle()

    def with_views(accepted: int) -> BatchCounts:
        found = counts(accepted)
        return replace(found, expectations=(*found.expectations, *once()))

    split.settle, split.counts = settle_after_counts, with_views
    return split
