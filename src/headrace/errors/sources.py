"""Errors of sources: brokers, topics, records, files, and tables that are read as streams."""

from __future__ import annotations

from headrace.errors.base import RefusedError, RunError, TransientError, UsageError


class SnapshotInvalidError(RunError):
    """A source of snapshots did not return a snapshot with a valid version.

    A function returns `(DataFrame, version)` or `None`; a version is a number, text, a date or a datetime.
    The names in a folder are integers, dates or timestamps. All versions of a source must have the same type.
    """

    code = "SNAPSHOT_INVALID"


class SnapshotKeysInvalidError(RunError):
    """A snapshot has several rows with the same key, or rows with NULL in a key.

    The snapshot was not applied. Correct it, choose other keys, or remove these rows.
    """

    code = "SNAPSHOT_KEYS_INVALID"


class SnapshotMissingError(UsageError):
    """A source has no snapshot yet, so the columns of the table are not known. Add the first snapshot."""

    code = "SNAPSHOT_MISSING"


class BrokerUnreachableError(TransientError):
    """No Kafka broker answered in time. Start the broker, or correct `kafka.bootstrap.servers`."""

    code = "BROKER_UNREACHABLE"


class KafkaLoginError(RunError):
    """The Kafka cluster refused the login, or expects another SASL mechanism.

    Correct the setting that the message names. The login is not repeated with the same credentials, because
    some clusters lock a user after several failures.
    """

    code = "KAFKA_LOGIN_REFUSED"


class KafkaTlsError(RunError):
    """The TLS handshake with the Kafka cluster failed, or only one side uses TLS.

    Correct the setting that the message names: the protocol, the certificate authorities or the certificate.
    """

    code = "KAFKA_TLS_FAILED"


class KafkaForbiddenError(RunError):
    """The Kafka cluster accepted the login, but the user lacks a permission (ACL).

    Grant the permission that the message names: flows and `headrace verify` need DESCRIBE and READ on
    their topics.
    """

    code = "KAFKA_FORBIDDEN"


class TopicNotFoundError(UsageError):
    """The Kafka cluster has no topic of this name. Create it, or correct the name."""

    code = "TOPIC_NOT_FOUND"


class StartInvalidError(UsageError):
    """The start position of a flow does not exist, or is given for some partitions only.

    The message names the offsets that the broker has, or the versions of the table or of its change data
    feed that can be read.
    """

    code = "START_INVALID"


class ChangeFeedMissingError(UsageError):
    """A query reads the change data feed of a Delta table that did not record one at that version.

    Set the table property `delta.enableChangeDataFeed`, and start at the version that sets it.
    """

    code = "CHANGE_FEED_MISSING"


class RecordInvalidError(UsageError):
    """A line of the file that `headrace produce` reads is not a valid record.

    The records before it were delivered; the message has their number. Correct the line, and send only the
    lines from there on.
    """

    code = "RECORD_INVALID"


class SampleSchemaInvalidError(UsageError):
    """The schema of `headrace produce --sample` is invalid, or has a type that cannot be generated.

    Write it as Spark does: `id LONG, customer STRING, amount DECIMAL(12, 2), at TIMESTAMP`.
    """

    code = "SAMPLE_SCHEMA_INVALID"


class ProduceFailedError(RunError):
    """The broker refused a record. The message has the number of records that it has acknowledged."""

    code = "PRODUCE_FAILED"


class ConsumeFailedError(RunError):
    """The records of the topic could not be read. The message has the error of the Kafka client."""

    code = "CONSUME_FAILED"


class OffsetUnknownError(UsageError):
    """The topic has no such partition or offset. The message names those that it has."""

    code = "OFFSET_UNKNOWN"


class RecordUnparseableError(RunError):
    """A record does not match the declared schema or format; its batch was not committed.

    The message names the field, its expected type and its value, and the command that prints the record.
    Correct the schema, or let a reader move such records to the quarantine table: `bad_records="quarantine"`.
    Or read the topic with `format="raw"` (files with `format="text"`) and handle them in the query.
    """

    code = "RECORD_UNPARSEABLE"


class RecordNotUtf8Error(RunError):
    """A record that is read as text or JSON is not valid UTF-8; its batch was not committed.

    The message names the first invalid byte, and the command that prints the record. Other engines cannot
    read a string column with such bytes. With `invalid_utf8="replace"` the reader replaces invalid bytes by
    U+FFFD; with `bad_records="quarantine"` it moves such records to the quarantine table. To keep the bytes,
    read the topic with `format="raw"`.
    """

    code = "RECORD_NOT_UTF8"


class SchemaNotInferredError(UsageError):
    """`headrace infer` found no record from which a schema can be inferred; no file was written.

    The message counts the records that are not JSON objects, and shows the first of them.
    """

    code = "SCHEMA_NOT_INFERRED"


class RecordDriftedError(RunError):
    """A record has a field that its schema does not have, or a value of another type, and `drift` is `fail`.

    Its batch was not committed. Add the field to the schema, or choose another action for it:
    `drift={"*": "fail", "coupon": "evolve"}`.
    """

    code = "RECORD_DRIFTED"


class RecordTooLargeError(RunError):
    """The value of a record is longer than `max_value_bytes`; its batch was not committed.

    Set a larger `max_value_bytes` in the reader, or let it move such records to the quarantine table:
    `bad_records="quarantine"`.
    """

    code = "RECORD_TOO_LARGE"


class SchemaRegistryUnreachableError(TransientError):
    """The schema registry does not answer. Start it, or correct its address."""

    code = "SCHEMA_REGISTRY_UNREACHABLE"


class SchemaRegistryRefusedError(RunError):
    """The schema registry refused the login or the request. Correct the login or the address."""

    code = "SCHEMA_REGISTRY_REFUSED"


class SubjectNotFoundError(UsageError):
    """The schema registry has no schema under this subject.

    The subject of a topic is `TOPIC-value`, unless `hr.read_kafka` names another.
    """

    code = "SUBJECT_NOT_FOUND"


class SchemaSubjectInvalidError(UsageError):
    """A subject of the schema registry has a schema that is not Avro, or that refers to other schemas.

    Read the topic with `format="raw"`, and decode the records in the query.
    """

    code = "SCHEMA_SUBJECT_INVALID"


class SchemaIdUnknownError(TransientError):
    """A record has the id of a schema that the subject in the schema registry does not have.

    The batch was not committed. The flow asks the registry again and replays the batch. Register the schema
    under the subject that the flow reads, or name the right subject in `hr.read_kafka`.
    """

    code = "SCHEMA_ID_UNKNOWN"


class FilesNotFoundError(UsageError):
    """The folder of a files source does not exist, or holds no file from which a schema can be inferred.

    Correct the path, or give `hr.read_files` a schema.
    """

    code = "FILES_NOT_FOUND"


class KeptSchemaUnreadableError(RunError):
    """The file with an inferred schema in the storage cannot be read.

    Restore the file, or remove it: the next run infers the schema again.
    """

    code = "KEPT_SCHEMA_UNREADABLE"


class FileUnreadableError(RunError):
    """A file does not have the declared format, or Spark cannot read its name; its batch was not committed.

    Repair or replace the file. If it is removed, the flow reports FILE_VANISHED.
    """

    code = "FILE_UNREADABLE"


class FileChangedError(TransientError):
    """A file was changed while a batch read it; the batch is retried until no file changes during the read.

    Write files to another folder, and move them into this one when they are complete.
    """

    code = "FILE_CHANGED"


class FileVanishedError(RefusedError):
    """A file that a batch must read does not exist any more.

    Restore it. With `on_data_loss: record` the flow continues without it, and the ledger records its name.
    """

    code = "FILE_VANISHED"


class TopicRecreatedError(RefusedError):
    """The topic was deleted and created again, so the offsets of the checkpoint belong to other records.

    `headrace reset FLOW` keeps the rows and continues with the new topic.
    """

    code = "TOPIC_RECREATED"


class OffsetsExpiredError(RefusedError):
    """The broker no longer has records that the flow has not read yet: their retention time has passed.

    With `on_data_loss: record` the flow continues after them, and the ledger records the lost offsets.
    """

    code = "OFFSETS_EXPIRED"


class OffsetsBeyondEndError(RefusedError):
    """The offsets of the checkpoint are beyond the end of the topic: the broker has lost records.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "OFFSETS_BEYOND_END"


class OffsetsReusedError(RefusedError):
    """The broker's log was rolled back and its offsets were used again for other records.

    An older copy of the log was restored, or an unclean leader election dropped its end. An offset that was
    read has another record now, or none. The flow has not read the new records below its position, and the
    table has records that the broker has lost.

    `headrace full-refresh DATASET` reads everything again. To restore the log that the flow has read ends the
    refusal, too. `headrace verify` reports this code for the same difference between commits and the broker.
    """

    code = "OFFSETS_REUSED"


class UpstreamRewrittenError(RefusedError):
    """A table that is read as a stream has changed rows that the stream had already read.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "UPSTREAM_REWRITTEN"


class UpstreamLogExpiredError(RefusedError):
    """A table that is read as a stream no longer has commits or files that the stream has not read yet.

    Delta deletes old commits of its log, and `VACUUM` deletes old files. Keep them longer with the table
    properties `delta.logRetentionDuration` and `delta.deletedFileRetentionDuration`.

    `headrace full-refresh DATASET` reads everything again.
    """

    code = "UPSTREAM_LOG_EXPIRED"


class UpstreamSchemaChangedError(RefusedError):
    """A table that is read as a stream has renamed or dropped a column, or changed its type.

    The commits before the change cannot be read with the new columns. `headrace full-refresh DATASET` reads
    everything again.
    """

    code = "UPSTREAM_SCHEMA_CHANGED"


class UpstreamMissingError(RunError):
    """A flow reads a table that does not exist yet. Run the flow of that table first, or all flows."""

    code = "UPSTREAM_MISSING"


class UpstreamSchemaStaleError(RunError):
    """A query reads a table of its own pipeline that does not have the declared columns yet.

    The run refused to change the table, or did not include it. Bring the table up to date first; the message
    names the command. The query was planned with the declared columns, so it would fail or write wrong rows.
    """

    code = "UPSTREAM_SCHEMA_STALE"
