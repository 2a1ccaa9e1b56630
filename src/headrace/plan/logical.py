"""Spark's logical plan of a query as data, copied from the JVM in few calls, and its hash."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.model.project import code_language
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.storage.location import Location
from headrace.syntax.sql import items

METADATA = "_metadata"
"""The hidden column with the file of a row."""

_STREAMING_LEAVES = frozenset({"StreamingRelation", "StreamingRelationV2", "StreamingExecutionRelation"})
_STATEFUL = frozenset(
    {"Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark", "FlatMapGroupsWithState"}
    | {"FlatMapGroupsInPandasWithState", "TransformWithState", "TransformWithStateInPandas"}
    | {"TransformWithStateInPySpark", "GlobalLimit"}
)
_OPAQUE = frozenset(
    {"LocalRelation", "LogicalRDD", "PythonUDF", "PythonUDAF", "PythonUDTF", "MapInPandas", "MapInArrow"}
)
_MAY_STOP_EARLY = frozenset(
    {"Join", "AsOfJoin", "LateralJoin", "LocalLimit", "GlobalLimit", "Offset", "Tail"}
    | {"MapInPandas", "MapInArrow", "PythonMapInArrow"}
)
_VARYING = {
    "CurrentDate": "current_date()",
    "CurrentTimestamp": "current_timestamp()",
    "CurrentTime": "current_time()",
    "LocalTimestamp": "localtimestamp()",
    "Now": "now()",
    "Rand": "rand()",
    "Randn": "randn()",
    "RandStr": "randstr()",
    "Sample": "sample()",
    "Shuffle": "shuffle()",
    "Uniform": "uniform()",
    "Uuid": "uuid()",
}
"""Functions with other values in each refresh. To Spark the clock is deterministic."""
_CASE_WHEN = "CASE WHEN"
_MOST_CASES = 6
"""With more CASE WHEN, Spark's JSON of a plan can be too large: each level of nesting doubles it."""

_FILES = re.compile(r"\bRelation \[")
"""A relation of files has no name, and Spark's text does not contain the paths."""


@dataclass(frozen=True)
class Node:
    """A node of a plan or of an expression, as Spark's ``TreeNode.toJSON`` gives it.

    In a plan with many CASE WHEN, `fields` has only the fields that this package uses, and a CASE WHEN has
    the columns that it reads in place of its children.
    """

    kind: str
    fields: Mapping[str, Any]
    children: tuple[Node, ...] = ()

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents first, children from left to right."""
        yield self
        for child in self.children:
            yield from child.walk()

    def expressions(self, name: str) -> tuple[Node, ...]:
        """The expressions in a field, which has one or several."""
        trees = self.fields.get(name)
        if not trees or not isinstance(trees, list | tuple):
            return ()
        if isinstance(trees[0], dict):
            return (build_node(trees),)
        return tuple(tree if isinstance(tree, Node) else build_node(tree) for tree in trees)

    @property
    def expression_id(self) -> int | None:
        found = self.fields.get("exprId")
        return int(found["id"]) if isinstance(found, dict) else None

    @property
    def is_streaming(self) -> bool:
        return any(node.kind in _STREAMING_LEAVES for node in self.walk() if not node.children)


@dataclass(frozen=True, kw_only=True)
class Leaf:
    # Its place among the streaming relations, in the order in which Spark writes their offsets: the plan's
    # leaves from left to right, a relation that occurs twice counted twice.
    index: int
    folder: int  # the number of its folder in a checkpoint, which a repeated relation shares
    # The number of the read that made it. A DataFrame that a join uses on both sides has two folders, and
    # one read.
    read: int
    provider: str  # Spark's name of the format, such as ``delta``
    options: Mapping[str, str] = field(default_factory=dict)
    reads_metadata: bool = False  # whether the query uses the hidden column `_metadata`


@dataclass(frozen=True, kw_only=True)
class LogicalPlan:
    root: Node
    leaves: tuple[Leaf, ...]  # the streaming relations, in Spark's order
    text: str
    schema: Mapping[str, Any]  # the columns, as ``StructType.jsonValue()`` gives them
    opaque: bool  # whether the text omits code, rows or file paths of the query
    java_plan: Any = field(repr=False)

    @property
    def streaming(self) -> bool:
        return bool(self.leaves)

    @property
    def stateful(self) -> bool:
        """Whether running the query as a stream keeps state."""
        return any(node.is_streaming and _keeps_state(node) for node in self.root.walk())

    @property
    def deterministic(self) -> bool:
        """Whether the query gives the same rows for the same input, as far as Spark knows."""
        return bool(self.java_plan.deterministic())

    @property
    def python_functions(self) -> tuple[str, ...]:
        """The names of the Python functions that the query calls and that Spark takes for deterministic."""
        calls = (one for one in _python_functions(self.root) if one["udfDeterministic"])
        return tuple(dict.fromkeys(str(one["name"]) for one in calls))

    @property
    def reads_all(self) -> bool:
        """Whether a batch reads every record of its range. A join with no rows on one side may not."""
        return not any(node.kind in _MAY_STOP_EARLY for node in self.root.walk())

    @property
    def varies(self) -> tuple[str, ...]:
        """Why the rows can differ although the tables that the query reads are the same."""
        kinds = set(_kinds(self.root))
        called = {text for kind, text in _VARYING.items() if kind in kinds}
        python = any(one["udfDeterministic"] is False for one in _python_functions(self.root))
        if "class" not in self.root.fields:
            # The nodes of a plan with many CASE WHEN do not have all expressions.
            called |= {
                text for text in _VARYING.values() if re.search(rf"\b{re.escape(text[:-1])}", self.text)
            }
            python = python or not (called or self.deterministic)
        reasons = [f"calls {', '.join(sorted(called))}"] if called else []
        if python:
            reasons.append("calls a Python function that is not deterministic")
        return (*reasons, *(["reads files"] if _FILES.search(self.text) else []))


def _keeps_state(node: Node) -> bool:
    if node.kind == "Join":
        return all(child.is_streaming for child in node.children)
    return node.kind in _STATEFUL


def _kinds(node: Node) -> Iterator[str]:
    for each in node.walk():
        yield each.kind
        yield from _kinds_within(list(each.fields.values()))


def _kinds_within(value: Any) -> Iterator[str]:
    if isinstance(value, Node):
        yield from _kinds(value)
    elif isinstance(value, dict):
        if "class" in value:
            yield _simple(value["class"])
        for inner in value.values():
            yield from _kinds_within(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _kinds_within(inner)


def _python_functions(value: Any) -> Iterator[Mapping[str, Any]]:
    """The calls of Python functions within a plan, as Spark gives them."""
    if isinstance(value, dict):
        if "udfDeterministic" in value:
            yield value
        value = list(value.values())
    elif isinstance(value, Node):
        value = [value.fields, *value.children]
    for one in value if isinstance(value, list) else ():
        yield from _python_functions(one)


def build_node(preorder: Sequence[Mapping[str, Any]]) -> Node:
    """A tree from its nodes, each before its children."""
    position = 0

    def build() -> Node:
        nonlocal position
        if position >= len(preorder):
            raise ValueError("a node of the plan lacks children")
        fields = preorder[position]
        position += 1
        children = tuple(build() for _ in range(int(fields["num-children"])))
        return Node(_simple(str(fields["class"])), fields, children)

    root = build()
    if position != len(preorder):
        raise ValueError("there are more nodes than one tree has")
    return root


def _simple(name: str) -> str:
    return name.rpartition(".")[2].rpartition("$")[2] or name.rpartition(".")[2]


def read_plan(session: SparkSession, frame: DataFrame) -> LogicalPlan:
    java_frame: Any = frame._jdf
    plan = java_frame.queryExecution().analyzed()
    jvm: Any = session._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    text = str(plan.toString())
    if text.count(_CASE_WHEN) > _MOST_CASES and plan.containsPattern(patterns.CASE_WHEN()):
        walk = _Walk(patterns.CASE_WHEN())
        root = walk.plan(plan)
        kinds = {
            kind for part in (root, *map(walk.plan, items(plan.subqueriesAll()))) for kind in _kinds(part)
        }
        if plan.containsPattern(patterns.PYTHON_UDF()):
            kinds.add("PythonUDF")
    else:
        root = build_node(json.loads(plan.toJSON()))
        kinds = set(_kinds(root))
    return LogicalPlan(
        root=root,
        leaves=_read_leaves(session, plan, root),
        text=text,
        schema=json.loads(java_frame.schema().json()),
        opaque=not _OPAQUE.isdisjoint(kinds) or _FILES.search(text) is not None,
        java_plan=plan,
    )


@dataclass(frozen=True)
class _Walk:
    """Copies a plan node by node, without what is within a CASE WHEN.

    Spark's JSON has each branch of a CASE WHEN twice, so its size doubles with each level of nesting:
    sixteen levels are 100 MB.
    """

    case_when: Any  # spark's tree pattern of that name

    def plan(self, plan: Any) -> Node:
        kind = _kind(plan)
        children = tuple(self.plan(child) for child in items(plan.children()))
        fields: dict[str, Any] = {}
        for name in _EXPRESSIONS.get(kind, () if children else ("output",)):
            found = getattr(plan, name)()
            fields[name] = [self._expression(one) for one in _listed(name, found)]
        for name in _PLAIN.get(kind, ()):
            found = getattr(plan, name)()
            fields[name] = found if isinstance(found, int) else str(found)
        if kind == "LogicalRelation" and (table := plan.catalogTable()).isDefined():
            name = table.get().identifier()
            fields["catalogTable"] = {
                "identifier": {"table": name.table(), "database": name.database().get()}
            }
        return Node(kind, fields, children)

    def _expression(self, expression: Any) -> Node:
        if not expression.containsPattern(self.case_when):
            return build_node(json.loads(expression.toJSON()))
        kind = _kind(expression)
        if kind == "CaseWhen":
            columns = items(expression.references().toSeq())
            return Node(kind, {}, (Node(_COLUMNS_READ, {}, tuple(map(self._expression, columns))),))
        fields: dict[str, Any] = {}
        if kind in ("Alias", "WithField"):
            fields["name"] = str(expression.name())
        if kind == "Alias":
            fields["exprId"] = {"id": expression.exprId().id()}
        return Node(kind, fields, tuple(self._expression(child) for child in items(expression.children())))


_COLUMNS_READ = "ColumnsRead"
_EXPRESSIONS: Mapping[str, tuple[str, ...]] = {
    "Project": ("projectList",),
    "Filter": ("condition",),
    "Join": ("condition",),
    "Aggregate": ("groupingExpressions", "aggregateExpressions"),
    "Window": ("windowExpressions",),
    "Sort": ("order",),
    "Deduplicate": ("keys",),
    "Generate": ("generator", "generatorOutput"),
}
"""The fields with expressions that the copy of a node keeps; of a leaf, its columns."""
_PLAIN: Mapping[str, tuple[str, ...]] = {
    "CollectMetrics": ("name",),
    "Join": ("joinType",),
    "CTERelationDef": ("id",),
    "CTERelationRef": ("cteId",),
}
"""Further fields that the copy of a node keeps."""


def _listed(name: str, found: Any) -> Iterator[Any]:
    """The expressions in a field of a plan: one, one that can be missing, or several."""
    kind = _kind(found)
    if name not in ("condition", "generator"):
        return items(found)
    return iter(() if kind == "None" else (found.get(),) if kind == "Some" else (found,))


def _kind(java: Any) -> str:
    return _simple(str(java.getClass().getName()))


def streaming_nodes(root: Node) -> list[Node]:
    """The streaming relations, in the order in which Spark writes their offsets."""
    return [node for node in root.walk() if not node.children and node.kind in _STREAMING_LEAVES]


def _read_leaves(session: SparkSession, plan: Any, root: Node) -> tuple[Leaf, ...]:
    nodes = [node for node in root.walk() if not node.children]
    kinds = [node.kind for node in nodes]
    streaming = [position for position, kind in enumerate(kinds) if kind in _STREAMING_LEAVES]
    if not streaming:
        return ()
    relations = plan.collectLeaves()
    found: list[Any] = []
    reads: list[int] = []
    leaves: list[Leaf] = []
    for index, position in enumerate(streaming):
        relation = relations.apply(position)
        folder = next((n for n, earlier in enumerate(found) if earlier.equals(relation)), len(found))
        if folder == len(found):
            found.append(relation)
        # With one relation there is nothing to compare.
        reader = _reader_id(session, kinds[position], relation) if len(streaming) > 1 else 0
        read = reads.index(reader) if reader in reads else len(reads)
        if read == len(reads):
            reads.append(reader)
        provider, options = _provider_and_options(session, kinds[position], relation)
        columns = (one.fields.get("name") for one in nodes[position].expressions("output"))
        leaves.append(
            Leaf(
                index=index,
                folder=folder,
                read=read,
                provider=provider,
                options=options,
                reads_metadata=METADATA in columns,
            )
        )
    return tuple(leaves)


def _reader_id(session: SparkSession, kind: str, relation: Any) -> int:
    """The identity of the JVM object that a read creates; Spark copies the relation and keeps this."""
    jvm: Any = session._jvm
    reader = relation.table() if kind == "StreamingRelationV2" else relation.dataSource()
    return int(jvm.System.identityHashCode(reader))


def _provider_and_options(session: SparkSession, kind: str, relation: Any) -> tuple[str, dict[str, str]]:
    jvm: Any = session._jvm
    if kind == "StreamingRelationV2":
        provider = str(relation.sourceName())
        options = relation.extraOptions().asCaseSensitiveMap()
    else:
        source = relation.dataSource()
        provider = str(source.className())
        options = jvm.scala.jdk.javaapi.CollectionConverters.asJava(source.options())
    # One call for the whole map, where each entry of it would be three.
    text = jvm.com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(options)
    return provider.lower(), {str(key): str(value) for key, value in json.loads(text).items()}


_PRINTED_LEAF = re.compile(r"(Streaming(?:Execution)?Relation(?:V2)?|FileSource(?=\[))(?: |\[).*")
"""A plan of one stream prints as its source."""
_OBJECT = re.compile(r"@[0-9a-f]{4,}\b")
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_SEED = re.compile(r"\b((?:rand|randn|shuffle|uuid|randstr|uniform)\([^()]*?)(?:Some\()?-?\d{6,}\)?(?=[,)])")
_OPTIONAL_SEED = re.compile(r"\bSome\(-?\d{6,}\)")
_SAMPLE_SEED = re.compile(r"\b(Sample [\d.E-]+, [\d.E-]+, (?:true|false), )-?\d+")
_LAMBDA = re.compile(r"\blambda \w+#")
"""PySpark numbers the variables of lambda functions per process."""
_SPLITS = re.compile(r"splits=\w+(?:\(\d+\))?")
_TABLE_EXPRESSION = re.compile(r"\b(CTERelationDef|CTERelationRef|UnionLoop|UnionLoopRef) (\d+)")
_VIEW = re.compile(r"\bheadrace_(read|call)_(\d+)\b")
"""The views that SQL texts read are numbered per process."""
_OBSERVED = re.compile(r"\b(CollectMetrics .*), \d+$", re.MULTILINE)
"""Spark numbers the DataFrames of a process."""
_EQUAL = {
    _OBSERVED: r"\1",
    _OBJECT: "",
    _UUID: "uuid",
    _SEED: r"\1seed",
    _OPTIONAL_SEED: "seed",
    _SAMPLE_SEED: r"\1seed",
    _LAMBDA: "lambda #",
    _SPLITS: "splits",
    _TABLE_EXPRESSION: r"\1 #t\2",
    _VIEW: r"headrace_\1_#v\2",
}
_ID = re.compile(r"#([tv]?\d+)(L?)")


def fingerprint(
    plan: LogicalPlan, sources: Iterable[str], code: Callable[[], str], expectations: Iterable[str] = ()
) -> str:
    """The hash of a plan.

    ``sources`` describe each streaming relation, equally in all profiles. ``code`` hashes the pipeline's
    code; it is called only if the plan has Python functions or rows, which its text does not show.
    """
    digest = hashlib.sha256(canonical(plan.text, sources).encode())
    if plan.opaque:
        digest.update(code().encode())
    for condition in expectations:
        digest.update(condition.encode())
    return digest.hexdigest()[:32]


def canonical(text: str, sources: Iterable[str] = ()) -> str:
    """A plan's text without the parts that differ between two analyses of the same query."""
    remaining = iter(sources)
    lines = [
        _PRINTED_LEAF.sub(lambda found: f"{found[1]} {next(remaining, '')}", line)
        if _PRINTED_LEAF.search(line)
        else line
        for line in text.splitlines()
    ]
    text = "\n".join(lines)
    for pattern, replacement in _EQUAL.items():
        text = pattern.sub(replacement, text)
    numbers: dict[str, int] = {}
    return _ID.sub(lambda found: f"#{numbers.setdefault(found[1], len(numbers))}{found[2]}", text)


def digest_code(folders: Sequence[Path], storage: Location) -> str:
    """A hash of the pipeline's Python and SQL files."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(code_files(folder, storage)):
            digest.update(str(path.relative_to(folder)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def code_files(folder: Path, storage: Location) -> Iterator[Path]:
    """The Python and SQL files of a folder, without hidden folders, virtual environments and the storage."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__" or str(path.absolute()) == storage.path:
            continue
        if code_language(path) is not None and path.is_file():
            yield path
        elif path.is_dir() and not (path / "pyvenv.cfg").exists():
            yield from code_files(path, storage)
