"""What a failure of a query means: its code, and whether it is tried again."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import LeaseLostError, SourceLocation
from headrace.model.declarations import AppendFlow, Expectation
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.names import TableName
from headrace.model.project import ClusterSettings, ProjectSettings
from headrace.model.queries import PythonQuery
from headrace.model.ranges import SourceRange
from headrace.run.failures import Failures, Reading, violated_condition
from headrace.run.narrowing import RAISED
from headrace.sources.delta.facts import DeltaPosition
from headrace.sources.delta.source import DeltaSource
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.source import Source
from headrace.storage.layout import Storage
from headrace.storage.local import LocalFiles
from headrace.storage.location import Location

HERE = SourceLocation("sales.py", 7)
FLOW = AppendFlow(name="sales", target=TableName("default", "sales"), query=PythonQuery(lambda: None, HERE))


class Py4JNetworkError(Exception):
    """Named as py4j's own, which says that the JVM does not answer."""


def code(message: str) -> tuple[str, bool]:
    error = Failures(settings=None).as_error(Exception(message), FLOW)
    return error.code, error.transient


@pytest.mark.parametrize(
    "message",
    [
        "Some data may have been lost because they are not available in Kafka any more; either the data",
        "LOST_TOPIC_PARTITIONS ... The error could be transient - restart your query, and report",
        "[DELTA_METADATA_CHANGED] MetadataChangedException: The metadata of the Delta table has been changed",
        "[DELTA_CONCURRENT_APPEND.WITHOUT_HINT] ConcurrentAppendException",
        "java.net.ConnectException: Connection refused",
    ],
)
def test_what_passes_is_tried_again(message: str) -> None:
    assert code(message) == ("FLOW_INTERRUPTED", True)


def test_a_broker_that_is_away_is_named() -> None:
    message = "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment"
    error = Failures(settings=None).as_error(
        Exception(f"STREAM_FAILED\nCaused by: {message}\n\tat java.lang"), FLOW
    )
    assert (error.code, error.transient) == ("BROKER_UNREACHABLE", True)
    assert message in error.facts[0]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("SaslAuthenticationException: Authentication failed", "KAFKA_LOGIN_REFUSED"),
        ("SslAuthenticationException: SSL handshake failed", "KAFKA_TLS_FAILED"),
        ("TopicAuthorizationException: Not authorized to access topics: [sales]", "KAFKA_FORBIDDEN"),
        ("GroupAuthorizationException: Not authorized to access group: mine", "KAFKA_FORBIDDEN"),
    ],
)
def test_a_cluster_that_turns_the_flow_away_is_asked_no_second_time(message: str, expected: str) -> None:
    place = SourceLocation("headrace.yml", 3)
    kafka = KafkaConnection(
        {"bootstrap.servers": "127.0.0.1:9", "security.protocol": "SASL_SSL", "sasl.username": "me"},
        {"sasl.username": place, "security.protocol": place},
    )
    settings = ProjectSettings(
        name="shop",
        file=Path("headrace.yml"),
        profile="dev",
        storage=Storage.at(Path("lake")),
        libraries=(),
        kafka=kafka,
    )
    text = f"STREAM_FAILED\nCaused by: org.apache.kafka.common.errors.{message}\n\tat java.lang"
    error = Failures(settings=settings).as_error(Exception(text), FLOW)
    assert (error.code, error.transient, error.location) == (expected, False, place)
    assert error.params.get("name") == "sales"


def test_a_module_that_a_worker_lacks_is_named_with_what_to_do(
    tmp_path: Path, make_project: Callable[[], ProjectSettings]
) -> None:
    (tmp_path / "helper.py").write_text("")
    settings = make_project()
    found = {}
    for name in ("helper", "numpy"):
        text = (
            f"PythonException: Traceback ..\nModuleNotFoundError: No module named '{name}'\n\n\tat org.apache"
        )
        error = Failures(settings=settings).as_error(Exception(text), FLOW)
        assert (error.code, error.location, error.params["module"]) == ("QUERY_FAILED", HERE, name)
        assert not isinstance(error, RAISED), "no record is moved to the quarantine"
        found[name] = error.remedies
    assert found["helper"][0].endswith("import helper")
    assert found["numpy"][0].endswith("pip install numpy")
    cluster = replace(settings, master="spark://m:7077", cluster=ClusterSettings(packages=("six",)))
    error = Failures(settings=cluster).as_error(Exception(text), FLOW)
    assert "`cluster: {packages: [six, numpy]}`" in error.remedies[0]


@pytest.mark.parametrize(
    "message",
    [
        "STREAM_FAILED terminated with exception: File file:/lake/orders/_delta_log does not exist SQLSTATE",
        "An error occurred while calling o1.commit. : java.io.FileNotFoundException: File /l/_delta_log does "
        "not exist",
        "[DELTA_PATH_DOES_NOT_EXIST] file:/lake/orders doesn't exist, or is not a Delta table",
        "java.io.FileNotFoundException: /lake/orders/_delta_log/0001.json (Permission denied)",
        "Caused by: java.io.IOException: Input/output error\n\tat java.base",
        "An error occurred while calling o1.commit. : ExitCodeException exitCode=1: chmod: cannot access "
        "'/lake/orders/_delta_log/.0005.json.tmp': No such file or directory",
        "java.nio.file.FileSystemException: /lake/orders: Stale file handle",
        "org.apache.hadoop.security.AccessControlException: Permission denied: user=me, access=READ",
        "java.nio.file.AccessDeniedException: s3://lake/v1/offsets/7: Status Code: 403, ExpiredToken",
        "org.apache.hadoop.fs.s3a.AWSServiceThrottledException: PUT 0-byte object on v1/offsets/7: SlowDown",
        "org.apache.hadoop.fs.s3a.UnknownStoreException: `s3://lake/v1': The specified bucket does not exist",
        "software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request",
    ],
)
def test_a_disk_that_does_not_answer_spark_is_asked_again(message: str) -> None:
    assert code(message) == ("STORAGE_UNREADABLE", True)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "org.apache.kafka.common.errors.TimeoutException: Timed out\n[DELTA_FILE_NOT_FOUND] a.parquet",
            "UPSTREAM_LOG_EXPIRED",
        ),
        ("[DELTA_FILE_NOT_FOUND] a.parquet\njava.lang.OutOfMemoryError: Java heap", "UPSTREAM_LOG_EXPIRED"),
        (
            "KafkaException: Failed to load SSL keystore /etc/k.jks of type JKS\n"
            "Caused by: java.nio.file.AccessDeniedException: /etc/k.jks",
            "KAFKA_TLS_FAILED",
        ),
    ],
)
def test_a_failure_for_good_comes_before_passing_and_general_ones(message: str, expected: str) -> None:
    assert code(message) == (expected, False)


def test_files_that_a_vacuum_has_deleted_do_not_come_back() -> None:
    deleted = (
        "[DELTA_FILE_NOT_FOUND] java.io.FileNotFoundException: File /lake/orders/a.parquet does not exist"
    )
    assert code(deleted) == ("UPSTREAM_LOG_EXPIRED", False)


def test_a_failure_of_a_table_names_no_source_of_another_kind() -> None:
    def explained(*sources: Source) -> tuple[str, SourceLocation | None, tuple[str, ...]]:
        deleted = Exception("[DELTA_FILE_NOT_FOUND] a.parquet cannot be found")
        error = Failures(settings=None, sources=sources).as_error(deleted, FLOW)
        return error.summary, error.location, error.facts[:-2]

    lost = "no longer has files that the flow has not read yet (VACUUM deletes them)"
    topic = KafkaSource(index=0, folder=0, location=SourceLocation("sales.py", 8), topics=("orders",))
    assert explained(topic) == (f"sales: a table that it reads {lost}", HERE, ())
    line = SourceLocation("sales.py", 9)
    rates, days = (
        DeltaSource(index=1, folder=1, location=line, table=TableName("default", name), path="/lake/x")
        for name in ("rates", "days")
    )
    assert explained(topic, rates) == (f"sales: table default.rates, which it reads, {lost}", line, ())
    both = ("it reads table default.rates, table default.days",)
    assert explained(topic, rates, days) == (f"sales: a table that it reads {lost}", HERE, both)


def test_a_full_disk_is_named() -> None:
    error = Failures(settings=None).as_error(Exception("java.io.IOException: No space left on device"), FLOW)
    assert (error.code, error.transient) == ("STORAGE_UNWRITABLE", False)
    assert "disk" in error.summary


def test_a_damaged_log_is_named_if_the_failure_is_about_a_table_of_the_flow(
    tmp_path: Path, make_project: Callable[[], ProjectSettings]
) -> None:
    settings = make_project()
    own, other = (settings.storage.table(TableName("default", name)) for name in ("sales", "other"))
    for table in (own, other):
        (table / "_delta_log" / f"{0:020d}.json").replace('{"commitInfo": {"userMetadata": "a\u2028b"}}')
    failures = Failures(settings=settings)
    malformed = Exception(
        "MALFORMED_RECORD_IN_PARSING: Malformed records are detected in record parsing: x.\n"
    )

    def found(error: Exception) -> str:
        return failures.as_error(error, FLOW).code

    (other / "_delta_log" / f"{1:020d}.json").replace("garbage")
    assert (found(malformed), found(Exception("DELTA_ODD"))) == ("RECORD_UNPARSEABLE", "FLOW_FAILED")
    assert found(Exception(f"cannot read file:{other}/_delta_log/0.json")) == "LOG_UNREADABLE"
    (own / "_delta_log" / f"{1:020d}.json").replace("")
    assert (found(malformed), found(Exception("DELTA_ODD"))) == ("LOG_UNREADABLE", "LOG_UNREADABLE")
    assert found(Exception("division by zero")) == "FLOW_FAILED"


def test_a_heap_that_is_too_small_is_named_with_its_setting() -> None:
    error = Failures(settings=None).as_error(
        Exception("Caused by: java.lang.OutOfMemoryError: Java heap space"), FLOW
    )
    assert (error.code, error.transient) == ("OUT_OF_MEMORY", False)
    assert "runtime: {memory: 4g}" in error.remedies[0]


@pytest.mark.parametrize(
    ("message", "summary", "expectation"),
    [
        (
            "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint pos (id > 0) violated by row with "
            "values:\n - id : -1\n\tat org.apache.spark",
            "sales: a row violates the CHECK constraint pos (id > 0)",
            '@hr.expect_or_quarantine("pos", "id > 0")',
        ),
        (
            "[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: id.\n",
            "sales: NOT NULL constraint violated for column: id",
            '@hr.expect_or_quarantine("id", "id IS NOT NULL")',
        ),
        (
            '[DELTA_EXCEED_CHAR_VARCHAR_LIMIT] Value "ada" exceeds char/varchar type length limitation.',
            "sales: a value is longer than its CHAR or VARCHAR column",
            '@hr.expect_or_quarantine("NAME", "CONDITION")',
        ),
    ],
)
def test_a_row_that_violates_a_constraint_of_the_table_is_named(
    message: str, summary: str, expectation: str
) -> None:
    error = Failures(settings=None).as_error(Exception(message), FLOW)
    assert (error.code, error.transient, error.summary) == ("CONSTRAINT_VIOLATED", False, summary)
    assert error.remedies[1].endswith(f"of sales, with a line above its function:   {expectation}")
    assert error.facts[0] == "the row has id = -1" or "pos" not in message
    if "pos" in message:
        row = replace(Reading(3, ()), row='landing/a.json: {"id": -1}')
        facts = Failures(settings=None).as_error(Exception(message), FLOW, reading=row).facts
        assert (
            facts[:2] == (f"the row: {row.row}", "it is in batch 3")
            and violated_condition(message) == "NOT coalesce(id > 0, FALSE)"
        )
        in_sql = replace(FLOW, query=replace(FLOW.query, location=replace(HERE, is_sql=True)))
        remedies = Failures(settings=None).as_error(Exception(message), in_sql).remedies
        assert remedies[1].endswith("columns:   CONSTRAINT pos EXPECT (id > 0) ON VIOLATION QUARANTINE ROW")


def test_spark_s_message_is_shown_without_its_frame_and_its_advice() -> None:
    message = (
        "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: "
        "[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG] Not supported (e.g. rename). "
        "Please provide a 'schemaTrackingLocation'"
    )
    error = Failures(settings=None).as_error(Exception(message), FLOW)
    assert error.code == "UPSTREAM_SCHEMA_CHANGED"
    assert error.facts[-1].endswith("USE_SCHEMA_LOG] Not supported (e.g. rename).")
    assert "terminated" not in str(error)


def test_a_flow_whose_checkpoint_somebody_else_goes_on_with_has_lost_its_lease() -> None:
    assert code("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log")[0] == "LEASE_LOST"
    in_a_bucket = "Multiple streaming queries are concurrently using s3://lake/checkpoints/0001/offsets/3"
    assert code(in_a_bucket)[0] == "LEASE_LOST"
    chain = (
        f"[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: {in_a_bucket}. \n"
        "Caused by: org.apache.hadoop.fs.FileAlreadyExistsException: s3://lake/checkpoints/0001/offsets/3\n"
        "Caused by: org.apache.hadoop.fs.s3a.RemoteFileChangedException: Writing Object on offsets/3: At "
        "least one of the pre-conditions you specified did not hold (Service: S3, Status Code: 412)\n"
    )
    assert code(chain) == ("LEASE_LOST", False)


@pytest.mark.parametrize(
    ("answer", "status", "passes"),
    [
        ("NoSuchBucket", 404, True),
        ("S3", 403, True),
        ("S3", 503, True),
        ("S3", 412, False),
        ("NoSuchKey", 404, False),
    ],
)
def test_a_bucket_that_is_away_or_refuses_is_waited_for(answer: str, status: int, passes: bool) -> None:
    message = (
        "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: `checkpoints/0001/offsets/1': "
        "Writing Object on checkpoints/0001/offsets/1: software.amazon.awssdk.services.s3.model."
        f"{answer}Exception: an answer (Service: S3, Status Code: {status}, Request ID: null) (SDK Attempt "
        f"Count: 1):{answer}: an answer (Service: S3, Status Code: {status}) SQLSTATE: XXKST"
    )
    assert code(message) == (("STORAGE_UNREADABLE", True) if passes else ("FLOW_FAILED", False))


@pytest.mark.parametrize("operation", ["open s3://lake/t/1.json at 0 on", "re-open", "read", "GET"])
def test_a_file_that_was_replaced_since_it_was_listed_is_read_again(operation: str) -> None:
    changed = "org.apache.hadoop.fs.s3a.RemoteFileChangedException: {} `s3://lake/t/1.json': Change reported"
    assert code(changed.format(operation)) == ("STORAGE_UNREADABLE", True)
    for write in ("Writing Object on t/1.json", "PUT", "Completing multipart upload"):
        assert not code(changed.format(write))[1]


@pytest.mark.parametrize(
    "message",
    [
        "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
        "[DELTA_FAILED_TO_MERGE_FIELDS] Failed to merge fields 'a' and 'a'",
    ],
)
def test_what_does_not_pass_ends_the_flow(message: str) -> None:
    assert code(message) == ("FLOW_FAILED", False)


@pytest.mark.parametrize("word", ["DELTA_SOURCE_TABLE_IGNORE_CHANGES", "DELTA_SOURCE_IGNORE_DELETE"])
def test_an_upstream_that_was_rewritten_is_refused(word: str) -> None:
    error = Failures(settings=None).as_error(Exception(f"[{word}] Detected a data update"), FLOW)
    assert error.code == "UPSTREAM_REWRITTEN"
    assert any("full-refresh sales" in remedy for remedy in error.remedies)


def test_a_jvm_that_is_gone_is_named() -> None:
    error = Failures(settings=None).as_error(Py4JNetworkError("Answer from Java side is empty"), FLOW)
    assert error.code == "DRIVER_LOST"


def raised(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def test_a_connection_that_a_user_s_function_loses_is_not_the_jvm() -> None:
    lost = raised(lambda: socket.create_connection(("127.0.0.1", 1), timeout=5))
    assert isinstance(lost, ConnectionRefusedError)
    for failure, carried in ((lost, None), (Exception("[STREAM_FAILED]"), lost)):
        error = Failures(settings=None).as_error(failure, FLOW, carried)
        assert (error.code, error.transient) == ("FLOW_INTERRUPTED", True)


def test_a_connection_that_py4j_loses_is_the_jvm() -> None:
    from py4j.clientserver import ClientServerConnection, JavaParameters, PythonParameters

    gateway: Any = SimpleNamespace(pool=None)
    connection = ClientServerConnection(JavaParameters(port=1), PythonParameters(), gateway, None)
    lost = raised(connection.connect_to_java_server)
    assert isinstance(lost, ConnectionRefusedError)
    assert Failures(settings=None).as_error(lost, FLOW).code == "DRIVER_LOST"


def test_a_storage_that_cannot_be_read_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    read = Location(str(tmp_path / "folder"), LocalFiles()).read_bytes
    error = Failures(settings=None).as_error(raised(read), FLOW)
    assert (error.code, error.transient) == ("STORAGE_UNREADABLE", True)
    own = Failures(settings=None).as_error(raised(lambda: (tmp_path / "folder").read_bytes()), FLOW)
    assert own.code == "FLOW_FAILED", "a file of the user"


def test_the_batch_function_s_own_error_is_the_one_that_counts() -> None:
    carried = LeaseLostError("taken over")
    error = Failures(settings=None).as_error(Exception("[STREAM_FAILED]"), FLOW, carried)
    assert (error.code, error.summary) == ("LEASE_LOST", "taken over")
    assert error.location == FLOW.location, "it says which flow is meant"


def test_the_stack_trace_of_an_error_is_that_of_its_failure() -> None:
    failures, failure, carried = Failures(settings=None), Exception("[STREAM_FAILED]"), KeyError("id")
    assert failures.as_error(failure, FLOW).__cause__ is failure
    assert failures.as_error(failure, FLOW, carried).__cause__ is carried, "the exception of the batch"
    own = LeaseLostError("taken over")
    assert failures.as_error(own, FLOW).__cause__ is None, "it has a trace of its own"
    assert failures.as_error(failure, FLOW, own).__cause__ is None


def test_an_error_shows_the_root_of_spark_s_message_and_where_the_rest_is() -> None:
    message = (
        "[STREAM_FAILED] Query terminated with exception: Job aborted\n"
        "\tat org.apache.spark.Some.where(Some.scala:1)\n"
        "Caused by: java.lang.RuntimeException: outer\n"
        "Caused by: java.lang.IllegalStateException: the true reason\n"
        "\t... 34 more"
    )
    error = Failures(settings=None, log_file=Path("/logs/spark.log")).as_error(Exception(message), FLOW)
    assert "java.lang.IllegalStateException: the true reason" in error.facts
    assert any("/logs/spark.log" in fact for fact in error.facts)
    assert error.location == HERE


MALFORMED = (
    "[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected in record parsing: "
    "[null].\nParse Mode: FAILFAST."
)


def test_a_record_that_spark_s_own_parser_refuses_is_named_by_its_batch() -> None:
    source = SourceRange(
        index=0,
        kind="kafka",
        identity={"topics": {"orders": "id"}},
        start=KafkaOffsets({"orders": {0: 120, 1: 7}}),
        until=KafkaOffsets({"orders": {0: 164, 1: 7, 2: 3}}),
    )
    error = Failures(settings=None).as_error(Exception(MALFORMED), FLOW, reading=Reading(17, (source,)))
    assert (error.code, error.transient, error.location) == ("RECORD_UNPARSEABLE", False, HERE)
    assert "the record is in batch 17: orders/0 offsets 120 to 163, orders/2 offsets 0 to 2" in error.facts
    assert error.params == {"flow": "sales", "batch": 17}


@pytest.mark.parametrize(
    ("start", "until", "versions"),
    [((4, -1), (6, 2), "versions 4 to 6"), ((4, -1), (5, -1), "version 4"), (None, (6, -1), "version 5")],
)
def test_a_query_that_failed_is_told_with_its_last_batch(
    start: tuple[int, int] | None, until: tuple[int, int], versions: str
) -> None:
    ends = [
        None if at is None else DeltaPosition(table_id="t", version=at[0], index=at[1])
        for at in (start, until)
    ]
    source = SourceRange(0, "delta", {"path": "/lake/raw"}, *ends)
    error = Failures(settings=None).as_error(
        Exception("[CAST_INVALID_INPUT]"), FLOW, reading=Reading(17, (source,))
    )
    assert error.code == "FLOW_FAILED"
    assert f"the last batch that started is batch 17: delta /lake/raw, {versions}" in error.facts


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("[DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE] If you never deleted it", "UPSTREAM_LOG_EXPIRED"),
        ("[DELTA_MISSING_FILES_UNEXPECTED_VERSION] The stream from your Delta table", "UPSTREAM_LOG_EXPIRED"),
        ("[DELTA_VERSION_NOT_FOUND] Cannot time travel Delta table to version 9", "START_INVALID"),
        ("[DELTA_TIMESTAMP_GREATER_THAN_COMMIT] Timestamp 2999 is after", "START_INVALID"),
    ],
)
def test_a_table_that_does_not_go_back_so_far_is_named(message: str, expected: str) -> None:
    assert code(message) == (expected, False)


def expectation(name: str, condition: object, line: int) -> Expectation:
    where = SourceLocation("transformations/sales.py", line)
    return Expectation(name=name, condition=condition, text=str(condition), action="drop", location=where)


RULES = (
    expectation("short", "1/n > 0", 4),
    expectation("long", "1/n > 0 AND m", 5),
    expectation("udf", object(), 6),
)


@pytest.mark.parametrize(
    ("message", "fact"),
    [
        (
            "[DIVIDE_BY_ZERO] x\n== SQL (line 1, position 1) ==\n1/n > 0\n^^^\n",
            "`short` (transformations/sales.py:4)",
        ),
        (
            "[X]\n== SQL (line 1, position 1) ==\n1/n  > 0\n  AND m\n^^^\n",
            "`long` (transformations/sales.py:5)",
        ),
        (
            '[PYTHON_EXCEPTION]\nFile "/x/transformations/sales.py", line 6, in <lambda>\n',
            "`udf` (transformations/sales.py:6)",
        ),
        ("[DIVIDE_BY_ZERO] == DataFrame ==", "or by a condition of its expectations `short`, `long`, `udf`"),
    ],
)
def test_a_condition_that_raises_is_named(message: str, fact: str) -> None:
    error = Failures(settings=None).as_error(
        Exception("[STREAM_FAILED]"), FLOW, Exception(message), expectations=RULES
    )
    assert fact in error.facts[1]
    assert "STREAM_FAILED" not in error.facts[0], "Spark's wrapper is not the cause"


@pytest.mark.parametrize("name", ["a: {b}", 'say "no"', "back\\slash"])
def test_a_failed_row_of_a_view_names_its_expectation(name: str) -> None:
    text = f'x: [HEADRACE_EXPECTATION] {json.dumps(name)}: {{"id":1}} SQLSTATE: P0001'
    error = Failures(settings=None).as_error(Exception(text), FLOW)
    assert (error.code, error.params["expectations"]) == ("EXPECTATION_FAILED", [name])
    assert error.facts[0] == '{"id":1}'


def test_the_summary_of_a_failure_has_no_value_of_a_row(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    trace = f'Traceback (most recent call last):\n  File "{file}", line 3, in f\nValueError: bad ada@b.org\n'
    settings = ProjectSettings(
        name="shop",
        file=tmp_path / "headrace.yml",
        profile="dev",
        storage=Storage.at(tmp_path / "lake"),
        libraries=(),
    )
    error = Failures(settings=settings).as_error(Exception(trace), FLOW)
    assert error.summary == "sales failed: f() raised ValueError"
    assert error.facts[0] == "ValueError: bad ada@b.org"


def test_an_interruption_is_shown_by_its_cause() -> None:
    carried = Exception("[DELTA_CONCURRENT_APPEND.WITHOUT_HINT] another writer")
    error = Failures(settings=None).as_error(
        Exception("[STREAM_FAILED] Query [id = 1] terminated with exception"), FLOW, carried
    )
    assert error.code == "FLOW_INTERRUPTED"
    assert (
        error.summary
        == "sales was interrupted: Exception: [DELTA_CONCURRENT_APPEND.WITHOUT_HINT] another writer"
    )


@pytest.mark.parametrize(
    ("condition", "is_of_ansi"),
    [
        ("CAST_INVALID_INPUT", True),
        ("CANNOT_PARSE_TIMESTAMP", True),
        ("DIVIDE_BY_ZERO", True),
        ("ARITHMETIC_OVERFLOW.WITH_SUGGESTION", True),
        ("INVALID_ARRAY_INDEX", True),
        # Raised in both modes.
        ("INVALID_INDEX_OF_ZERO", False),
        ("CAST_OVERFLOW_IN_TABLE_INSERT", False),
    ],
)
def test_a_batch_that_the_older_mode_would_compute_names_the_setting(
    condition: str, is_of_ansi: bool
) -> None:
    error = Failures(settings=None).as_error(Exception(f"[{condition}] The value 'x' ..."), FLOW)
    assert error.code == "FLOW_FAILED"
    assert any("compatibility: {ansi: false}" in one for one in error.remedies) is is_of_ansi
    assert any("ANSI mode" in one for one in error.facts) is is_of_ansi


def test_a_batch_without_its_jdbc_driver_names_the_line_for_the_spec() -> None:
    text = (
        "org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] failed\n"
        "Caused by: java.lang.ClassNotFoundException: com.mysql.cj.jdbc.Driver\n\tat java.base/x.y(z)"
    )
    error = Failures(settings=None).as_error(Exception(text), FLOW)
    assert error.code == "FLOW_FAILED"
    assert error.summary.endswith("the JDBC driver was not found: com.mysql.cj.jdbc.Driver")
    assert "com.mysql:mysql-connector-j" in error.remedies[0]
    assert not any("java.base" in one for one in error.facts)


def test_a_failure_in_the_function_of_a_sink_has_the_line_that_raised_it(tmp_path: Path) -> None:
    file = tmp_path / "transformations" / "sinks.py"
    names: dict[str, Any] = {"__name__": "sinks"}
    exec(compile("def send(rows, batch):\n    raise ValueError('no such table')\n", str(file), "exec"), names)
    storage = Storage(Location(str(tmp_path / "lake"), LocalFiles()))
    spec = tmp_path / "headrace.yml"
    settings = ProjectSettings(name="shop", file=spec, profile="dev", storage=storage, libraries=())
    with pytest.raises(ValueError, match="no such table") as raised:
        names["send"](None, 0)
    error = Failures(settings=settings).as_error(Exception("a batch failed"), FLOW, raised.value)
    assert (error.code, str(error.location)) == ("FLOW_FAILED", "transformations/sinks.py:2")
