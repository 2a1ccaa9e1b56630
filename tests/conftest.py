"""What tests need that is slow to make: one Spark session and one broker for the whole run.

Nothing here starts before a test asks for it, so unit tests start no JVM.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.runtime.broker import Broker
from headrace.runtime.session import RunningSpark, open_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TopicFactory = Callable[..., str]


@pytest.fixture(scope="session", autouse=True)
def _own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests share the jars of the machine's cache, and nothing else of the user's."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HEADRACE_BROKER_DIR", str(tmp_path_factory.mktemp("embedded-broker")))
    # A cache made in the background would take the cores from the tests.
    patch.setenv("HEADRACE_AOT", "use")
    yield
    patch.undo()


@pytest.fixture(scope="session")
def running_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSpark]:
    """The session of all tests, with its JVM."""
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    conf = {"spark.sql.shuffle.partitions": "2"}
    running = open_spark("headrace-tests", master="local[2]", memory="1g", conf=conf, log_file=log_file)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def spark(running_spark: RunningSpark) -> SparkSession:
    """A Spark session with Delta; shared by all tests, so leave its settings as they are."""
    return running_spark.spark


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
