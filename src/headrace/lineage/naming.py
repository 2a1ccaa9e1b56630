"""The names of datasets by OpenLineage's rules: a namespace for the system, and a name in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from headrace.model.declarations import Sink
from headrace.model.lineage import Input
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.plan.inputs import input_of
from headrace.plan.stages import PlannedFlow, PlannedRefresh
from headrace.sources.source import Source

_SERVERS = "kafka.bootstrap.servers"


class DatasetId(NamedTuple):
    namespace: str
    name: str

    @property
    def uri(self) -> str:
        if self.namespace == "file":
            return f"file://{self.name}"
        return f"{self.namespace}/{self.name}"


def of_path(path: str) -> DatasetId:
    """The name of a folder, a file or an object."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        plain = rest if separator else re.sub(r"^file:", "", path)
        return DatasetId("file", os.path.normpath(plain))
    bucket, _, key = rest.partition("/")
    return DatasetId(f"{'s3' if scheme == 's3a' else scheme}://{bucket}", key.strip("/") or "/")


def of_topic(servers: str, topic: str) -> DatasetId:
    return DatasetId(f"kafka://{servers.split(',')[0].strip()}", topic)


def of_table(settings: ProjectSettings, name: str) -> DatasetId:
    """The name of a table of the storage: its folder."""
    return of_path(str(settings.storage.table(TableName.parse(name, settings.database))))


def of_sink(
    sink: Sink, name: TableName, settings: ProjectSettings, connection: Mapping[str, str]
) -> DatasetId:
    """The name of what a sink writes to; a login in an address is left out."""
    options = sink.options
    if sink.format == "kafka":
        servers = options.get(_SERVERS) or connection.get(_SERVERS) or settings.kafka.bootstrap_servers
        return of_topic(servers, options.get("topic", name.name))
    if (path := options.get("path")) is not None:
        return of_path(path if "://" in path else str(settings.data_folder / path))
    url = urlsplit(options.get("url", "").removeprefix("jdbc:"))
    if url.hostname is None:
        return DatasetId(sink.format, f"{settings.name}.{name}")
    port = f":{url.port}" if url.port else ""
    if sink.format == "postgres":
        table = options.get("table", name.name)
        parts = [url.path.strip("/") or "postgres", *([] if "." in table else ["public"]), table]
        return DatasetId(f"postgres://{url.hostname}{port or ':5432'}", ".".join(parts))
    within = options.get("index") or options.get("prefix") or url.path.strip("/") or str(name)
    return DatasetId(f"{url.scheme}://{url.hostname}{port}", within)


def name_inputs(
    planned: PlannedFlow | PlannedRefresh, settings: ProjectSettings, topics: Iterable[DatasetId]
) -> Mapping[str, tuple[DatasetId, ...]]:
    """The datasets behind each input of a flow, by the id of the input: a source can have several topics.
    `topics`: those that the flow has read, in place of a pattern."""
    sources = {
        input_of(one, settings.root).id: one
        for one in (planned.sources if isinstance(planned, PlannedFlow) else ())
    }
    inputs = {} if planned.lineage is None else {one.id: one for one in planned.lineage.inputs}
    inputs |= {id: input_of(one, settings.root) for id, one in sources.items()}
    inputs |= {str(one.table): Input(dataset=str(one.table)) for one in planned.reads}
    found = {id: tuple(_of_input(one, sources.get(id), settings)) for id, one in inputs.items()}
    patterns = {id: tuple(topics) for id, one in sources.items() if getattr(one, "pattern", None) is not None}
    return found | {id: read for id, read in patterns.items() if read}


def _of_input(one: Input, source: Source | None, settings: ProjectSettings) -> Iterator[DatasetId]:
    if one.dataset is not None:
        yield of_table(settings, one.dataset)
    elif one.kind == "kafka":
        own = getattr(source, "servers", None)
        for topic in one.names:
            yield of_topic(own or settings.kafka.bootstrap_servers, topic)
    elif one.kind in ("files", "delta"):
        for path in one.names:
            yield of_path(path if "://" in path else str(settings.data_folder / path))
    elif one.kind == "kinesis":
        where = (
            getattr(source, "endpoint", None) or getattr(source, "region", None) or settings.kinesis.region
        )
        for stream in one.names:
            yield DatasetId(f"kinesis://{urlsplit(where or '').hostname or where or 'aws'}", stream)
    else:
        yield DatasetId(settings.name, one.label or "unknown")
