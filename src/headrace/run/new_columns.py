"""Evaluates a query with new columns of its source, before the source's schema takes them up."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import NOT_COMMITTED, HeadraceError, QueryFailedError, RecordDriftedError
from headrace.model.declarations import EVERY_COLUMN, RESCUED, Drift
from headrace.model.queries import PythonQuery
from headrace.model.texts import counted
from headrace.plan import columns
from headrace.plan.stages import PlannedFlow
from headrace.run.context import BuildRanges
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.target import BatchStamp
from headrace.sources.bad_records import Evolving
from headrace.state.kept_schemas import SchemaVersion, tried
from headrace.storage.location import Location


@dataclass(frozen=True, kw_only=True)
class ColumnTrial:
    """Tries new versions of the schemas of a flow's sources.

    The query is evaluated again when its source has a new column: a function that makes the column only
    ``if name not in stream.columns`` then returns that of the source. A query that returns both columns has
    no plan any more, and neither may one that reads the flow's table. The flow stops then, and the version is
    not kept, so that the pipeline can be planned.
    """

    planned: PlannedFlow
    build_ranges: BuildRanges
    checkpoint: Location
    replan: Callable[[], object]

    def fit(
        self, session: SparkSession, evolving: Evolving, version: SchemaVersion, stamp: BatchStamp
    ) -> SchemaVersion:
        """The version with which the pipeline can be planned.

        If the query returns the source's column in place of its own, the new column has the type of the
        query's column.
        """
        fitted = self._with_types(session, evolving, version, stamp)
        try:
            with tried(evolving.versions.source, fitted):
                self.replan()
        except HeadraceError as error:
            # A pipeline that has no plan for another reason has none without the new columns, too.
            self.replan()
            where = "" if error.location is None else f" ({error.location})"
            facts = (f"with it, the pipeline cannot be planned: {error.summary}{where}", *error.facts)
            raise self._error(
                _new(evolving, version), evolving.drift, version, facts, error.remedies
            ) from error
        return fitted

    def _with_types(
        self, session: SparkSession, evolving: Evolving, version: SchemaVersion, stamp: BatchStamp
    ) -> SchemaVersion:
        """The version with which the flow's query can be evaluated."""
        changed = self._changed_types(session, evolving, version, stamp)
        if not changed:
            return version
        fields = [
            {**field, "type": changed.get(field["name"], field["type"])}
            for field in columns.fields(version.schema)
        ]
        fitted = replace(version, schema={**version.schema, "fields": fields})
        if other := self._changed_types(session, evolving, fitted, stamp):
            kinds = [f"{name} is {columns.type_text(kind)} in the query" for name, kind in other.items()]
            facts = (*kinds, "the source's column would have another type")
            raise self._error(list(other), evolving.drift, version, facts)
        return fitted

    def _changed_types(
        self, session: SparkSession, evolving: Evolving, version: SchemaVersion, stamp: BatchStamp
    ) -> Mapping[str, Any]:
        """The types, in the plan, of the query's columns that get another type with the new columns."""
        new = _new(evolving, version)
        try:
            with tried(evolving.versions.source, version):
                built = self.build_ranges(session, self.planned, stamp.ranges, self.checkpoint)
        except QueryFailedError as error:
            # A function that fails for another reason, such as a file that is away, fails without them, too.
            self.build_ranges(session, self.planned, stamp.ranges, self.checkpoint)
            facts = ("Spark cannot resolve the query with the new column", error.summary, *error.facts)
            raise self._error(new, evolving.drift, version, facts) from error
        except HeadraceError:
            # A source that cannot be read again. The next plan shows what is wrong.
            return {}
        names = [name.lower() for name in built.columns]
        if twice := [name for name in new if names.count(name.lower()) > 1]:
            raise self._error(twice, evolving.drift, version, ("the query would return both columns",))
        found = columns.conflicts(built.schema.jsonValue(), self.planned.schema)
        made = {field["name"].lower(): field["type"] for field in columns.fields(self.planned.schema)}
        return {name: made[name.lower()] for name in new if name.lower() in {one[0].lower() for one in found}}

    def _error(
        self,
        names: Sequence[str],
        drift: Drift,
        version: SchemaVersion,
        facts: Sequence[str],
        of_others: Sequence[str] | None = None,
    ) -> HeadraceError:
        """The error for new columns. `of_others`: the remedies, if the query of another dataset is wrong."""
        flow, number, listed = self.planned.flow, counted(len(names), "new column"), ", ".join(names)
        example = ", ".join(f"{name} {value}" for name, value in version.example.items())
        own: Sequence[str] = (
            f"give the query's own {'columns' if len(names) > 1 else 'column'} another name, "
            "and start again:   headrace run",
        )
        if isinstance(flow.query, PythonQuery):
            own = (
                *own,
                f'or drop the source\'s column before the query makes its own:   .drop("{names[0]}")',
                f'or let the query\'s column replace it:   .withColumn("{names[0]}", ..)',
            )
        who = "query" if of_others is None else "pipeline"
        return RecordDriftedError(
            f"flow {flow.name}: the source has {number} that the {who} cannot take: {listed}",
            location=flow.location,
            facts=(*([f"first seen in {example}"] if example else []), *facts, NOT_COMMITTED),
            remedies=(*(own if of_others is None else of_others), *_rescue(names, drift)),
            params={"flow": flow.name, "columns": list(names), **dict(version.example)},
        )


def _new(evolving: Evolving, version: SchemaVersion) -> list[str]:
    known = set(evolving.schema.fieldNames())
    return [field["name"] for field in columns.fields(version.schema) if field["name"] not in known]


def _rescue(names: Sequence[str], drift: Drift) -> tuple[str, ...]:
    """The remedy that keeps the new columns out of the query. Auto Loader, which has no such argument,
    rescues values of each column that it knows."""
    if drift.columns and set(drift.columns.values()) == {"rescue"}:
        return ()
    default = {} if drift.default is None else {EVERY_COLUMN: drift.default}
    actions = {**default, **drift.columns, **dict.fromkeys(names, "rescue")}
    return (
        f"or keep the source's values in the column `{RESCUED}`, with this argument of its reader:   "
        f"drift={json.dumps(actions, ensure_ascii=False)}",
    )
