"""Fields of records that have no column: reported once, and taken up where a schema evolves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headrace.contracts.evolution import Evolution, evolve, from_variant
from headrace.model.events import Emitter, SchemaDrifted
from headrace.plan.stages import PlannedFlow
from headrace.run.failpoints import reach
from headrace.run.stop import PlanAgain
from headrace.sinks.target import BatchStamp
from headrace.sources.new_fields import SCHEMA_NUMBER, NewFields
from headrace.state.schema_versions import SchemaVersion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.sources.bad_records import BadRecords


class UnknownFields(Protocol):
    """What a reader has counted: the fields of records that have no column, and where one of them is."""

    @property
    def unknown(self) -> frozenset[str]: ...

    @property
    def example(self) -> str | None: ...


@dataclass(kw_only=True)
class DriftCheck:
    """Checks the fields of the records of each batch before it is committed."""

    planned: PlannedFlow
    find: Callable[..., Sequence[BadRecords]]  # reads a batch a second time
    update: str
    emit: Emitter
    _reported: set[str] = field(default_factory=set, init=False)

    def check(self, session: SparkSession, stamp: BatchStamp, counts: Sequence[UnknownFields | None]) -> None:
        """Report the fields that have no column, and take them up if the schema evolves.

        Args:
            counts: What each reader has counted; ``None`` if Spark has not computed all of it.

        Raises:
            PlanAgain: The schema has new fields now; the batch must be read with them.
        """
        known = [one for one in counts if one is not None]
        names = frozenset().union(*(one.unknown for one in known))
        if self._evolves and (names or len(known) < len(counts)):
            self._take_up(session, stamp, names)
        if new := names - self._reported:
            self._reported |= new
            example: Mapping[str, Any] = next((json.loads(one.example) for one in known if one.example), {})
            self._report(stamp, tuple(sorted(new)), example, None)

    @property
    def _numbers(self) -> list[int]:
        """The numbers of the schemas that the query reads with."""
        found = (source.option(SCHEMA_NUMBER) for source in self.planned.sources)
        return sorted(int(number) for number in found if number is not None)

    @property
    def _evolves(self) -> bool:
        return bool(self._numbers)

    def _take_up(self, session: SparkSession, stamp: BatchStamp, names: frozenset[str]) -> None:
        reads = [one.new_fields for one in self.find(session, ranges=stamp.ranges) if one.new_fields]
        if sorted(one.evolving.number for one in reads) != self._numbers:
            # Another flow has found new fields of the same topic.
            raise PlanAgain
        changes = [self._evolve(one, stamp) for one in reads]
        if any(changes):
            raise PlanAgain

    def _evolve(self, read: NewFields, stamp: BatchStamp) -> bool:
        """Add a version with the new fields of a read; whether there are any."""
        evolving = read.evolving
        (row,) = read.frame.collect()
        if row.schema is None:
            return False
        own = {name.lower() for name in evolving.schema.fieldNames()}
        taken = [one["name"] for one in self.planned.schema["fields"] if one["name"].lower() not in own]
        found = evolve(evolving.schema.jsonValue(), from_variant(row.schema), evolving.drift, taken)
        if not found.changes:
            return False
        example = json.loads(row.example)
        if evolving.versions.add(_version(found, evolving.number + 1, stamp, example)):
            self._report(stamp, found.added, example, evolving.number + 1)
        reach("schema-added", stamp.flow, stamp.batch)
        return True

    def _report(
        self, stamp: BatchStamp, fields: tuple[str, ...], example: Mapping[str, Any], number: int | None
    ) -> None:
        flow = self.planned.flow
        self.emit(
            SchemaDrifted(
                update=self.update,
                flow=flow.name,
                dataset=flow.target,
                batch=stamp.batch,
                fields=fields,
                added=number is not None,
                number=number,
                example=example,
            )
        )


def _version(found: Evolution, number: int, stamp: BatchStamp, example: Mapping[str, Any]) -> SchemaVersion:
    return SchemaVersion(
        number=number,
        schema=found.schema,
        added=found.added,
        flow=stamp.flow,
        checkpoint=stamp.checkpoint,
        batch=stamp.batch,
        example=example,
    )
