"""The names of datasets by OpenLineage's rules: a namespace for the system, and a name in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from headrace.model.declarations import Sink
from headrace.model.lineage import DatasetId, Input, of_path, of_topic
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.plan.inputs import input_of
from headrace.plan.stages import PlannedFlow, PlannedRefresh

_SERVERS = "kafka.bootstrap.servers"


def of_table(settings: ProjectSettings, name: str) -> DatasetId:
    """The name of a table of the storage: its folder."""
    return of_path(str(settings.storage.table(TableName.parse(name, settings.database))))


def of_sink(
    sink: Sink, name: TableName, settings: ProjectSettings, connection: Mapping[str, str]
) -> DatasetId:
    """The name of what a sink writes to; a login in an address is left out."""
    options = sink.options
    if (of_format := _FORMATS.get(sink.format)) is not None:
        return of_format(options, name, {_SERVERS: settings.kafka.bootstrap_servers, **connection})
    if (path := options.get("path")) is not None:
        return of_path(path, settings.data_folder)
    url = urlsplit(options.get("url", "").removeprefix("jdbc:"))
    if url.hostname is None:
        return DatasetId(sink.format, f"{settings.name}.{name}")
    within = options.get("index") or options.get("prefix") or url.path.strip("/") or str(name)
    return DatasetId(f"{url.scheme}://{url.hostname}{f':{url.port}' if url.port else ''}", within)


def _of_kafka(options: Mapping[str, str], name: TableName, connection: Mapping[str, str]) -> DatasetId:
    servers = options.get(_SERVERS) or connection[_SERVERS]
    return of_topic(servers, options.get("topic", name.name))


def _of_postgres(options: Mapping[str, str], name: TableName, connection: Mapping[str, str]) -> DatasetId:
    url, table = urlsplit(options.get("url", "")), options.get("table", name.name)
    parts = [url.path.strip("/") or "postgres", *([] if "." in table else ["public"]), table]
    return DatasetId(f"postgres://{url.hostname}:{url.port or 5432}", ".".join(parts))


_FORMATS = {"kafka": _of_kafka, "postgres": _of_postgres}
"""The formats whose names are not those of a path or an address."""


def name_inputs(
    planned: PlannedFlow | PlannedRefresh, settings: ProjectSettings, read: Mapping[int, Iterable[DatasetId]]
) -> Mapping[str, tuple[DatasetId, ...]]:
    """The datasets behind each input of a flow, by the id of the input: a source can have several topics.
    `read`: those that the flow has read, by the index of the source."""
    inputs = {} if planned.lineage is None else {one.id: one for one in planned.lineage.inputs}
    inputs |= {str(one.table): Input(dataset=str(one.table)) for one in planned.reads}
    found = {id: _of_input(one, settings) for id, one in inputs.items()}
    for source in planned.sources if isinstance(planned, PlannedFlow) else ():
        one = input_of(source, settings.root)
        outside = tuple(read.get(source.index, ())) or source.datasets(settings)
        found[one.id] = outside if one.dataset is None else _of_input(one, settings)
    return found


def _of_input(one: Input, settings: ProjectSettings) -> tuple[DatasetId, ...]:
    if one.dataset is not None:
        return (of_table(settings, one.dataset),)
    paths = tuple(of_path(name, settings.data_folder) for name in one.names)
    return paths or (DatasetId(settings.name, one.label or "unknown"),)
