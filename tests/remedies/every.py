"""All situations, those of one pipeline together, and the codes that no test can provoke."""

from remedies import (
    clusters,
    commands,
    declarations,
    files,
    machine,
    queries,
    records,
    runs,
    shell,
    specs,
    storage,
)
from remedies.walk import SITUATIONS

__all__ = [
    "NOT_WALKED",
    "SITUATIONS",
    "clusters",
    "commands",
    "declarations",
    "files",
    "machine",
    "queries",
    "records",
    "runs",
    "shell",
    "specs",
    "storage",
]

SITUATIONS.sort(key=lambda one: (one.kind, one.spoils))

_PARENT = "the parent of other codes"
_TWO = "needs a process that is paused while another takes over: tests/proof/test_driver.py"
_REPEATED = "the run repeats the work by itself, and no user has to act"

NOT_WALKED = {
    "USAGE": _PARENT,
    "SETUP": _PARENT,
    "RUN": _PARENT,
    "REFUSED": _PARENT,
    "TRANSIENT": _PARENT,
    "ALERT_UNDELIVERED": "needs a server that does not take messages: tests/integration/test_alerts.py",
    "LEASE_LOST": _TWO,
    "BATCH_FENCED": _TWO,
    "COMMIT_LOST": "needs a process that is paused within Delta's commit: tests/proof/test_lost_commit.py",
    "QUARANTINE_CHANGED": "needs two commands that replay at once: tests/unit/sinks",
    "FILE_CHANGED": f"{_REPEATED}: tests/integration/test_files.py",
    "FLOW_INTERRUPTED": f"{_REPEATED}: tests/unit/run/test_failures.py",
    "SCHEMA_ID_UNKNOWN": f"{_REPEATED}: tests/integration/test_record_formats.py",
    "STREAM_NOT_FOUND": "needs a server of Kinesis: tests/integration/test_kinesis.py",
    "STREAM_RECREATED": "needs a server of Kinesis: tests/proof/test_kinesis.py",
    "KINESIS_REFUSED": "needs a server of Kinesis: tests/integration/test_kinesis.py",
    "KINESIS_UNREACHABLE": f"{_REPEATED}: tests/integration/test_kinesis.py",
    "SINK_ROW_REFUSED": "needs a database: tests/integration/test_postgres.py",
    "SINK_UNAVAILABLE": "needs a database: tests/proof/test_postgres.py",
    "STORAGE_UNSAFE": "needs a store that ignores conditions: tests/unit/storage/test_s3.py",
    "STORAGE_ACCESS_REFUSED": "needs an object store: tests/unit/storage/test_s3.py",
    "STORAGE_INCOMPLETE": "its command is typed in tests/unit/cli/test_storage.py",
    "STORAGE_COPY_REFUSED": "the user chooses another target: tests/unit/cli/test_storage.py",
    "STORAGE_COPY_FAILED": "its command is typed in tests/unit/cli/test_storage.py",
    "STORAGE_UNREADABLE": f"{_REPEATED}: tests/proof/test_unmounted.py",
    "OUT_OF_MEMORY": "would end the JVM of all tests: tests/unit/run/test_failures.py",
    "DRIVER_LOST": "would end the JVM of all tests: tests/proof/test_kill.py",
    "SPARK_START_FAILED": "a JVM that does not start: tests/unit/runtime/test_jvm.py",
    "DELTA_NOT_CONFIGURED": "needs another kind of session: tests/proof/test_sessions.py",
    "CONNECT_UNSUPPORTED": "needs another kind of session: tests/proof/test_sessions.py",
    "JAR_DOWNLOAD_FAILED": "needs a network that fails: tests/unit/runtime/test_fetch.py",
    "JAR_CORRUPT": "needs a mirror that changes files: tests/unit/runtime/test_fetch.py",
    "BROKER_START_FAILED": "a broker that ends at once: tests/integration/test_broker.py",
    "PRODUCE_FAILED": "needs a broker that refuses some records: tests/integration/test_broker.py",
    "CONSUME_FAILED": "needs a broker that fails under way: tests/unit/sources/kafka",
    "DEMO_PRODUCER_FAILED": "the processes of the demo: tests/unit/project/test_demo_producer.py",
    "DEMO_DRIVER_FAILED": "the processes of the demo: tests/unit/project/test_demo_driver.py",
    "STREAM_NOT_STOPPED": "a process that does not end: tests/unit/shell",
    "STREAM_NOT_STARTED": "a process that ends at once: tests/unit/shell",
    "READER_LAGS": "needs a flow that is behind for days: tests/unit/maintain/test_lagging.py",
    "INTERNAL": "a bug; whoever finds a situation mends it",
}
"""Why a code has no situation, by code."""
