"""What is read: brokers, topics, records, and tables that are read as streams."""

from __future__ import annotations

from headrace.errors.base import RefusedError, RunError, TransientError, UsageError


class BrokerUnreachableError(TransientError):
    """No Kafka broker answered in time. Start it, or correct `kafka.bootstrap.servers`."""

    code = "BROKER_UNREACHABLE"


class KafkaLoginError(RunError):
    """The Kafka cluster does not accept the login, or wants another kind of login.

    Correct the setting that the message names. Nothing is tried again with the same credentials: some
    clusters lock a user out who fails too often.
    """

    code = "KAFKA_LOGIN_REFUSED"


class KafkaTlsError(RunError):
    """No encrypted connection with the Kafka cluster comes about, or one side does not want one.

    Correct the setting that the message names: the protocol, the authorities or the certificate.
    """

    code = "KAFKA_TLS_FAILED"


class KafkaForbiddenError(RunError):
    """The Kafka cluster knows the user, and does not let it do this.

    Give the user the right that the message names: flows and `headrace verify` need to describe and to
    read their topics.
    """

    code = "KAFKA_FORBIDDEN"


class TopicNotFoundError(UsageError):
    """The Kafka cluster has no topic of this name. Create it, or correct the name."""

    code = "TOPIC_NOT_FOUND"


class StartInvalidError(UsageError):
    """A flow is told to start where its topics or tables do not go, or for some partitions only.

    The message says which offsets the broker holds, or from which version on the table, or its change
    feed, can be read.
    """

    code = "START_INVALID"


class ChangeFeedMissingError(UsageError):
    """The change feed of a Delta table is read, and the table does not record one, or did not yet.

    Give the table the property `delta.enableChangeDataFeed`, and start at the version that sets it.
    """

    code = "CHANGE_FEED_MISSING"


class RecordInvalidError(UsageError):
    """A line of a file that `headrace produce` reads is no record.

    The records before it were delivered, and the message counts them: correct the line, and send the rest.
    """

    code = "RECORD_INVALID"


class SampleSchemaInvalidError(UsageError):
    """The schema of `headrace produce --sample` is not a list of columns that can be made up.

    Write it as Spark does: `id LONG, customer STRING, amount DECIMAL(12, 2), at TIMESTAMP`.
    """

    code = "SAMPLE_SCHEMA_INVALID"


class ProduceFailedError(RunError):
    """The broker did not take a record. The message counts the records that it has acknowledged."""

    code = "PRODUCE_FAILED"


class ConsumeFailedError(RunError):
    """The broker does not give the topic's records. What Kafka's client says of it is shown."""

    code = "CONSUME_FAILED"


class OffsetUnknownError(UsageError):
    """The topic holds no such partition, or no such offset. The message names those that it holds."""

    code = "OFFSET_UNKNOWN"


class RecordUnparseableError(RunError):
    """A record does not fit the declared format; its batch was not committed.

    Correct the schema, or read the topic with `format="raw"` (files with `format="text"`) and handle
    such records in the query.
    """

    code = "RECORD_UNPARSEABLE"


class FilesNotFoundError(UsageError):
    """A folder of files is not there, or holds none from which columns could be inferred.

    Correct the path, or give `hr.read_files` a schema.
    """

    code = "FILES_NOT_FOUND"


class KeptSchemaUnreadableError(RunError):
    """The columns that a run has inferred and kept cannot be read.

    Put the file back, or remove it: the next run infers the columns anew.
    """

    code = "KEPT_SCHEMA_UNREADABLE"


class FileUnreadableError(RunError):
    """A file is not what its format says, or its name misleads Spark; its batch was not committed.

    Repair or replace the file. A file that is taken away is reported as vanished.
    """

    code = "FILE_UNREADABLE"


class FileChangedError(TransientError):
    """A file was written while a batch read it; the batch is read again until its files rest.

    Write files elsewhere, and move them into the folder when they are complete.
    """

    code = "FILE_CHANGED"


class FileVanishedError(RefusedError):
    """A file that a batch has to read is gone.

    Put it back. With `on_data_loss: record` the flow goes on without it, and the ledger keeps its name.
    """

    code = "FILE_VANISHED"


class TopicRecreatedError(RefusedError):
    """The topic was deleted and created again: its offsets mean other records now.

    `headrace run --new-checkpoint FLOW` keeps the rows and goes on with the new topic.
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


class UpstreamRewrittenError(RefusedError):
    """A table that is read as a stream has changed rows that were already read.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "UPSTREAM_REWRITTEN"


class UpstreamLogExpiredError(RefusedError):
    """Commits of a table that a flow has not read yet are gone: the table's log was cleaned up.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "UPSTREAM_LOG_EXPIRED"


class UpstreamMissingError(RunError):
    """A flow reads a table that no run has made yet. Run the table first, or the whole pipeline."""

    code = "UPSTREAM_MISSING"


class UpstreamSchemaStaleError(RunError):
    """A query reads a table that does not have the columns which its own pipeline declares for it.

    The table was refused in the same run, or was left out of it. Bring the table up to date first: the
    message names the command. What reads it would fail in the middle, or give rows of another shape.
    """

    code = "UPSTREAM_SCHEMA_STALE"
