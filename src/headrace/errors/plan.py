"""Errors of declarations and queries, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors.base import HeadraceError, UsageError


class PlanFailedError(UsageError):
    """The pipeline has several errors; each is listed with its own code and line."""

    code = "PLAN_FAILED"

    def __init__(self, errors: Sequence[HeadraceError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(
            f"the pipeline has {len(self.errors)} errors",
            location=first.location,
            facts=[
                error.headline + (f" ({error.location})" if error.location else "") for error in self.errors
            ],
            remedies=list(dict.fromkeys(remedy for error in self.errors for remedy in error.remedies)),
            params={"errors": [error.to_dict() for error in self.errors]},
        )


class KeysChangedError(UsageError):
    """The declared keys or SCD type of a table differ from those with which its rows were written.

    The error also occurs if the rows were written by append flows. Restore the old declaration, or read
    everything again with `headrace full-refresh`.
    """

    code = "KEYS_CHANGED"


class FlowKindsDifferError(UsageError):
    """A table has both append flows and AUTO CDC flows, or AUTO CDC flows with different keys.

    All flows of one table must be append flows, or AUTO CDC flows with the same keys. Declare a second table
    for the other flows.
    """

    code = "FLOW_KINDS_DIFFER"


class TableNotFoundError(UsageError):
    """A query reads a table that no file declares and that the storage does not hold.

    Correct the name, or declare the table.
    """

    code = "TABLE_NOT_FOUND"


class PathUnmappedError(UsageError):
    """A file of the pipeline uses a path of another system, such as `dbfs:/` or `/Volumes`.

    Under `paths` in the spec, map this path to the location of the files on this machine.
    """

    code = "PATH_UNMAPPED"


class CycleError(UsageError):
    """Datasets read each other in a cycle, so none of them can be computed first. Remove one of the reads."""

    code = "CYCLE"


class BatchQueryForStreamingTableError(UsageError):
    """The query of a streaming table is not a stream.

    Read with `spark.readStream`, or declare a materialized view.
    """

    code = "BATCH_QUERY_FOR_STREAMING_TABLE"


class StreamingQueryForViewError(UsageError):
    """The query of a materialized view is a stream, but each refresh computes the whole view.

    Read with `spark.read`, or declare a streaming table.
    """

    code = "STREAMING_QUERY_FOR_VIEW"


class StreamingQueryForOnceFlowError(UsageError):
    """The query of a flow with `once=True` is a stream, but such a flow needs a batch query.

    Read the source with `spark.read`, or remove `once`.
    """

    code = "STREAMING_QUERY_FOR_ONCE_FLOW"


class StreamOverMergedTableError(UsageError):
    """A stream reads the rows of a table that change records update and delete.

    Read the table's changes with `hr.read_changes`, or the table with `spark.read` in a materialized view.
    """

    code = "STREAM_OVER_MERGED_TABLE"


class ViewReadMismatchError(UsageError):
    """A temporary view over a stream is read as a batch, or a temporary view over a batch as a stream.

    Read a streaming view with `spark.readStream.table`, and a batch view with `spark.read.table`.
    """

    code = "VIEW_READ_MISMATCH"


class ActionInQueryError(UsageError):
    """A query function runs an action, such as `collect` or a write, but it may only return a DataFrame.

    Remove the action. Compute values that the query needs at module level.
    """

    code = "ACTION_IN_QUERY"


class PropertyForbiddenError(UsageError):
    """A table property would break exactly-once processing, or Headrace sets it itself. Remove it."""

    code = "PROPERTY_FORBIDDEN"


class PropertyInvalidError(UsageError):
    """A table property has an invalid value."""

    code = "PROPERTY_INVALID"


class OptionUnsupportedError(UsageError):
    """With this option, records could be lost without an error, or rows could not be proven. Remove it."""

    code = "OPTION_UNSUPPORTED"


class OptionUnknownError(UsageError):
    """A reader has an unknown option, or the spec has a setting that neither Spark nor Delta knows.

    Spark would ignore it without an error. Write the name that the message suggests, or remove it.
    """

    code = "OPTION_UNKNOWN"


class OptionInvalidError(UsageError):
    """An option of a reader has an invalid value. The message lists the valid values."""

    code = "OPTION_INVALID"


class SourceUnsupportedError(UsageError):
    """A stream reads from a source that loses records when a run fails, or that cannot be previewed.

    If the source loses records, send them to a Kafka topic, and read the topic. For a preview, read the
    source inside of the query function.
    """

    code = "SOURCE_UNSUPPORTED"


class SourceReadTwiceError(UsageError):
    """A query reads the same topic, table or folder through two separate streaming reads.

    Spark identifies the reads of a query by their number. If the query changes, the numbers can change, and
    the offsets in the checkpoint could be assigned to the wrong read. Read the source once into a variable
    or a temporary view and use that twice, or write two flows into the table.
    """

    code = "SOURCE_READ_TWICE"


class TargetInvalidError(UsageError):
    """The target of an append flow is not a streaming table of this pipeline."""

    code = "TARGET_INVALID"


class TableWithoutFlowError(UsageError):
    """A streaming table is declared without a flow. Add a flow with `append_flow`."""

    code = "TABLE_WITHOUT_FLOW"


class SchemaInvalidError(UsageError):
    """A declared schema is not a list of columns that Spark can read."""

    code = "SCHEMA_INVALID"


class SchemaMismatchError(UsageError):
    """The columns of the query do not match the declared schema. Change the query or the schema."""

    code = "SCHEMA_MISMATCH"


class FlowSchemasDifferError(UsageError):
    """Two flows write different types to the same column of a table. Cast the column in one of them."""

    code = "FLOW_SCHEMAS_DIFFER"


class ColumnNotFoundError(UsageError):
    """A query, or an argument such as `cluster_by`, names a column that does not exist."""

    code = "COLUMN_NOT_FOUND"


class ColumnInvalidError(UsageError):
    """A Delta table cannot store a column of the query: its name or its type is not allowed."""

    code = "COLUMN_INVALID"


class LayoutConflictError(UsageError):
    """A table has both partition columns and clustering columns; Delta allows one of the two."""

    code = "LAYOUT_CONFLICT"


class StreamingUnsupportedError(UsageError):
    """Spark cannot run this query as a stream, or the query cannot keep one row for each of its groups.

    Declare a materialized view instead, which can have any batch query.
    """

    code = "STREAMING_UNSUPPORTED"


class SinkInvalidError(UsageError):
    """A query reads a sink, or the rows for a Kafka sink lack a required column.

    A sink stores no rows. A row for Kafka needs a column `value`, and a topic: in the options of the sink, or
    in a column `topic`.
    """

    code = "SINK_INVALID"


class QueryInvalidError(UsageError):
    """A query function has parameters without a default, or does not return a DataFrame."""

    code = "QUERY_INVALID"


class QueryFailedError(UsageError):
    """A query function raised an exception, or Spark cannot analyze the query."""

    code = "QUERY_FAILED"
