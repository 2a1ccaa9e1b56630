"""The dataset that a name or a path in a query refers to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from headrace.errors import TableNotFoundError, nearest
from headrace.model.declarations import Dataset, Declarations, Flow, RefreshFlow, TemporaryView
from headrace.model.names import SPARK_CATALOG, NamesInUse, TableName
from headrace.model.project import ENTRY_MISSING, MappedTable, ProjectSettings
from headrace.plan.modes import TableAccess
from headrace.storage.layout import locate_supported
from headrace.syntax.locations import pinpoint

_PART = r"`((?:[^`]|``)+)`|([^\s`.]+)"
_LIVE = "live"
EVENT_LOG = "event_log"
_NOT_SCHEMAS = frozenset({"global_temp", "system"})
_PATH_SCHEMAS = frozenset({"parquet", "json", "csv", "orc", "text", "xml", "avro", "binaryfile"})


def split_name(text: str) -> tuple[str, ...] | None:
    """The parts of a name in Spark's API, without backquotes; ``None`` if the text is not a name."""
    parts: list[str] = []
    rest = text.strip()
    while True:
        found = re.match(_PART, rest)
        if found is None:
            return None
        parts.append(found[2] if found[1] is None else found[1].replace("``", "`"))
        rest = rest[found.end() :]
        if not rest:
            return tuple(parts)
        if not rest.startswith("."):
            return None
        rest = rest[1:]


def quoted(name: TableName) -> str:
    return quoted_parts((name.schema, name.name))


def quoted_parts(parts: tuple[str, ...]) -> str:
    """The parts of a name for Spark's parser, with backquotes."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def delta_path(path: str) -> str:
    """The path of a Delta table in the place of a name."""
    return quoted_parts(("delta", path))


def find_dataset(datasets: Mapping[str, Dataset], name: TableName, parts: tuple[str, ...]) -> Dataset | None:
    """The dataset that a name means; `datasets` has them by their names in lower case, `parts` is the name as
    it is written. A temporary view answers to its bare name only; with a schema it is a table elsewhere."""
    found = datasets.get(str(name).casefold())
    is_bare = len(parts) == 1 or (len(parts) == 2 and parts[0].lower() == _LIVE)
    if isinstance(found, TemporaryView) and not (found.has_schema or is_bare):
        return None
    return found


def label_of(flow: Flow) -> str:
    """The name of a flow as messages give it; a refresh flow has the name of its view."""
    return flow.target.short if isinstance(flow, RefreshFlow) else flow.name


@dataclass(frozen=True)
class NameRules:
    """How the names of a pipeline's queries map to datasets."""

    settings: ProjectSettings
    in_use: NamesInUse = field(default_factory=NamesInUse)

    @property
    def qualifies(self) -> bool:
        """Whether Spark gets the schema of names with one part: the session has another one."""
        return self.in_use.schema is not None

    @cached_property
    def _spark_catalogs(self) -> frozenset[str]:
        """Catalogs of the Spark configuration: names that start with them are not datasets."""
        configured = (re.match(r"spark\.sql\.catalog\.([^.]+)$", key) for key in self.settings.configuration)
        ours = {SPARK_CATALOG, self.settings.catalog}
        return frozenset(found[1] for found in configured if found and found[1] not in ours)

    def table(self, parts: tuple[str, ...]) -> TableName | None:
        """The dataset of a name; ``None`` for names that are Spark's (files, other catalogs)."""
        if self.in_use.catalog is not None and self._is_ours(parts):
            parts = self.in_use.qualified(parts)
        schema_in_use = self.in_use.schema or self.settings.database
        match parts:
            case (name,):
                return TableName(schema_in_use, name)
            case (schema, path) if schema.lower() == "delta":
                return self.path(self.settings.paths.map(path))
            case (schema, _) if schema.lower() in _NOT_SCHEMAS | _PATH_SCHEMAS:
                return None
            case (schema, name) if schema.lower() == _LIVE:
                return TableName(schema_in_use, name)
            case (schema, name):
                return TableName(schema, name)
            case (catalog, _, _) if catalog not in self._spark_catalogs and catalog.lower() != "system":
                return TableName.of_parts(parts, schema_in_use, self.settings.catalog)
            case _:
                return None

    def mapped(self, parts: tuple[str, ...]) -> MappedTable | None:
        """The entry of `tables` for a name, as it is written or with the catalog and the schema in use;
        ``None`` for names that have none."""
        if not self.settings.tables.targets:
            return None
        return next(filter(None, map(self.settings.tables.find, self._written(parts))), None)

    def _written(self, parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """The names under which an entry of `tables` can have a table."""
        yield parts
        if not self._is_ours(parts) or parts[0].casefold() == EVENT_LOG:
            return
        if self.qualifies:
            parts = self.in_use.qualified(parts)
        elif len(parts) == 1:
            parts = (self.settings.database, *parts)
        yield parts
        if self.settings.catalog is not None and len(parts) == 2:
            yield (self.settings.catalog, *parts)

    def _is_ours(self, parts: tuple[str, ...]) -> bool:
        """Whether a name with one or two parts is that of a table, and not of files."""
        if len(parts) == 1:
            return True
        return len(parts) == 2 and parts[0].lower() not in _NOT_SCHEMAS | _PATH_SCHEMAS | {_LIVE, "delta"}

    def path(self, path: str) -> TableName | None:
        folder = locate_supported(path, self.settings.data_folder)
        if folder is None:
            return None
        tables = self.settings.storage.tables
        parts = folder.below(tables) or folder.below(tables.resolve())
        return TableName(*parts) if len(parts) == 2 else None


def table_not_found(
    access: TableAccess, reader: TableName, declarations: Declarations, settings: ProjectSettings
) -> TableNotFoundError:
    known = {
        dataset.name: f"`{dataset.name.short}` ({dataset.location})" for dataset in declarations.datasets
    }
    for name in settings.storage.find_tables():
        known.setdefault(name, f"`{name.short}` (in the storage)")
    wanted = access.name.short
    texts = {name.short: text for name, text in known.items()} | {
        str(name): text for name, text in known.items()
    }
    near = nearest(wanted, texts)
    written = ".".join(access.parts)
    location = access.location
    if location.column is None:
        location = pinpoint(location, access.name.name, settings.root)
    remedies = [f"did you mean {texts[near]}?"] if near else []
    if len(access.parts) > 1:
        view = next((one for one in known if one == access.name), None)
        if view is not None:
            remedies = [f"a temporary view has a bare name: `{view.name}`"]
        remedies += entry_remedies(written, settings)
    return TableNotFoundError(
        f"`{reader.short}` reads `{written or wanted}`, which no file declares and the storage does not have",
        location=location,
        remedies=remedies or ["declare it, or correct the name"],
        params={
            "table": str(access.name),
            "name": written or wanted,
            "reader": str(reader),
            "suggestion": near,
        },
    )


def entry_remedies(name: str, settings: ProjectSettings) -> Iterator[str]:
    """The lines of the spec for a table of another system."""
    entry = f"{name}: ./{name.rpartition('.')[2]}"
    yield f"{ENTRY_MISSING}{settings.spec_to_edit}:   tables: {{{entry}}}"
    catalog, _, rest = name.partition(".")
    if "." in rest and settings.catalog is None:
        yield f"if `{catalog}` is the catalog of this pipeline, add:   catalog: {catalog}"
