"""A flow's query as a batch over records of its sources that were read before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.errors import SourceUnsupportedError
from headrace.model.project import ProjectSettings
from headrace.model.ranges import SourceRange
from headrace.plan.evaluate import evaluate
from headrace.plan.modes import Bounded
from headrace.plan.stages import Plan, PlannedFlow
from headrace.sources.registry import build_source
from headrace.sources.requests import SourceRead
from headrace.sources.source import Source
from headrace.sources.systems import StreamRead
from headrace.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def evaluate_ranges(
    session: SparkSession,
    planned: PlannedFlow,
    plan: Plan,
    ranges: Sequence[SourceRange],
    checkpoint: Location,
    *,
    leaves_others: bool = False,
    treat: Callable[[DataFrame], DataFrame] | None = None,
) -> DataFrame:
    """A flow's query as a batch over ranges of its sources.

    Tables that the query joins are read at their current version.

    Args:
        session: The session to build it in.
        planned: The flow.
        plan: The plan that it belongs to.
        ranges: The ranges; a source without a range gives no rows.
        checkpoint: The checkpoint that has read them.
        leaves_others: Whether sources that cannot read a range again remain streams.
        treat: Changes the records of each source before the query gets them.

    Raises:
        SourceUnsupportedError: A source cannot read a range again.
    """
    for source in planned.sources:
        if not source.rereads and not leaves_others:
            raise _not_again(source)
    known = {one.index: one for one in ranges}

    def read(read: SourceRead) -> DataFrame | None:
        if not read.request.streaming:
            return None
        source = _source_of(read, planned.sources, plan.project)
        if not source.rereads:
            return None
        records = source.read_range(read, known.get(source.index), checkpoint)
        return records if treat is None else treat(records)

    return evaluate(session, planned.flow, plan, Bounded(sources=read))


def can_evaluate_records(planned: PlannedFlow) -> bool:
    """Whether a flow's query can be evaluated over records that were kept."""
    return bool(planned.sources) and all(source.reads_records for source in planned.sources)


def evaluate_records(
    session: SparkSession, planned: PlannedFlow, plan: Plan, records: DataFrame
) -> DataFrame:
    """A flow's query as a batch over records that were kept; see `can_evaluate_records`.

    Tables that the query joins are read at their current version.

    Args:
        session: The session to build it in.
        planned: The flow.
        plan: The plan that it belongs to.
        records: The records, with the fields of the quarantine's ``source``.
    """

    def read(read: SourceRead) -> DataFrame | None:
        if not read.request.streaming:
            return None
        source = _source_of(read, planned.sources, plan.project)
        return source.read_records(read, records.where(source.owns()))

    return evaluate(session, planned.flow, plan, Bounded(sources=read))


def _source_of(read: SourceRead, sources: Sequence[Source], settings: ProjectSettings) -> Source:
    """The source that a read of the query opens."""
    request = read.request
    options = {**request.options, "path": read.paths[0]} if read.paths else request.options
    built = build_source(
        StreamRead(
            format=request.format,
            index=-1,
            folder=-1,
            read=-1,
            location=read.location,
            options=options,
            adaptive=False,
            table=None,
            settings=settings,
        )
    )
    found = next((source for source in sources if source.shares(built, {}) is not None), None)
    if found is None:
        raise _not_again(built)
    return found


def _not_again(source: Source) -> SourceUnsupportedError:
    return SourceUnsupportedError(
        f"a range of the source `{source.describe()}` cannot be read again",
        location=source.location,
        facts=["ranges of Kafka topics and of folders of files can be read again"],
        remedies=["write the records to a Kafka topic or to files, and read those"],
        params={"source": source.describe()},
    )
