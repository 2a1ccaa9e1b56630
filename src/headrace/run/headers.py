"""CSV files of a batch whose header differs from the schema: they are read by the names of the columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.contracts.expectations import with_checks
from headrace.errors import FileUnreadableError
from headrace.model.ranges import SourceRange
from headrace.plan.stages import PlannedFlow
from headrace.run.bad_records import DriftCheck
from headrace.run.context import BuildRanges
from headrace.run.stop import PlanAgain
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.target import BatchStamp
from headrace.sources.bad_records import Evolving
from headrace.sources.files.headers import (
    HeaderGroup,
    HeaderRules,
    foreign_header,
    new_columns,
    stateful_header,
)
from headrace.sources.files.read import infer_types
from headrace.sources.source import Source
from headrace.storage.location import Location


@dataclass(frozen=True, kw_only=True)
class HeaderCheck:
    """Compares the headers of a batch's files with the schemas of their reads.

    Spark reads CSV files by position, and its streaming query has one schema for all files. If a header
    differs, the flow's query is evaluated as a batch over the same files instead.
    """

    planned: PlannedFlow
    build_ranges: BuildRanges
    checkpoint: Location
    drift: DriftCheck
    schemas: Location  # the folder of the schemas that take up new columns

    def by_name(self, rows: DataFrame, stamp: BatchStamp) -> tuple[DataFrame, bool]:
        """The rows of a batch, and whether they come from a query that was built again."""
        session = rows.sparkSession
        differs = [self._check(session, one, stamp) for one in stamp.ranges]
        if not any(differs):
            return rows, False
        built = self.build_ranges(session, self.planned, stamp.ranges, self.checkpoint)
        return with_checks(built, self.planned.expectations), True

    def _check(self, session: SparkSession, one: SourceRange, stamp: BatchStamp) -> bool:
        """Whether some files of a range have other columns than the schema, or another order."""
        source = next(source for source in self.planned.sources if source.index == one.index)
        try:
            found = source.headers(session, one, self.checkpoint)
        except FileUnreadableError as error:
            summary, params = f"flow {stamp.flow}: {error.summary}", {**error.params, "flow": stamp.flow}
            away = f"or move the file away, and drop the planned batch:   headrace reset {stamp.flow}"
            raise error.with_(
                summary=summary, location=source.location, remedies=(*error.remedies, away), params=params
            ) from error
        if found is None:
            return False
        rules, groups = found
        others = [group for group in groups if not group.layout.is_planned]
        for group in others:
            if rules.loses_all(group.layout):
                raise foreign_header(stamp.flow, group, rules, source.location)
        if others and self.planned.stateful:
            raise stateful_header(stamp.flow, others[0], rules, source.location)
        self._take_up(session, source, rules, others, stamp)
        return bool(others)

    def _take_up(
        self,
        session: SparkSession,
        source: Source,
        rules: HeaderRules,
        groups: Sequence[HeaderGroup],
        stamp: BatchStamp,
    ) -> None:
        """Add columns that the schema does not have, stop at them, or report them."""
        new: list[HeaderGroup] = []
        ignored: dict[str, HeaderGroup] = {}
        for group in groups:
            actions = {
                name: rules.action(name) for name in (group.layout.names[one] for one in group.layout.unknown)
            }
            if failing := [name for name, action in actions.items() if action == "fail"]:
                raise new_columns(stamp.flow, group, failing, source.location)
            if "evolve" in actions.values():
                new.append(group)
            ignored |= {name: group for name, action in actions.items() if action != "rescue"}
        if new and rules.evolving is not None:
            evolving = Evolving.from_json(rules.evolving, self.schemas, rules.drift)
            kinds = self._kinds(session, source, rules, new)
            fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
            found = {"type": "struct", "fields": fields}
            if self.drift.add_fields(session, evolving, stamp, found, _example(new[0])):
                raise PlanAgain
            if (lost := next((one for one in new if _is_lost(one, rules)), None)) is not None:
                raise foreign_header(stamp.flow, lost, rules, source.location)
        if ignored:
            self.drift.report_ignored(stamp, ignored, _example(next(iter(ignored.values()))))

    def _kinds(
        self, session: SparkSession, source: Source, rules: HeaderRules, groups: Sequence[HeaderGroup]
    ) -> dict[str, Any]:
        """The types of the columns that the schema does not have, by name."""
        names: dict[str, str] = {}
        for group in groups:
            for index in group.layout.unknown:
                name = group.layout.names[index]
                names.setdefault(rules.fold(name), name)
        kinds: dict[str, Any] = dict.fromkeys(names.values(), "string")
        if rules.infers_types:
            inferred = infer_types(session, source.options, groups, rules)
            kinds |= {name: inferred[name].jsonValue() for name in kinds if name in inferred}
        return kinds


def _is_lost(group: HeaderGroup, rules: HeaderRules) -> bool:
    """Whether no column of files can be a column of the table, and none is rescued."""
    return group.layout.is_foreign and not rules.drift.has("rescue")


def _example(group: HeaderGroup) -> Mapping[str, Any]:
    return {"path": group.paths[0]}
