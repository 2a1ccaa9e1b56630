"""Reads CSV files by the names in their headers: the files of each header with a schema in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from headrace.model.declarations import RESCUED
from headrace.model.names import quoted_column
from headrace.runtime.gateway import frame_of_plan
from headrace.runtime.lazy_pyspark import Column, DataFrame, DataFrameReader, F, SparkSession, StructType, T
from headrace.sources.files import headers

_METADATA = "_metadata"


def find_groups(
    session: SparkSession, options: Mapping[str, str], rules: headers.HeaderRules, paths: Iterable[str]
) -> list[headers.HeaderGroup]:
    syntax, split = headers.HeaderSyntax.of(options), headers.header_splitter(session, options)
    return group_by_header(paths, lambda path: headers.find_header(path, syntax), split, rules)


def group_by_header(
    paths: Iterable[str],
    find: Callable[[str], headers.HeaderText | None],
    split: Callable[[str], Sequence[str]],
    rules: headers.HeaderRules,
) -> list[headers.HeaderGroup]:
    """The files of each header, in the order of their first files. `split`: gives the values of a record."""
    layouts: dict[str, headers.Layout] = {}
    groups: dict[headers.Layout, list[str]] = {}
    lines: dict[headers.Layout, int] = {}
    for path in paths:
        found = find(path)
        if found is None:
            layout = headers.lay_out(rules.columns, rules)
        elif found.text in layouts:
            layout = layouts[found.text]
        else:
            header = split(found.text)
            if (name := headers.find_repeated(header, rules)) is not None:
                raise headers.repeated_name(path, found.line, name)
            layout = layouts[found.text] = headers.lay_out(header, rules)
        groups.setdefault(layout, []).append(path)
        lines.setdefault(layout, 1 if found is None else found.line)
    return [headers.HeaderGroup(layout, tuple(found), lines[layout]) for layout, found in groups.items()]


@dataclass(frozen=True)
class HeaderedFiles:
    """Reads CSV files by the names in their headers. `schema`: the columns of the read, in their order."""

    reader: DataFrameReader
    schema: StructType
    rules: headers.HeaderRules

    def load(
        self,
        groups: Sequence[headers.HeaderGroup],
        choose: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    ) -> DataFrame:
        """The rows of the files with the columns of the schema, and `RESCUED` where columns are rescued. The
        hidden column `_metadata` stays hidden. `choose`: gives the wanted rows of a read of files."""
        rescues = self.rules.drift.has("rescue")
        frames = [self._load(one, choose, rescues=rescues) for one in groups]
        return _hide_metadata(reduce(lambda one, two: one.union(two), frames))

    def _load(
        self, group: headers.HeaderGroup, choose: Callable[[DataFrame], DataFrame], *, rescues: bool
    ) -> DataFrame:
        layout = group.layout
        if layout.is_planned:
            frame = self.reader.schema(self.schema).load(list(group.paths))
            frame = choose(frame.select("*", frame.metadataColumn(_METADATA).alias(_METADATA)))
            columns = [F.col(quoted_column(name)) for name in self.schema.fieldNames()]
            rescued = F.lit(None).cast("string")
        else:
            written = header_schema(layout, self.schema, self.rules)
            frame = self.reader.schema(written).load(list(group.paths))
            # A header can have any names: its columns are numbered.
            names = [_number(index) for index in range(len(layout.header))]
            names += frame.columns[len(layout.header) :]
            frame = frame.select("*", frame.metadataColumn(_METADATA).alias(_METADATA))
            frame = choose(frame.toDF(*names, _METADATA))
            columns = list(self._columns(layout))
            rescued = _rescued(layout, self.rules)
        more = [rescued.alias(RESCUED)] if rescues else []
        return frame.select(*columns, *more, _METADATA)

    def _columns(self, layout: headers.Layout) -> Iterator[Column]:
        places = dict(zip(self.rules.columns, layout.positions, strict=True))
        for one in self.schema.fields:
            if one.name not in places:
                yield F.col(quoted_column(one.name))
            elif (place := places[one.name]) is None:
                yield F.lit(None).cast(one.dataType).alias(one.name)
            else:
                yield F.col(_number(place)).alias(one.name)


def _number(index: int) -> str:
    return f"__headrace_{index}"


def header_schema(layout: headers.Layout, schema: StructType, rules: headers.HeaderRules) -> StructType:
    """The columns of files in the order of their header. After them come the columns that Spark adds: from
    the names of folders, and the text of a malformed record."""
    kinds = {
        place: schema[name].dataType
        for name, place in zip(rules.columns, layout.positions, strict=True)
        if place is not None
    }
    fields = [
        T.StructField(name, kinds.get(index, T.StringType())) for index, name in enumerate(layout.header)
    ]
    return T.StructType([*fields, *(one for one in schema.fields if one.name not in rules.columns)])


def _rescued(layout: headers.Layout, rules: headers.HeaderRules) -> Column:
    """The values of the columns that have none in the schema, as JSON; NULL if there are none. They include
    new columns whose name Delta does not allow."""
    kept = {
        layout.names[index]: F.col(_number(index))
        for index in layout.unknown
        if rules.action(layout.names[index]) in ("rescue", "evolve")
    }
    if not kept:
        return F.lit(None).cast("string")
    values = F.to_json(F.struct(*(value.alias(name) for name, value in kept.items())))
    return F.when(F.coalesce(*kept.values()).isNotNull(), values)


def _hide_metadata(rows: DataFrame) -> DataFrame:
    """The rows with their last column, `_metadata`, hidden: a union of reads has no hidden columns of its
    own."""
    visible = rows.select(*map(quoted_column, rows.columns[:-1]))
    session = rows.sparkSession
    jvm: Any = session._jvm
    plan = visible._jdf.queryExecution().analyzed()
    hidden = plan.child().output().last()
    tag = jvm.org.apache.spark.sql.catalyst.plans.logical.Project.hiddenOutputTag()
    plan.setTagValue(tag, jvm.PythonUtils.toSeq([hidden]))
    return frame_of_plan(session, plan)
