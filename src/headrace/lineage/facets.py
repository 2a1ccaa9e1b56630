"""The facets of OpenLineage for the jobs and datasets of a plan. Needs the package `openlineage-python`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from openlineage.client import facet_v2
from openlineage.client.event_v2 import InputDataset, OutputDataset

from headrace.lineage.naming import of_sink, of_table
from headrace.model.declarations import StoredDataset
from headrace.model.lineage import ColumnLineage, DatasetId, InputColumn
from headrace.model.project import ProjectSettings
from headrace.plan.columns import type_text
from headrace.plan.stages import Plan, PlannedFlow, PlannedRefresh

Facets = dict[str, Any]
Planned = PlannedFlow | PlannedRefresh
Names = Mapping[str, tuple[DatasetId, ...]]
"""The datasets behind each input of a flow, by the id of the input."""


def job_facets(kind: str, *, streams: bool) -> Facets:
    processing = "STREAMING" if streams else "BATCH"
    return {
        "jobType": facet_v2.job_type_job.JobTypeJobFacet(
            processingType=processing, integration="HEADRACE", jobType=kind
        )
    }


def flow_job_facets(planned: Planned, plan: Plan, *, streams: bool) -> Facets:
    """The facets of the job of a flow: its type, its description and the line that declares it."""
    location = planned.flow.location
    found = job_facets("FLOW" if isinstance(planned, PlannedFlow) else "VIEW", streams=streams)
    file = (plan.project.root.absolute() / location.path).as_uri()
    found["sourceCodeLocation"] = facet_v2.source_code_location_job.SourceCodeLocationJobFacet(
        type="file", url=f"{file}#L{location.line}", path=location.path
    )
    if (comment := _dataset(planned, plan).comment) is not None:
        found["documentation"] = facet_v2.documentation_job.DocumentationJobFacet(description=comment)
    return found


def engine_facets() -> Facets:
    engine = facet_v2.processing_engine_run.ProcessingEngineRunFacet(
        name="spark", version=version("pyspark"), openlineageAdapterVersion=version("headrace")
    )
    return {"processing_engine": engine}


def error_facets(code: str, text: str) -> Facets:
    facet = facet_v2.error_message_run.ErrorMessageRunFacet(
        message=f"[{code}] {text}", programmingLanguage="PYTHON"
    )
    return {"errorMessage": facet}


def input_datasets(planned: Planned, plan: Plan, names: Names) -> list[InputDataset]:
    """The inputs of a flow, with their columns; of a source, the columns that the flow uses."""
    used = _used_columns(planned)
    schemas = {str(name): schema for name, schema in plan.schemas.items()}
    found: dict[DatasetId, Facets] = {}
    for id, datasets in names.items():
        fields = _schema(schemas[id]) if id in schemas else _names_only(used.get(id, ()))
        found |= {one: _source_facets(one) | fields for one in datasets}
    return [InputDataset(one.namespace, one.name, facets=facets) for one, facets in found.items()]


def output_dataset(
    planned: Planned, plan: Plan, names: Names, quality: Mapping[str, tuple[int, int]]
) -> OutputDataset:
    """The dataset that a flow writes. `quality`: the passed and failed rows of each expectation."""
    settings, dataset = plan.project, _dataset(planned, plan)
    id = output_id(planned, settings)
    facets = _source_facets(id) | _schema(plan.schemas.get(planned.flow.target, planned.schema))
    if not isinstance(planned, PlannedFlow) or planned.sink is None:
        table = facet_v2.symlinks_dataset.Identifier(
            namespace=settings.name, name=str(planned.flow.target), type="TABLE"
        )
        facets["symlinks"] = facet_v2.symlinks_dataset.SymlinksDatasetFacet(identifiers=[table])
    if dataset.comment is not None:
        facets["documentation"] = facet_v2.documentation_dataset.DocumentationDatasetFacet(dataset.comment)
    if planned.lineage is not None:
        facets["columnLineage"] = _column_lineage(planned.lineage, names)
    if quality:
        facets["dataQualityAssertions"] = _assertions(quality)
    return OutputDataset(id.namespace, id.name, facets=facets)


def statistics(rows: int, size: int | None) -> Facets:
    facet = facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=rows, size=size
    )
    return {"outputStatistics": facet}


def output_id(planned: Planned, settings: ProjectSettings) -> DatasetId:
    if isinstance(planned, PlannedFlow) and planned.sink is not None:
        return of_sink(planned.sink, planned.flow.target, settings, planned.connection())
    return of_table(settings, str(planned.flow.target))


def _dataset(planned: Planned, plan: Plan) -> StoredDataset:
    found = next(one for one in plan.datasets if one.name == planned.flow.target)
    assert isinstance(found, StoredDataset)
    return found


def _source_facets(one: DatasetId) -> Facets:
    source = facet_v2.datasource_dataset.DatasourceDatasetFacet(name=one.namespace, uri=one.uri)
    return {"dataSource": source}


def _schema(schema: Mapping[str, Any]) -> Facets:
    fields = [
        facet_v2.schema_dataset.SchemaDatasetFacetFields(
            name=one["name"], type=type_text(one["type"]), description=one.get("metadata", {}).get("comment")
        )
        for one in schema["fields"]
    ]
    return {"schema": facet_v2.schema_dataset.SchemaDatasetFacet(fields=fields)}


def _names_only(names: Iterable[str]) -> Facets:
    """The columns of a source that a flow uses; their types are not known."""
    fields = [facet_v2.schema_dataset.SchemaDatasetFacetFields(name=one) for one in sorted(names)]
    return {"schema": facet_v2.schema_dataset.SchemaDatasetFacet(fields=fields)} if fields else {}


def _used_columns(planned: Planned) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    lineage = planned.lineage or ColumnLineage()
    for one in (*lineage.rows, *itertools.chain.from_iterable(lineage.columns.values())):
        found.setdefault(lineage.inputs[one.input].id, set()).add(one.column)
    return found


def _column_lineage(lineage: ColumnLineage, names: Names) -> Any:
    ids = [names[one.id] for one in lineage.inputs]
    columns = facet_v2.column_lineage_dataset
    fields = {
        name: columns.Fields(inputFields=_input_fields(found, ids))
        for name, found in lineage.columns.items()
        if found
    }
    return columns.ColumnLineageDatasetFacet(fields=fields, dataset=_input_fields(lineage.rows, ids))


def _input_fields(found: Iterable[InputColumn], ids: Sequence[tuple[DatasetId, ...]]) -> list[Any]:
    columns = facet_v2.column_lineage_dataset
    ways: dict[tuple[DatasetId, str], list[Any]] = {}
    for one in found:
        way = columns.Transformation(
            type="DIRECT" if one.is_direct else "INDIRECT", subtype=one.way.upper(), masking=one.masked
        )
        for id in ids[one.input]:
            ways.setdefault((id, one.column), []).append(way)
    return [
        columns.InputField(namespace=id.namespace, name=id.name, field=column, transformations=many)
        for (id, column), many in ways.items()
    ]


def _assertions(quality: Mapping[str, tuple[int, int]]) -> Any:
    assertions = facet_v2.data_quality_assertions_dataset
    return assertions.DataQualityAssertionsDatasetFacet(
        assertions=[
            assertions.Assertion(
                assertion=name, name=name, success=failed == 0, expected="0", actual=f"{failed}",
                params={"passed": passed, "failed": failed},
            )
            for name, (passed, failed) in quality.items()
        ]
    )  # fmt: skip
