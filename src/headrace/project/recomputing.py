"""`verify --recompute`: the rows of each view, compared with its query over the versions of the tables that
it was computed from. Both ways: no row is missing, none is extra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.contracts.expectations import accepted, with_declared_columns
from headrace.declare.loader import activate
from headrace.declare.registry import ActivePipeline
from headrace.increments.changes import rows_at
from headrace.increments.increment import NotIncrementalError
from headrace.increments.query import read_query
from headrace.increments.shape import find_keys, is_inexact
from headrace.model.declarations import MaterializedView
from headrace.model.names import quoted_column
from headrace.model.texts import counted
from headrace.plan.catalog import isolated_session
from headrace.plan.evaluate import evaluate, session_settings
from headrace.plan.modes import Bounded, TableAccess
from headrace.plan.names import find_dataset
from headrace.plan.stages import Plan, PlannedRefresh
from headrace.run.failures import Failures
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.storage.table_log import is_table
from headrace.syntax.sql import items
from headrace.verify.report import DatasetProof, GradeReport, Judgement, Proof, ViewProof

TOLERANCE = 1e-9
"""How far floats may differ, as a share of the greater: sums of floats depend on the order of the rows."""
_GONE = re.compile(
    "FILE_NOT_EXIST|FILE_NOT_FOUND|FileNotFound|DELTA_VERSION|DELTA_TIME_TRAVEL|DELTA_LOG_FILE|DELTA_TRUNCATED"
    "|DELTA_NO_RECREATABLE|DELTA_CANNOT_TIME"
)
"""Errors of Spark and Delta for a version whose files or commits are gone."""
_AMBIGUOUS = re.compile(
    r"Limit|Offset|Deduplicate|\b(first|last|any_value|collect_list|collect_set|row_number|ntile|lead|lag"
    r"|nth_value|min_by|max_by|mode|listagg|percentile_approx)\("
)
"""Parts of a plan whose result depends on the order of rows that compare equal."""
_SHARES = 1_000_000
_TIMES = "__headrace_times"
_NUMBER = "__headrace_number"


class _NotComparableError(Exception):
    """A view cannot be compared; the text says why. `applies`: whether another view of its kind could be."""

    def __init__(self, text: str, *, applies: bool = True) -> None:
        super().__init__(text)
        self.applies = applies


def recompute_views(
    spark: SparkSession, plan: Plan, proof: Proof, sample: float | None, log_file: Path | None = None
) -> Proof:
    """Compare the views of a proof with their queries. `sample`: a share of the rows (less than 1), or about
    how many."""
    return replace(
        proof, datasets=tuple(_with_query(spark, plan, one, sample, log_file) for one in proof.datasets)
    )


def _with_query(
    spark: SparkSession, plan: Plan, proof: DatasetProof, sample: float | None, log_file: Path | None
) -> DatasetProof:
    if proof.view is None:
        return proof
    try:
        return replace(proof, query=_compare(spark, plan, proof, proof.view, sample, log_file))
    except _NotComparableError as error:
        report = GradeReport(
            grade="records",
            verdict="unjudged",
            text="not compared with its query",
            reasons=(str(error),),
            applies=error.applies,
        )
        return replace(proof, query=report)


def _compare(
    spark: SparkSession,
    plan: Plan,
    proof: DatasetProof,
    view: ViewProof,
    sample: float | None,
    log_file: Path | None,
) -> GradeReport:
    declared = next((one for one in plan.datasets if one.name == proof.dataset), None)
    planned = next((one for one in plan.refreshes if one.flow.target == proof.dataset), None)
    if not isinstance(declared, MaterializedView) or planned is None:
        raise _NotComparableError("no file of the pipeline declares the view any more", applies=False)
    if planned.varies:
        raise _NotComparableError(
            f"its query {' and '.join(planned.varies)}: it gives other rows each time", applies=False
        )
    if planned.fingerprint != view.definition:
        raise _NotComparableError(f"its query has changed since: headrace run {proof.dataset.short}")
    read = ", ".join(f"{name} v{version}" for name, version in sorted(view.inputs.items()))
    with isolated_session(spark, plan.project.database) as (session, catalog):
        for table in plan.tables_read:
            if is_table(plan.project.storage.table(table)):
                catalog.add_stored(table, plan.project.storage.table(table))
            else:
                catalog.copy_from(spark, table)
        active = ActivePipeline(plan.project, lambda: session, quarantines=True)
        flow = planned.flow
        with (
            activate(active),
            session_settings(session, flow.spark_conf, name=flow.name, location=flow.location),
        ):
            held = rows_at(session, plan.project.storage.table(proof.dataset), proof.version)
            try:
                frame = with_declared_columns(_query_at(session, plan, planned, view), planned.schema)
                query = accepted(frame, declared.expectations)
                return _differences(query, held, f"{read} at version {proof.version}", sample)
            except _NotComparableError:
                raise
            except Exception as error:
                if _GONE.search(str(error)):
                    text = (
                        f"{read} can no longer be read: its files or commits are gone; compute the view from "
                    )
                    text += f"the newest versions: headrace run {proof.dataset.short}"
                    raise _NotComparableError(text) from error
                failures = Failures(settings=plan.project, log_file=log_file)
                raise failures.as_error(error, flow, expectations=declared.expectations) from error


def _query_at(session: SparkSession, plan: Plan, planned: PlannedRefresh, view: ViewProof) -> DataFrame:
    """The query over its tables at the versions that the view was computed from."""
    known = {str(one.name).casefold(): one for one in plan.datasets}

    def read(access: TableAccess) -> DataFrame:
        dataset = find_dataset(known, access.name, access.parts)
        name = access.name if dataset is None else dataset.name
        if access.options:
            raise _NotComparableError(f"it reads {name} with options")
        if str(name) not in view.inputs:
            raise _NotComparableError(f"its commit does not name the version of {name} that it has read")
        return rows_at(session, plan.project.storage.table(name), view.inputs[str(name)])

    return evaluate(session, planned.flow, plan, Bounded(sources=lambda _: None, tables=read))


def _differences(query: DataFrame, held: DataFrame, what: str, sample: float | None) -> GradeReport:
    names, plan_text = held.columns, str(query._jdf.queryExecution().analyzed().toString())
    if sorted(map(str.casefold, query.columns)) != sorted(map(str.casefold, names)):
        raise _NotComparableError(f"its query has the columns {', '.join(query.columns)} now")
    kinds = {one.name: one.dataType.simpleString() for one in held.schema.fields}
    skipped = [name for name in names if any(kind in kinds[name] for kind in ("map<", "variant"))]
    compared = [name for name in names if name not in skipped]
    query, held = (one.select(*map(quoted_column, compared)) for one in (query, held))
    if sample is not None:
        share = sample if sample < 1 else min(1.0, sample / max(held.count(), 1))
        if keys := _sampled_by(query, compared):
            # The same rows each time.
            chosen = F.pmod(F.xxhash64(*map(quoted_column, keys)), F.lit(_SHARES)) < int(share * _SHARES)
            query, held = query.where(chosen), held.where(chosen)
    floats = [name for name in compared if kinds[name] in ("float", "double")]
    rows = held.count()
    different = _unequal(query, held, compared).persist()
    try:
        sides = [different.where(F.col(_TIMES) > 0), different.where(F.col(_TIMES) < 0)]
        if floats:
            sides = _beyond_tolerance(sides, [name for name in compared if name not in floats], floats)
        missing, extra = (_counted(side, compared) for side in sides)
    finally:
        different.unpersist()
    found = Judgement()
    if (missing[0] or extra[0]) and (found_text := _AMBIGUOUS.search(plan_text)):
        text = f"it uses {found_text[0].strip('(')}, which can give other rows for the same rows"
        raise _NotComparableError(text, applies=False)
    if missing[0] or extra[0]:
        parts = [
            f"{counted(number, 'row')} {'is' if number == 1 else 'are'} {word}, such as {example}"
            for (number, example), word in ((missing, "missing"), (extra, "extra"))
            if number
        ]
        found.find(
            "VIEW_DIFFERS",
            f"compared with its query over {what}: {'; '.join(parts)}",
            missing=missing[0],
            extra=extra[0],
        )
    text = f"{counted(rows, 'row')} compared with its query over {what}"
    text += f", without {', '.join(skipped)}: Spark cannot compare them" if skipped else ""
    return found.report("records", text, {"rows": rows, "missing": missing[0], "extra": extra[0]})


def _sampled_by(query: DataFrame, names: Sequence[str]) -> list[str]:
    """The columns that choose a row: keys, so that Spark reads only their rows of the tables; else all."""
    exact = {
        str(one.name())
        for one in items(query._jdf.queryExecution().analyzed().output())
        if not is_inexact(one.dataType())
    }
    read = read_query(query.sparkSession, query)
    tables = [one for one in read.root.walk() if one.kind == "LogicalRelation"]
    try:
        return [str(one.attribute.name()) for one in find_keys(read, tables)]
    except NotIncrementalError:
        return [name for name in names if name in exact]


def _unequal(query: DataFrame, held: DataFrame, names: Sequence[str]) -> DataFrame:
    """EXCEPT ALL both ways: each row with how many times more often the query has it than the view."""
    both = query.withColumn(_TIMES, F.lit(1)).unionByName(held.withColumn(_TIMES, F.lit(-1)))
    summed = both.groupBy(*map(quoted_column, names)).agg(F.sum(_TIMES).alias(_TIMES))
    return summed.where(F.col(_TIMES) != 0)


def _beyond_tolerance(
    sides: Sequence[DataFrame], exact: Sequence[str], floats: Sequence[str]
) -> list[DataFrame]:
    """The rows of both sides that have no row of the other side with floats that are near enough."""
    from pyspark.sql import Window

    order = Window.partitionBy(*map(quoted_column, exact)).orderBy(*map(quoted_column, floats))
    numbered = []
    for side, name in zip(sides, "ab", strict=True):
        each = side.withColumn(_TIMES, F.explode(F.sequence(F.lit(1), F.abs(_TIMES).cast("int"))))
        columns = F.struct(*map(quoted_column, [*exact, *floats])).alias(name)
        numbered.append(each.select(columns, F.row_number().over(order).alias(f"{_NUMBER}{name}")))
    same = F.col(f"{_NUMBER}a") == F.col(f"{_NUMBER}b")
    for name in exact:
        same = same & F.col("a")[name].eqNullSafe(F.col("b")[name])
    near = F.lit(True)
    for name in floats:
        one, other = F.col("a")[name], F.col("b")[name]
        limit = TOLERANCE * F.greatest(F.abs(one), F.abs(other))
        near = near & (one.eqNullSafe(other) | F.coalesce(F.abs(one - other) <= limit, F.lit(False)))
    pairs = numbered[0].join(numbered[1], same, "full")
    both = F.col("a").isNotNull() & F.col("b").isNotNull() & near
    return [
        pairs.where(F.col(name).isNotNull() & ~both).select(f"{name}.*").withColumn(_TIMES, F.lit(1))
        for name in "ab"
    ]


def _counted(side: DataFrame, names: Sequence[str]) -> tuple[int, str]:
    """How many rows a side has, and one of them."""
    number = int(side.agg(F.sum(F.abs(_TIMES))).collect()[0][0] or 0)
    if not number:
        return 0, ""
    row = side.limit(1).select(*(F.col(quoted_column(name)).cast("string") for name in names)).collect()[0]
    return number, ", ".join(f"{name} = {value}" for name, value in zip(names, row, strict=True))
