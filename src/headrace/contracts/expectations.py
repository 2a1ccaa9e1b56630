"""Expectations: conditions as columns, the split of a batch's rows, temporary views, and dataset checks.

A condition is true where a row passes, false where it fails, and never NULL. Every row of a batch goes
exactly one way: to the target, to the quarantine, or it is dropped. The counts come from the job that writes
the accepted rows; the rejected rows are computed a second time, and only if there are any.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, assert_never

from headrace.contracts.rejected import REASONS
from headrace.model.counts import BatchCounts
from headrace.model.declarations import Action, DatasetCheck, Expectation, ExpectationCount, TemporaryView
from headrace.runtime.gateway import frame_of_plan, quiet
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, Observation, SparkSession, T

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.errors import PySparkException


OWN_COLUMNS = "__headrace_"
"""The prefix of columns that are added to rows to check them. A query must not return such a column."""

_FAILED = f"{OWN_COLUMNS}failed_"
_BITS = 62  # the number of expectations that share a column of bits: a column for each would make rows larger
_HALF = 32
_PAIR = 1 << _HALF | 1


_ORIGIN = re.compile(r",?Origin\((?:[^()]|\([^()]*\))*\)")
_ATTRIBUTE = re.compile(r"columnnodeexpression\(UnresolvedAttribute\(List\(([^()]*)\),None,false\)\)")
_VARIABLE = re.compile(r"\b[xyz]_\d+(?=(?:, [xyz]_\d+)*\)? ->)")
_METRIC = "headrace.expectations."
FAILED = "[HEADRACE_EXPECTATION] "
"""The prefix of the error text of a failed row; the expectation's name as JSON and the row follow."""
_INPUT, _QUARANTINED, _DROPPED, _STOPPING = "input", "quarantined", "dropped", "stopping"


def text_of_column(text: str) -> str:
    """A Column's text that is the same in every process: Spark's text has numbers and addresses of objects.

    Example:
        >>> text_of_column("exists(a, x_5 -> >(x_5, 1))")
        'exists(a, x_0 -> >(x_0, 1))'
    """
    text = _ATTRIBUTE.sub(r"\1", _ORIGIN.sub("", text))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(_VARIABLE.findall(text)))}
    return re.sub(
        r"\b[xyz]_\d+\b",
        lambda found: f"{found[0][:2]}{numbers[found[0]]}" if found[0] in numbers else found[0],
        text,
    )


def condition(expectation: Expectation) -> Column:
    """The condition as it is written; it may be NULL."""
    given = expectation.condition
    return F.expr(given) if isinstance(given, str) else given


def passes(expectation: Expectation) -> Column:
    """Whether a row passes. A row either passes or fails, also where the condition is NULL."""
    return F.coalesce(condition(expectation), F.lit(expectation.nulls != "fail"))


def with_checks(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows, with columns that have a bit for each expectation that a row fails.

    In a streaming query these are columns of the query itself, so that ``current_timestamp()`` in a
    condition is the batch's time, and a replay of the batch passes and fails the same rows.
    """
    if not expectations:
        return rows
    bits = [
        F.when(passes(one), _bits(0)).otherwise(_bits(_bit(index))) for index, one in enumerate(expectations)
    ]
    columns = [
        reduce(lambda one, two: one.bitwiseOR(two), bits[number * _BITS : (number + 1) * _BITS]).alias(name)
        for number, name in enumerate(check_columns(len(bits)))
    ]
    return with_conditions(rows, columns)


def check_columns(count: int) -> list[str]:
    """The columns that `with_checks` adds for a number of expectations."""
    return [f"{_FAILED}{number}" for number in range(-(-count // _BITS))]


def is_passed(*indexes: int) -> Column:
    """Whether a row with the columns of `with_checks` passes expectations, by their indexes."""
    masks: dict[int, int] = {}
    for index in indexes:
        masks[index // _BITS] = masks.get(index // _BITS, 0) | _bit(index)
    passed = [F.col(f"{_FAILED}{n}").bitwiseAND(_bits(mask)) == 0 for n, mask in masks.items()]
    return reduce(and_, passed) if passed else F.lit(True)


def count_failed(count: int) -> list[Column]:
    """Aggregates that count the rows that fail each of a number of expectations; `failed_counts` reads them.

    Spark updates each aggregate for each row, so one has the counts of two expectations: one in the lower
    32 bits of a sum, one in the upper. A batch has fewer than 2^31 rows.
    """
    found = []
    for first in range(0, count, 2):
        bits = F.shiftright(f"{_FAILED}{first // _BITS}", first % _BITS // 2).bitwiseAND(_bits(_PAIR))
        found.append(F.sum(bits).alias(f"{_FAILED}{first}"))
    return found


def failed_counts(seen: Mapping[str, int | None], count: int) -> list[int]:
    """The number of rows that fail each expectation, from the values of `count_failed`."""
    sums = [seen[f"{_FAILED}{index - index % 2}"] or 0 for index in range(count)]
    return [one >> _HALF if index % 2 else one & (1 << _HALF) - 1 for index, one in enumerate(sums)]


def count_failed_rows(rows: pa.Table, count: int) -> list[int]:
    """The number of rows that fail each expectation, from the columns of `with_checks`."""
    values = {name: rows[name].to_numpy() for name in check_columns(count)}
    return [int(((values[f"{_FAILED}{n // _BITS}"] & _bit(n)) != 0).sum()) for n in range(count)]


def _bit(index: int) -> int:
    """The bit of an expectation in its column: two that follow each other are 32 bits apart."""
    first, second = divmod(index % _BITS, 2)
    return 1 << first + _HALF * second


def _bits(value: int) -> Column:
    return F.lit(value).cast("bigint")


def accepted(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    rejecting = [passes(one) for one in expectations if one.rejects]
    return rows.where(reduce(and_, rejecting)) if rejecting else rows


def count_of(one: Expectation, dataset: str, rows: int, failed: int) -> ExpectationCount:
    return ExpectationCount(
        name=one.name, dataset=dataset, action=one.action, passed=rows - failed, failed=failed
    )


@dataclass(frozen=True)
class CheckOutcome:
    passed: bool
    fact: str


def run_check(check: DatasetCheck, rows: DataFrame, like: DataFrame | None) -> CheckOutcome:
    match check.kind:
        case "unique":
            return _unique(check, rows)
        case "row_count":
            own, other = rows.count(), 0 if like is None else like.count()
            return CheckOutcome(own == other, f"it has {own:,} rows, {check.like} has {other:,}")
        case "fresh":
            return _fresh(check, rows)
        case _:
            assert_never(check.kind)


def _unique(check: DatasetCheck, rows: DataFrame) -> CheckOutcome:
    keys = [F.col(name) for name in check.columns]
    complete = rows.where(reduce(and_, (key.isNotNull() for key in keys)))
    several = complete.groupBy(*keys).agg(F.count(F.lit(1)).alias("rows")).where("rows > 1")
    example = F.min(F.to_json(F.struct(*keys)))
    found = several.agg(
        F.count(F.lit(1)).alias("keys"), F.sum("rows").alias("rows"), example.alias("one")
    ).first()
    assert found is not None
    if not found["keys"]:
        return CheckOutcome(True, "no two rows have equal keys")
    keys_are = "1 key is" if found["keys"] == 1 else f"{found['keys']:,} keys are"
    return CheckOutcome(False, f"{keys_are} in several rows ({found['rows']:,} rows), such as {found['one']}")


def _fresh(check: DatasetCheck, rows: DataFrame) -> CheckOutcome:
    newest = F.max(check.columns[0])
    age = F.unix_micros(F.current_timestamp()) - F.unix_micros(newest.cast("timestamp"))
    found = rows.agg(newest.cast("string").alias("newest"), (age / 1_000_000).alias("age")).first()
    assert found is not None
    if found["newest"] is None:
        return CheckOutcome(False, f"{check.columns[0]} has no value")
    return CheckOutcome(found["age"] <= check.within_s, f"the newest {check.columns[0]} is {found['newest']}")


def counted(rows: DataFrame, view: TemporaryView) -> DataFrame:
    """The rows of a temporary view, which are counted by its expectations when a query computes them."""
    if not view.expectations:
        return rows
    number = len(view.expectations)
    failed = [F.count_if(~is_passed(index)).alias(f"failed_{index}") for index in range(number)]
    counted = with_checks(rows, view.expectations).observe(
        f"{_METRIC}{view.name}", F.count(F.lit(1)).alias("rows"), *failed
    )
    return counted.drop(*check_columns(number))


def read_counts(metrics: Any, views: Sequence[TemporaryView]) -> tuple[ExpectationCount, ...]:
    """The counts of temporary views in a computation, from Spark's ``QueryExecution.observedMetrics``."""
    found: list[ExpectationCount] = []
    for view in views:
        row = metrics.get(f"{_METRIC}{view.name}")
        if row.isEmpty():
            continue
        rows, *failed = (int(row.get().getLong(n)) for n in range(len(view.expectations) + 1))
        found += [
            count_of(one, str(view.name), rows, number)
            for one, number in zip(view.expectations, failed, strict=True)
        ]
    return tuple(found)


def guarded(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows that a view's expectations do not drop; a failed ``expect_or_fail`` raises an error."""
    # One condition: Spark may change the order of several, and a dropped row would not stop the flow.
    kept = reduce(and_, (passes(one) for one in expectations if one.action == "drop"), F.lit(True))
    for one in expectations:
        if one.action == "fail":
            row = F.coalesce(F.to_json(F.struct("*")), F.lit("{}"))
            error = F.raise_error(F.concat(F.lit(f"{FAILED}{json.dumps(one.name)}: "), row)).cast("boolean")
            kept = F.when(passes(one), kept).otherwise(error)
    return rows.where(kept) if any(one.rejects for one in expectations) else rows


def with_declared_columns(rows: DataFrame, schema: Mapping[str, Any]) -> DataFrame:
    """The rows with a column of NULLs for each column of a schema that they lack."""
    given = {name.casefold() for name in rows.columns}
    absent = [one for one in T.StructType.fromJson(dict(schema)) if one.name.casefold() not in given]
    return rows.select("*", *(F.lit(None).cast(one.dataType).alias(one.name) for one in absent))


@dataclass(eq=False)
class RowSplit:
    """The rows of one batch, split; the counts are known after `accepted` has been computed."""

    _rows: DataFrame
    _expectations: Sequence[Expectation]
    _dataset: str
    is_counted: bool = False  # whether the rows are counted even without expectations
    _observation: Observation | None = None

    @property
    def session(self) -> SparkSession:
        return self._rows.sparkSession

    @cached_property
    def accepted(self) -> DataFrame:
        """The rows for the target. They are counted when they are computed; compute all of them, once."""
        if not self._expectations and not self.is_counted:
            return self._rows
        from pyspark.sql import Observation

        self._observation = Observation()
        observed = self._rows.observe(self._observation, *self._aggregates())
        return self._without_checks(observed.where(self._passes("drop", "quarantine", "fail")))

    @property
    def quarantined(self) -> DataFrame:
        """The rows for the quarantine, with the column ``reasons``: the expectations that they fail."""
        return self._failing("quarantine")

    @property
    def dropped(self) -> DataFrame:
        return self._failing("drop")

    @property
    def stopping(self) -> DataFrame:
        """The rows that stop the flow, with the column ``reasons``."""
        return self._failing("fail")

    @property
    def stopping_rows(self) -> int:
        return int(self._seen[_STOPPING])

    @property
    def quarantined_rows(self) -> int:
        return int(self._seen[_QUARANTINED])

    @property
    def rejected_rows(self) -> tuple[int, int]:
        """How many rows are quarantined or dropped, and how many there are."""
        seen = self._seen
        return int(seen[_QUARANTINED] + seen[_DROPPED]), int(seen[_INPUT])

    @property
    def stopping_expectations(self) -> tuple[Expectation, ...]:
        if self._observation is None:
            return ()
        counts = failed_counts(self._seen, len(self._expectations))
        return tuple(
            one
            for one, failed in zip(self._expectations, counts, strict=True)
            if one.action == "fail" and failed
        )

    def counts(self, accepted: int) -> BatchCounts:
        if self._observation is None:
            return BatchCounts(input=accepted, accepted=accepted)
        seen = self._seen
        return BatchCounts(
            input=seen[_INPUT],
            accepted=accepted,
            quarantined=seen[_QUARANTINED],
            dropped=seen[_DROPPED],
            expectations=tuple(
                count_of(one, self._dataset, seen[_INPUT], failed)
                for one, failed in zip(
                    self._expectations, failed_counts(seen, len(self._expectations)), strict=True
                )
            ),
        )

    @property
    def _seen(self) -> Mapping[str, int]:
        """The counts by name; 0 for a name that was not counted."""
        observation = self._observation
        # Spark counts nothing if it knows before the job that there are no rows.
        is_counted = observation is not None and observation._jo.getRow().length() > 0
        return defaultdict(int, observation.get if observation is not None and is_counted else {})

    def _aggregates(self) -> list[Column]:
        stopping = ~self._passes("fail")
        quarantined = ~self._passes("quarantine")
        dropped = ~self._passes("drop")
        counts = {
            "fail": F.count_if(stopping).alias(_STOPPING),
            "quarantine": F.count_if(~stopping & quarantined).alias(_QUARANTINED),
            "drop": F.count_if(~stopping & ~quarantined & dropped).alias(_DROPPED),
        }
        # Each aggregate costs time for each row.
        actions = {one.action for one in self._expectations}
        return [
            F.count(F.lit(1)).alias(_INPUT),
            *(count for action, count in counts.items() if action in actions),
            *count_failed(len(self._expectations)),
        ]

    def _passes(self, *actions: Action) -> Column:
        return is_passed(*(n for n, one in enumerate(self._expectations) if one.action in actions))

    def _failing(self, action: Action) -> DataFrame:
        reasons: list[Any] = [
            F.when(~is_passed(n), F.lit(one.name)) for n, one in enumerate(self._expectations)
        ]
        first: tuple[Action, ...] = ("fail", "quarantine", "drop")
        before = first[: first.index(action)]
        failing = self._rows.where(self._passes(*before) & ~self._passes(action))
        listed = F.filter(F.array(*reasons), lambda name: name.isNotNull()).cast("array<string>")
        return self._without_checks(failing.withColumn(REASONS, listed))

    def _without_checks(self, rows: DataFrame) -> DataFrame:
        return rows.drop(*check_columns(len(self._expectations)))


def with_conditions(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The rows with columns, each of which has an alias.

    Like the condition of a filter, a column can use what the query's result does not have: a column that the
    query has left out, and one that a join hides, such as ``customers.id`` after ``join(.., "id")``.
    """
    from pyspark.errors import AnalysisException

    try:
        with quiet():
            return rows.select("*", *columns)
    except AnalysisException as error:
        if not is_unresolved(error):
            raise
        # Spark resolves few names in this way, and only in filters and sorts.
        return _reaching(rows, columns)


def is_unresolved(error: PySparkException) -> bool:
    return (error.getCondition() or "").startswith("UNRESOLVED_COLUMN")


def _reaching(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    session = rows.sparkSession
    jvm: Any = session._jvm
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    filtered: Any = rows.where(F.struct(*columns).isNotNull())._jdf.queryExecution().analyzed()
    while str(filtered.nodeName()) == "Project":
        # Spark has removed the columns that it has added for the condition.
        filtered = filtered.child()
    struct = filtered.condition().child()
    named = getattr(getattr(expressions, "NamedExpression$"), "MODULE$")
    none = jvm.PythonUtils.toSeq([])
    output: Any = rows._jdf.queryExecution().analyzed().output()
    for index in range(struct.valExprs().size()):
        name = str(struct.names().apply(index))
        alias = expressions.Alias(
            struct.valExprs().apply(index), name, named.newExprId(), none, jvm.scala.Option.empty(), none
        )
        output = output.appended(alias)
    project = jvm.org.apache.spark.sql.catalyst.plans.logical.Project
    return frame_of_plan(session, project(output, filtered.child()))
