"""What all pages share: the storage that they show, and the index of its events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.exceptions import HTTPException

from headrace.dashboard.index import EventIndex
from headrace.dashboard.offsets import TopicOffsets
from headrace.dashboard.watcher import Watcher
from headrace.lineage.graph import Lineage, build_lineage
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.storage.location import Location
from headrace.storage.table_log import newest_version

if TYPE_CHECKING:
    from starlette.requests import Request

    from headrace.observe.snapshot import Snapshot
    from headrace.observe.status import DatasetStatus
    from headrace.project.stored_pipeline import StoredPipeline

T = TypeVar("T")


@dataclass(frozen=True)
class Site:
    settings: ProjectSettings
    watcher: Watcher
    # The rate of a topic is the difference between two looks at it.
    offsets: TopicOffsets = field(default_factory=TopicOffsets)
    _kept: dict[tuple[Any, ...], tuple[list[int], Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: ProjectSettings, only: str | None = None) -> Site:
        index = EventIndex(settings.storage.events)
        return cls(settings, Watcher(settings, index, only))

    @property
    def index(self) -> EventIndex:
        return self.watcher.index

    def read(self, tables: Sequence[Location], what: tuple[Any, ...], build: Callable[[], T]) -> T:
        """What `build` finds in tables. Pages ask at each change of the storage; the tables are only read
        again when one of them has a new version. `what`: tells the questions about the same tables apart."""
        key, versions = (*(one.path for one in tables), *what), [*map(newest_version, tables)]
        known = self._kept.get(key)
        if known is None or known[0] != versions:
            known = self._kept[key] = versions, build()
        found: T = known[1]
        return found

    def pipeline(self, request: Request) -> PipelineView:
        """The pipeline that a request names."""
        name = request.path_params["pipeline"]
        if name not in self.watcher.pipelines:
            raise HTTPException(404, "The storage has no pipeline of this name.")
        return PipelineView(self, name)


@dataclass(frozen=True)
class PipelineView:
    """One pipeline of the site."""

    site: Site
    name: str

    @property
    def index(self) -> EventIndex:
        return self.site.index

    @property
    def settings(self) -> ProjectSettings:
        return self.site.settings

    @property
    def is_own(self) -> bool:
        """Whether the settings are those of this pipeline, so that its files are here."""
        return self.name == self.settings.name

    @property
    def status(self) -> Snapshot | None:
        """The newest status; ``None`` while the first one is read."""
        return self.site.watcher.statuses.get(self.name)

    @property
    def stored(self) -> StoredPipeline:
        return self.site.watcher.stored(self.name)

    @cached_property
    def definitions(self) -> list[dict[str, Any]]:
        """The definitions of datasets and flows, of the newest update that has recorded them."""
        rows = self.query("SELECT * FROM definitions WHERE pipeline = ? ORDER BY seq", self.name)
        newest = rows[-1]["upd"] if rows else None
        return [{**row, "details": json.loads(row["details"])} for row in rows if row["upd"] == newest]

    @cached_property
    def lineage(self) -> Lineage:
        """The lineage of the columns, as the newest update has recorded it."""
        return build_lineage(
            self.definitions, pipeline=self.name, schema=self.settings.database, recorded="run", at=""
        )

    def datasets(self) -> Mapping[str, DatasetStatus]:
        return {} if self.status is None else {str(one.dataset): one for one in self.status.datasets}

    def short(self, dataset: str) -> str:
        """The name of a dataset as users write it."""
        return TableName.parse(dataset, "").within(self.settings.database)

    def query(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        return self.index.query(sql, *values)


def required(request: Request, name: str) -> str:
    """A value of the query that a page needs."""
    value = request.query_params.get(name)
    if not value:
        raise HTTPException(404, "The address lacks a name.")
    return value
