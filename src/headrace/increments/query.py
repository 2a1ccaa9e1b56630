"""The query of a view as Spark's plan: its operators, its tables, and the same query over other rows.

Spark's own objects are walked and rebuilt, so nothing here parses SQL or an expression's text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from headrace.increments.increment import NotIncrementalError
from headrace.runtime.gateway import frame_of_plan
from headrace.runtime.lazy_pyspark import Column, DataFrame, SparkSession
from headrace.syntax.sql import items

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_NUMBERED = re.compile(r"\bheadrace_(?:read|call)_\d+\b")
"""The views that SQL texts read are numbered per process."""
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"


@dataclass(eq=False)
class Operator:
    """A node of a plan, with the Java object that it is read from."""

    java: Any
    kind: str
    children: tuple[Operator, ...]

    def walk(self) -> Iterator[Operator]:
        yield self
        for child in self.children:
            yield from child.walk()

    @cached_property
    def output(self) -> tuple[Any, ...]:
        return tuple(items(self.java.output()))

    @cached_property
    def ids(self) -> frozenset[int]:
        return frozenset(map(id_of, self.output))

    def path_to(self, other: Operator) -> tuple[Operator, ...] | None:
        """The operators from this one to another, both included."""
        if self is other:
            return (self,)
        for child in self.children:
            if (found := child.path_to(other)) is not None:
                return (self, *found)
        return None


@dataclass(eq=False)
class ViewQuery:
    """The analyzed query of a view. `tables`: the folder of each leaf that is a Delta table."""

    session: SparkSession
    root: Operator
    tables: Mapping[Operator, str]

    @cached_property
    def digest(self) -> str:
        """A hash of what it computes. The function of a query in Python can put other values into it at each
        refresh of one run, such as a date or a count."""
        lines = []
        for one in self.root.walk():
            parts = [str(each.sql()) for each in items(one.java.expressions())]
            if one.kind == "LocalRelation":
                parts.append(str(one.java.data().toString()))
            elif one.kind == "Range":
                parts.append(str(one.java.simpleString(100)))
            lines.append(" ".join((one.kind, *parts)))
        return hashlib.sha256(_NUMBERED.sub("", "\n".join(lines)).encode()).hexdigest()[:32]

    def over(self, rows: Mapping[Operator, Any], root: Operator | None = None) -> Any:
        """The plan with other rows at some operators: Java plans with the same attributes."""
        return _rebuilt(self.session, root or self.root, rows)

    def frame(self, plan: Any) -> DataFrame:
        return frame_of_plan(self.session, plan)

    def as_leaf(self, leaf: Operator, rows: DataFrame) -> Any:
        return as_attributes(self.session, leaf.output, rows)


def read_query(session: SparkSession, frame: DataFrame) -> ViewQuery:
    """Read the query of a view, without names of tables, views and common table expressions."""
    return read_plan(session, frame._jdf.queryExecution().analyzed(), partial(delta_folder, session))


def read_plan(session: SparkSession, plan: Any, folder_of: Callable[[Any], str | None]) -> ViewQuery:
    """Read an analyzed query. `folder_of`: returns the folder of a relation that is, or stands for, a Delta
    table."""
    jvm: Any = session._jvm
    optimizer, analysis = (
        jvm.org.apache.spark.sql.catalyst.optimizer,
        jvm.org.apache.spark.sql.catalyst.analysis,
    )
    for owner, name in (
        (analysis, "EliminateSubqueryAliases"),
        (analysis, "EliminateView"),
        (optimizer, "PullupCorrelatedPredicates"),
        (optimizer, "RewritePredicateSubquery"),
    ):
        plan = getattr(getattr(owner, f"{name}$"), "MODULE$").apply(plan)
    root = _read(optimizer.InlineCTE(True, False).apply(plan))
    found = {one: folder_of(one.java) for one in root.walk() if one.kind == "LogicalRelation"}
    tables = {one: folder for one, folder in found.items() if folder is not None}
    return ViewQuery(session, root, tables)


def _read(java: Any) -> Operator:
    return Operator(java, kind_of(java), tuple(map(_read, items(java.children()))))


def file_index(session: SparkSession, relation: Any) -> Any | None:
    """What lists the files of a relation; ``None`` if it has none."""
    from py4j.java_gateway import is_instance_of

    gateway, files = session.sparkContext._gateway, relation.relation()
    is_files = is_instance_of(gateway, files, "org.apache.spark.sql.execution.datasources.HadoopFsRelation")
    return files.location() if is_files else None


def delta_folder(session: SparkSession, relation: Any) -> str | None:
    """The folder of a relation that is the newest version of a Delta table."""
    from py4j.java_gateway import is_instance_of

    gateway, index = session.sparkContext._gateway, file_index(session, relation)
    name = "org.apache.spark.sql.delta.files.TahoeLogFileIndex"
    if index is None or not is_instance_of(gateway, index, name):
        return None
    if index.isTimeTravelQuery() or index.partitionFilters().nonEmpty():
        # Other versions of the table would be other rows.
        return None
    return str(index.deltaLog().dataPath().toString())


def _rebuilt(session: SparkSession, node: Operator, rows: Mapping[Operator, Any]) -> Any:
    if node in rows:
        return rows[node]
    children = [_rebuilt(session, child, rows) for child in node.children]
    if all(new is old.java for new, old in zip(children, node.children, strict=True)):
        return node.java
    return with_children(session, node.java, children)


def with_children(session: SparkSession, java: Any, children: Sequence[Any]) -> Any:
    jvm: Any = session._jvm
    return java.withNewChildren(jvm.PythonUtils.toSeq(list(children)))


def as_attributes(session: SparkSession, attributes: Sequence[Any], rows: DataFrame) -> Any:
    """A plan of rows whose columns are the attributes, by name. `NotIncrementalError`: one is missing."""
    jvm: Any = session._jvm
    plan = rows._jdf.queryExecution().analyzed()
    own = {str(one.name()): one for one in items(plan.output())}
    none, empty = jvm.scala.Option.empty(), jvm.PythonUtils.toSeq([])
    alias = getattr(jvm, f"{_EXPRESSIONS}.Alias")
    names = [(str(one.name()), one.exprId()) for one in attributes]
    if missing := [name for name, _ in names if name not in own]:
        text = f"the column {missing[0]} of a table is newer than the version that the refresh reads"
        raise NotIncrementalError("DATA_SCHEMA_CHANGED", text)
    aliases = [alias(own[name], name, id, empty, none, empty) for name, id in names]
    return getattr(jvm, f"{_LOGICAL}.Project")(jvm.PythonUtils.toSeq(aliases), plan)


def scanned_bytes(frame: DataFrame) -> int:
    """The size of the files that a query reads, after Delta has left out those that cannot match."""
    plan = frame._jdf.queryExecution().optimizedPlan()
    leaves = (one for one in items(plan.collectLeaves()) if kind_of(one) == "LogicalRelation")
    return sum(int(one.relation().sizeInBytes()) for one in leaves)


def column(session: SparkSession, expression: Any) -> Column:
    from pyspark.sql.classic.column import Column

    jvm: Any = session._jvm
    return Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def tolerant_column(session: SparkSession, expression: Any) -> Column:
    """An expression as a column that is NULL where the expression fails, as on rows that the query leaves
    out before."""
    if kind_of(expression) in ("AttributeReference", "Literal"):
        return column(session, expression)
    jvm: Any = session._jvm
    return column(session, getattr(jvm, f"{_EXPRESSIONS}.TryEval")(expression))


def kind_of(java: Any) -> str:
    name = str(java.getClass().getName())
    return name.rpartition(".")[2].rpartition("$")[2] or name.rpartition(".")[2].rstrip("$")


def id_of(attribute: Any) -> int:
    return int(attribute.exprId().id())


def references(expression: Any) -> frozenset[int]:
    found = expression.references().toSeq()
    return frozenset(map(id_of, items(found)))


def substituted(session: SparkSession, expression: Any, values: Mapping[int, Any]) -> Any:
    """An expression with other expressions in place of some attributes."""
    if kind_of(expression) == "AttributeReference":
        return values.get(id_of(expression), expression)
    before = list(items(expression.children()))
    after = [substituted(session, one, values) for one in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return expression
    return with_children(session, expression, after)


def conjuncts(condition: Any) -> Iterator[Any]:
    if kind_of(condition) == "And":
        yield from conjuncts(condition.left())
        yield from conjuncts(condition.right())
    else:
        yield condition
