"""Support for files that use ``pyspark.pipelines`` (``from pyspark import pipelines as dp``).

Spark's decorators register with the active registry; while a pipeline's files are loaded, that is the one
here. Only files that name the module need it, since it imports PySpark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from pyspark.pipelines.flow import AutoCdcFlow, Flow as SparkFlow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry
from pyspark.pipelines.output import (
    MaterializedView as SparkMaterializedView,
    Output as SparkOutput,
    StreamingTable as SparkStreamingTable,
    TemporaryView as SparkTemporaryView,
)

from headrace.declare import python
from headrace.declare.registry import ActivePipeline
from headrace.errors import FeatureUnsupportedError, SourceLocation
from headrace.model.names import TableName
from headrace.syntax.locations import display_path


class SparkRegistry(GraphElementRegistry):  # type: ignore[misc]
    """Declares with our decorators what Spark's decorators register.

    Spark registers a view and then its query, so the view is kept until the query comes.
    """

    def __init__(self, active: ActivePipeline) -> None:
        self._active = active
        self._waiting: dict[str, SparkOutput] = {}

    def register_output(self, output: Any) -> None:
        match output:
            case SparkMaterializedView() | SparkTemporaryView():
                self._waiting[output.name] = output
            case SparkStreamingTable():
                python.create_streaming_table(output.name, **_stored(output))
            case _:
                self._refuse(f"{type(output).__name__.lower()} `{output.name}`", output.source_code_location)

    def register_flow(self, flow: Any) -> None:
        assert isinstance(flow, SparkFlow)
        output = self._waiting.pop(flow.name, None)
        conf = flow.spark_conf
        match output:
            case SparkMaterializedView():
                declare = python.materialized_view(name=flow.name, spark_conf=conf, **_stored(output))
            case SparkTemporaryView():
                declare = python.temporary_view(name=flow.name, comment=output.comment, spark_conf=conf)
            case _:
                declare = python.append_flow(target=flow.target, name=self._name(flow), spark_conf=conf)
                if flow.name == flow.target and self._active.registry is not None:
                    target = TableName.parse(flow.target, self._active.settings.database)
                    self._active.registry.own(flow.func, target)
        declare(flow.func)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        self._refuse(f"AUTO CDC flow `{flow.name}`", flow.source_code_location)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise FeatureUnsupportedError(
            "pipeline files in SQL are not supported yet", location=SourceLocation(str(file_path), 1)
        )

    def _name(self, flow: SparkFlow) -> str:
        """The name of a flow; that of a table's own flow is the one that our `table` gives it."""
        if flow.name != flow.target:
            return str(flow.name)
        settings = self._active.settings
        target = TableName.parse(flow.target, settings.database)
        return python.flow_name_of(target, settings.database)

    def _refuse(self, what: str, place: Any) -> NoReturn:
        shown = display_path(place.filename, self._active.settings.root)
        raise FeatureUnsupportedError(
            f"{what}: this version does not support it",
            location=SourceLocation(shown, place.line_number or 1),
            facts=["supported: streaming tables, append flows, materialized views and temporary views"],
            params={"what": what},
        )


def _stored(output: SparkStreamingTable | SparkMaterializedView) -> dict[str, Any]:
    """The arguments of Spark's stored datasets, as ours take them."""
    return {
        "comment": output.comment,
        "table_properties": output.table_properties,
        "partition_cols": output.partition_cols,
        "cluster_by": output.cluster_by,
        "schema": output.schema,
        "format": output.format,
    }
