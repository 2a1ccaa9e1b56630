"""Column lineage: the columns of its inputs from which a query computes each column, and how."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

Direct = Literal["identity", "transformation", "aggregation"]
Indirect = Literal["conditional", "window", "filter", "join", "group_by", "sort"]
Way = Direct | Indirect
"""How a column of an input contributes: its value is a part of the result (`Direct`), or it decides about the
value or the rows (`Indirect`). The names are those of OpenLineage."""

DIRECT: Final[tuple[Direct, ...]] = ("identity", "transformation", "aggregation")


class InputColumn(NamedTuple):
    """A column, or the dotted path of a field, of an input of a query."""

    input: int  # the position of the input among those of the query
    column: str
    way: Way
    masked: bool = False  # whether the value cannot be seen in the result, as with a hash or a count

    @property
    def is_direct(self) -> bool:
        return self.way in DIRECT


@dataclass(frozen=True, kw_only=True)
class Input:
    """What a query reads: a dataset of the storage, or a source of records with its label for graphs."""

    dataset: str | None = None  # with its schema
    label: str | None = None
    kind: str | None = None  # the kind of the source, such as ``kafka``
    names: tuple[str, ...] = ()  # its topics, or its path
    # Whether the fields of a record are within one column, until a query decodes it.
    wraps_records: bool = field(default=True, compare=False)

    @property
    def id(self) -> str:
        """The id of its node in graphs."""
        return self.dataset or f"source {self.label}"

    def to_json(self) -> dict[str, Any]:
        if self.dataset is not None:
            return {"dataset": self.dataset}
        return {"kind": self.kind, "label": self.label, "names": list(self.names)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(**{**value, "names": tuple(value.get("names", ()))})


@dataclass(frozen=True, kw_only=True)
class ColumnLineage:
    """The lineage of the columns of a query. `rows`: the columns that decide which rows there are."""

    inputs: tuple[Input, ...] = ()
    columns: Mapping[str, tuple[InputColumn, ...]] = field(default_factory=dict)
    rows: tuple[InputColumn, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": [one.to_json() for one in self.inputs],
            "columns": {name: [*map(_plain, found)] for name, found in self.columns.items()},
            "rows": [*map(_plain, self.rows)],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            inputs=tuple(map(Input.from_json, value["inputs"])),
            columns={name: tuple(_parsed(found)) for name, found in value["columns"].items()},
            rows=tuple(_parsed(value["rows"])),
        )


def _plain(one: InputColumn) -> list[Any]:
    return [one.input, one.column, one.way, *([True] if one.masked else ())]


def _parsed(values: Iterable[Iterable[Any]]) -> Iterator[InputColumn]:
    return (InputColumn(*one) for one in values)


class DatasetId(NamedTuple):
    """A dataset by OpenLineage's rules: a namespace for the system, and a name in it."""

    namespace: str
    name: str

    @property
    def uri(self) -> str:
        if self.namespace == "file":
            return f"file://{self.name}"
        return f"{self.namespace}/{self.name}"


def of_path(path: str, folder: Path = Path()) -> DatasetId:
    """The name of a folder, a file or an object. `folder`: where relative paths start."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        plain = rest if separator else re.sub(r"^file:", "", path)
        return DatasetId("file", os.path.normpath(folder / plain))
    bucket, _, key = rest.partition("/")
    return DatasetId(f"{'s3' if scheme == 's3a' else scheme}://{bucket}", key.strip("/") or "/")


def of_topic(servers: str, topic: str) -> DatasetId:
    return DatasetId(f"kafka://{servers.split(',')[0].strip()}", topic)
