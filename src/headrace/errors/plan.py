"""What a pipeline's queries ask for, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors.base import HeadraceError, UsageError


class PlanFailedError(UsageError):
    """Several things are wrong with the pipeline; each is listed with its own code and place.

    Args:
        errors: The errors, in the order of their places.
    """

    code = "PLAN_FAILED"

    def __init__(self, errors: Sequence[HeadraceError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(
            f"{len(self.errors)} things are wrong with the pipeline",
            location=first.location,
            facts=[
                error.headline + (f" ({error.location})" if error.location else "") for error in self.errors
            ],
            remedies=list(dict.fromkeys(remedy for error in self.errors for remedy in error.remedies)),
            params={"errors": [error.to_dict() for error in self.errors]},
        )


class TableNotFoundError(UsageError):
    """A query reads a table that no file declares and the storage does not hold.

    Correct the name, or declare the table.
    """

    code = "TABLE_NOT_FOUND"


class CycleError(UsageError):
    """Datasets read each other in a circle, so none of them can come first. Break the circle."""

    code = "CYCLE"


class BatchQueryForStreamingTableError(UsageError):
    """A streaming table's query reads no stream.

    Read with `spark.readStream`, or declare a materialized view.
    """

    code = "BATCH_QUERY_FOR_STREAMING_TABLE"


class StreamingQueryForViewError(UsageError):
    """A materialized view's query is a stream, but a view is recomputed as a whole.

    Read with `spark.read`, or declare a streaming table.
    """

    code = "STREAMING_QUERY_FOR_VIEW"


class StreamOverViewError(UsageError):
    """A stream reads a materialized view, whose rows are replaced at every refresh.

    Read the view with `spark.read` in a materialized view, or stream from the tables behind it.
    """

    code = "STREAM_OVER_VIEW"


class ViewReadMismatchError(UsageError):
    """A temporary view of a stream is read as a batch, or a batch view as a stream.

    Read a stream's view with `spark.readStream.table`, and any other with `spark.read.table`.
    """

    code = "VIEW_READ_MISMATCH"


class ActionInQueryError(UsageError):
    """A query function computes rows, or writes, instead of only saying what the table is.

    Leave out the action. Values that are needed beforehand can be computed at module level.
    """

    code = "ACTION_IN_QUERY"


class PropertyForbiddenError(UsageError):
    """A table property would break the exactly-once protocol, or is kept by Headrace itself."""

    code = "PROPERTY_FORBIDDEN"


class PropertyInvalidError(UsageError):
    """A table property has a value that it cannot have."""

    code = "PROPERTY_INVALID"


class OptionUnsupportedError(UsageError):
    """An option of a reader would let records be lost silently. Leave it out."""

    code = "OPTION_UNSUPPORTED"


class OptionUnknownError(UsageError):
    """A reader is given an option, or Spark a setting, that it does not know and would ignore without a word.

    Write the name that the message suggests, or leave it out.
    """

    code = "OPTION_UNKNOWN"


class OptionInvalidError(UsageError):
    """An option of a reader has a value that it cannot have. The message says what it may be."""

    code = "OPTION_INVALID"


class BadRecordsHiddenError(UsageError):
    """A query parses records in a way that turns those that do not fit into nulls.

    Give the function the option `mode`: `FAILFAST` stops the flow, `PERMISSIVE` says that nulls are meant.
    """

    code = "BAD_RECORDS_HIDDEN"


class SourceUnsupportedError(UsageError):
    """A stream reads from a source that loses records when a run fails, or that cannot be previewed.

    Send the records to a Kafka topic, and read the topic.
    """

    code = "SOURCE_UNSUPPORTED"


class SourceReadTwiceError(UsageError):
    """A query reads the same topic, table or folder through two separate streaming reads.

    Spark numbers the reads of a query. When the query changes, the numbers can change places, so offsets
    could be assigned to the wrong read. Read the source once into a variable or a temporary view and use
    that twice, or write two flows into the table.
    """

    code = "SOURCE_READ_TWICE"


class TargetInvalidError(UsageError):
    """An append flow names a target that is not a streaming table of this pipeline."""

    code = "TARGET_INVALID"


class TableWithoutFlowError(UsageError):
    """A streaming table is declared, but no flow feeds it. Add one with `append_flow`."""

    code = "TABLE_WITHOUT_FLOW"


class SchemaInvalidError(UsageError):
    """A declared schema is not a list of columns that Spark can read."""

    code = "SCHEMA_INVALID"


class SchemaMismatchError(UsageError):
    """The query's columns do not fit the declared schema. Change the one or the other."""

    code = "SCHEMA_MISMATCH"


class FlowSchemasDifferError(UsageError):
    """Two flows of one table give the same column different types. Cast it in one of them."""

    code = "FLOW_SCHEMAS_DIFFER"


class ColumnNotFoundError(UsageError):
    """A partition, clustering or coordinate column is not among the table's columns."""

    code = "COLUMN_NOT_FOUND"


class ColumnInvalidError(UsageError):
    """A column of the query cannot be stored in a Delta table: its name or its type is not allowed."""

    code = "COLUMN_INVALID"


class LayoutConflictError(UsageError):
    """A table is partitioned and clustered at once; Delta does one of the two."""

    code = "LAYOUT_CONFLICT"


class AggregateWithoutWatermarkError(UsageError):
    """A stream is aggregated without a watermark, so Spark can never tell when a group is complete.

    Add `.withWatermark(column, delay)` before the aggregation, or declare a materialized view.
    """

    code = "AGGREGATE_WITHOUT_WATERMARK"


class StreamingUnsupportedError(UsageError):
    """Spark cannot run the query as an appending stream."""

    code = "STREAMING_UNSUPPORTED"


class QueryInvalidError(UsageError):
    """A query function cannot be a query: it takes arguments, or does not return a DataFrame."""

    code = "QUERY_INVALID"


class QueryFailedError(UsageError):
    """A query function raised an error, or Spark cannot make sense of what it asks for."""

    code = "QUERY_FAILED"
