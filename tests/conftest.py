"""What tests need that is slow to make: one Spark session and one broker for the whole run.

Nothing here starts before a test asks for it, so unit tests start no JVM.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tools.choose_proofs import LONG

from checked_json import checking
from headrace.cli import main as command_line
from headrace.model.kafka_settings import EMBEDDED, KafkaConnection
from headrace.model.project import ProjectSettings
from headrace.model.secrets import Redactor
from headrace.runtime import aot
from headrace.runtime.broker import Broker
from headrace.runtime.defaults import available_cores
from headrace.runtime.engine.client import stop_engines
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.gateway import release_unused
from headrace.runtime.jars import find_java, locked_jars
from headrace.runtime.session import RunningSpark, open_spark
from headrace.storage.layout import Storage
from headrace.storage.s3.spark import build_support
from object_server import ObjectServer, running_server
from opensearch_server import OpenSearchServer, missing_reason, running_opensearch
from postgres_server import Database, PostgresServer, running_postgres
from redis_server import running_redis
from secured_broker import SecuredBroker
from workers import choose_workers, free_memory, in_blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kinesis_server import KinesisServer

TopicFactory = Callable[..., str]

PASSWORD = 'pl4nted "pa\\ss=wörd%'
"""Of the secured broker's user `shop`; with everything that has to be escaped somewhere."""

CONNECTION_STRING = "Endpoint=sb://shop.test/;SharedAccessKeyName=all;SharedAccessKey=pl4nted-key="
"""Of the secured broker's user `$ConnectionString`, as Azure Event Hubs has it."""

PLANTED = (PASSWORD, "pl4nted/in-a-file+x", "pl4nted-in-the-spec", "pl4nted-in-the-code")
"""Secrets that must not be seen anywhere; the session of all tests keeps them out of Spark's log."""

_MANY = 30
"""From so many tests with Spark on, making the cache that halves its starts pays within the run."""

_TRAINING_TIMEOUT_S = 300.0

_SHORT_LIVED = "-XX:TieredStopAtLevel=1"
"""Java's option for the processes that tests start: compile code fast. A process for one run takes 19 s of
processor time instead of 30. The session of all tests lives long enough for code that is compiled for speed:
after a minute its tests take a tenth less, later a quarter."""

_ENGINE_VARIABLE = "HEADRACE_TEST_ENGINE"
"""``on``: the processes that tests start share an engine."""

_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""For the session of all tests, whose queries run once over a few rows each: to generate and compile
code for them was a fifth of its processor time. Processes that tests start keep Spark's defaults."""

_SECONDS = Path(__file__).with_name("seconds.json")
"""The seconds of each file with Spark, summed over its tests, with three processes on two cores."""

_RECORD = "--record-seconds"

_making: subprocess.Popen[bytes] | None = None
"""Makes the cache that halves the starts of Spark, while tests run that need none."""


def needs_spark(item: pytest.Item) -> bool:
    return "unit" not in item.path.parts


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chosen", default="", help="Files whose proofs get the marker `chosen`.")
    parser.addoption(_RECORD, action="store_true", help="Write the seconds of each file to seconds.json.")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(_RECORD) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder())


class _Recorder:
    """Adds up the seconds of tests by file, in the process that hands the tests out."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0].removeprefix("tests/")
        if not file.startswith("unit/"):
            self._seconds[file] += report.duration

    def pytest_sessionfinish(self) -> None:
        known = read_seconds() | {file: round(seconds, 1) for file, seconds in self._seconds.items()}
        present = {file: known[file] for file in sorted(known) if (_SECONDS.parent / file).is_file()}
        _SECONDS.write_text(json.dumps(present, indent=0) + "\n", encoding="utf-8")


def read_seconds() -> dict[str, float]:
    known: dict[str, float] = json.loads(_SECONDS.read_text(encoding="utf-8"))
    return known


def pytest_xdist_auto_num_workers() -> int:
    """Answers `-n auto`."""
    return choose_workers(available_cores(), free_memory())


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Marks the proofs before tests are selected; then orders the selected tests for several processes."""
    chosen = set(config.getoption("--chosen").split(","))
    for item in items:
        is_long = item.path.name in LONG and needs_spark(item)
        if "proof" in item.path.parts or is_long:
            item.add_marker("proof")
        if item.path.relative_to(_SECONDS.parent).as_posix() in chosen and item.get_closest_marker("proof"):
            item.add_marker("chosen")
    yield
    if hasattr(config, "workerinput"):
        items[:] = in_blocks(items, file_with_spark, config.workerinput["workercount"], read_seconds())


def file_with_spark(item: pytest.Item) -> str | None:
    """Returns the file of a test that needs Spark, relative to the folder of the tests."""
    return item.path.relative_to(_SECONDS.parent).as_posix() if needs_spark(item) else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch jars and begin to make the AOT cache before the clock of any test runs."""
    global _making
    slow = [item for item in session.items if needs_spark(item)]
    if not slow or session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        jars = ensure_jars("spark", "broker", "s3")
    java, spark_jars = find_java(), jars[: len(locked_jars("spark"))]
    if len(slow) >= _MANY and java.major >= aot.FIRST_JAVA and not aot.find_cache(java, spark_jars):
        command = [*aot.training_command(aot.cache_path(java, spark_jars)), "--now"]
        quiet = subprocess.DEVNULL
        _making = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if needs_spark(item):
        _await_cache()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    if needs_spark(item):
        release_unused()


def pytest_sessionfinish() -> None:
    if _making is not None and _making.poll() is None:
        _making.terminate()
        _making.wait(30)


def _await_cache() -> None:
    """Wait for the cache: this process makes it, or another of those that share the tests."""
    global _making
    if _making is None:
        return
    making, _making = _making, None
    try:
        making.wait(_TRAINING_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # The tests pass without it, only later.
        making.kill()
        making.wait()
    with aot.cache_path(find_java(), ensure_jars("spark")).with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.fixture(scope="session", autouse=True)
def _own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests share the jars of the machine's cache, and nothing else of the user's."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HEADRACE_BROKER_DIR", str(tmp_path_factory.mktemp("embedded-broker")))
    # Each process that a test starts would compile all modules: half a second of its processor time.
    patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    patch.setenv("HEADRACE_LOGS", str(tmp_path_factory.mktemp("logs")))
    # A cache made in the background would take the cores from the tests.
    patch.setenv("HEADRACE_AOT", "use")
    patch.setenv("JAVA_TOOL_OPTIONS", _SHORT_LIVED)
    # Tests of kills need processes that end; the tests of the engine switch it on.
    patch.setenv("HEADRACE_ENGINE", os.environ.get(_ENGINE_VARIABLE, "off"))
    patch.setattr(command_line, "build_output", checking(command_line.build_output))
    patch.setenv("HEADRACE_ENGINE_DIR", str(tmp_path_factory.mktemp("engines")))
    yield
    stop_engines()
    patch.undo()


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[[str], ProjectSettings]:
    """Settings of a pipeline with its storage in ``lake``, by the addresses of its brokers."""

    def make(servers: str = EMBEDDED) -> ProjectSettings:
        return ProjectSettings(
            name="shop",
            file=tmp_path / "headrace.yml",
            profile="dev",
            storage=Storage.at(tmp_path / "lake"),
            libraries=(),
            kafka=KafkaConnection({"bootstrap.servers": servers}),
        )

    return make


@pytest.fixture(scope="session")
def running_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSpark]:
    """The session of all tests, with its JVM."""
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    conf = {"spark.sql.shuffle.partitions": "2", "spark.hadoop.planted.secret": PLANTED[2], **_INTERPRETED}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAVA_TOOL_OPTIONS")
        running = open_spark(
            "headrace-tests",
            master="local[2]",
            memory="1536m",
            conf=conf,
            log_file=log_file,
            redactor=Redactor(PLANTED),
            # Each test of object storage adds its buckets.
            storage=build_support({}, {}),
        )
    yield running
    running.stop()


@pytest.fixture(scope="module", autouse=True)
def forgotten_tables() -> Iterator[None]:
    """Let Spark's catalog and Delta forget the tables of a module.

    Runs register their tables in the catalog of their session, which all modules share. Delta would keep the
    state of each table in memory for an hour.
    """
    yield
    forget_tables()


def forget_tables() -> None:
    """Let Spark's catalog and Delta forget the tables of the default schema."""
    loaded = sys.modules.get("pyspark.core.context")
    context = None if loaded is None else loaded.SparkContext._active_spark_context
    if context is None:
        return
    jvm = context._jvm
    session = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession()
    if session.isDefined():
        catalog = session.get().sharedState().externalCatalog()
        tables = catalog.listTables("default")
        for name in [tables.apply(number) for number in range(tables.size())]:
            catalog.dropTable("default", name, True, False)
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.fixture(scope="session")
def spark(running_spark: RunningSpark) -> SparkSession:
    """A Spark session with Delta; shared by all tests, so leave its settings as they are."""
    return running_spark.spark


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """A real S3 server."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A real PostgreSQL server."""
    with running_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real Redis server."""
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.address


@pytest.fixture(scope="session")
def kinesis_server() -> Iterator[KinesisServer]:
    """A server of Kinesis in this process."""
    from kinesis_server import serve

    with serve() as server:
        yield server


@pytest.fixture(scope="session")
def search_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearchServer]:
    """A real OpenSearch server."""
    if (reason := missing_reason()) is not None:
        pytest.skip(reason)
    with running_opensearch(tmp_path_factory.mktemp("opensearch")) as server:
        yield server


@pytest.fixture
def database(postgres_server: PostgresServer) -> Database:
    """A database of one test."""
    return postgres_server.new_database()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A real broker with data of its own: the same one that `embedded` means in these tests."""
    running = Broker(Path(os.environ["HEADRACE_BROKER_DIR"]), bound=True)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def bootstrap(broker: Broker) -> str:
    """The broker's address."""
    return broker.start()


@pytest.fixture(scope="session")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A real broker with logins and certificates beside the plain listener."""
    users = {"shop": PASSWORD, "guest": "another password", "$ConnectionString": CONNECTION_STRING}
    running = SecuredBroker(tmp_path_factory.mktemp("secured") / "kafka", users)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def _topic_numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def topic(broker: Broker, _topic_numbers: Iterator[int], request: pytest.FixtureRequest) -> TopicFactory:
    """Makes fresh topics: ``topic(partitions=4, **{"retention.ms": "1000"})`` gives a name."""

    def make(partitions: int = 1, **config: str) -> str:
        test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:80]
        name = f"{test}-{next(_topic_numbers)}"
        broker.create_topic(name, partitions, config)
        return name

    return make
