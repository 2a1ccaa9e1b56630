"""A pipeline on a cluster: a real master, and workers whose environment is that of another machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import psutil
import pytest

from cluster import Cluster
from headrace.cli.main import run as run_command
from proof.driver import start
from proof.shop import Shop
from waiting import until

PYTHON = "python3.11"

GREETINGS = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F
from shops.names import greeting

PLACE = ["topic", "partition", "offset"]
SALE = "id LONG, name STRING, sales DECIMAL(12,2)"

@F.udf("string")
def greeted(name):
    from dateutil.easter import easter
    from shops import later

    return later.again(greeting(name)) + str(easter(2026))

@hr.table
def bronze():
    records = hr.read_kafka("{topic}")
    sale = hr.parse_json("value", SALE, at=[f"_source.{name}" for name in PLACE])
    rows = records.select("value", sale.alias("sale"), *[f"_source.{name}" for name in (*PLACE, "timestamp")])
    return rows.withColumn("said", greeted("sale.name")).withColumn("name", F.col("sale.name"))

hr.create_streaming_table("people")
hr.create_auto_cdc_flow(
    target="people", source="bronze", keys=["name"], sequence_by=F.struct("partition", "offset"),
    column_list=["name", "said"],
)
"""

GATED = """
import headrace as hr
from pyspark.sql import functions as F

PLACE = ["topic", "partition", "offset", "timestamp"]

@F.udf("binary", useArrow=False)
def gated(value):
    import os, time
    from pathlib import Path
    from dateutil.easter import easter
    from pyspark import TaskContext

    gate = Path("{gate}")
    # The parent of a worker is a daemon that the executor has started.
    (gate / str(TaskContext.get().taskAttemptId())).write_text(str(os.getppid()))
    while not (gate / "open").exists():
        time.sleep(0.05)
    return value

@hr.table
def bronze():
    records = hr.read_kafka("{topic}")
    return records.select(gated("value").alias("value"), *[f"_source.{name}" for name in PLACE])
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def make(
    cluster: Cluster, make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Shop]:
    """Makes a pipeline whose profile ``prod`` is the cluster."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")

    def made(code: str, configuration: dict[str, str] | None = None, **settings: Any) -> Shop:
        profile = {
            "runtime": {"master": cluster.address, "memory": "512m"},
            "configuration": {
                "spark.driver.host": "127.0.0.1",
                "spark.executor.memory": "512m",
                "spark.pyspark.python": PYTHON,
                "spark.sql.shuffle.partitions": "2",
                **(configuration or {}),
            },
            **settings,
        }
        shop = make_shop(partitions=2, profiles={"prod": profile})
        shop.write(code)
        return shop

    return made


def test_code_and_packages_reach_workers_of_another_environment(
    cluster: Cluster, make: Callable[..., Shop]
) -> None:
    shop = make(GREETINGS, cluster={"packages": ["python-dateutil", "pyarrow"]})
    (modules := shop.root / "shops").mkdir()
    (modules / "names.py").write_text("def greeting(name):\n    return f'Hello {name}'\n")
    (modules / "later.py").write_text("def again(text):\n    return text + '! '\n")
    shop.produce(500)
    with start(shop, "--profile", "prod", verb=("submit",)) as driver:
        until(lambda: bool(cluster.executors()) or driver.process.poll() is not None, "an executor works")
        assert driver.end() == 0, driver.said()
    shop.check()
    names = {record.sale["name"] for record in shop.ledger.records}
    people = deltalake.DeltaTable(shop.table("people")).to_pyarrow_table().to_pylist()
    said = sorted((one["name"], one["said"]) for one in people)
    assert said == sorted((name, f"Hello {name}! 2026-04-05") for name in names)
    until(lambda: not cluster.executors(), "the executors have gone")


class Gate:
    """Holds the tasks of a pipeline until it is opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def tasks(self) -> set[str]:
        """The attempts of tasks since the gate was closed."""
        return {path.name for path in self._folder.iterdir()} - {"open"}

    def executors(self) -> set[int]:
        """The process ids of the executors of these attempts."""
        daemons = [(self._folder / name).read_text() for name in self.tasks()]
        return {psutil.Process(int(daemon)).ppid() for daemon in daemons if daemon}

    def close(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()

    def open(self) -> None:
        (self._folder / "open").touch()


def probe(shop: Shop) -> int:
    """The exit code of the command that probes call."""
    named = ["--project", str(shop.root), "--profile", "prod"]
    return run_command(["status", *named, "--exit-code"])


def test_executors_follow_the_backlog(cluster: Cluster, make: Callable[..., Shop], tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    shop = make(
        GATED.replace("{gate}", str(tmp_path / "gate")),
        {"spark.executor.cores": "1"},
        cluster={
            "packages": ["python-dateutil"],
            "executors": {"min": 1, "max": 2, "backlog": "2 s", "idle": "3 s"},
        },
    )
    with start(shop, "--profile", "prod", "--continuous") as driver:

        def await_executors(number: int) -> None:
            until(
                lambda: len(cluster.executors()) == number or driver.process.poll() is not None,
                f"the run has {number} executors",
            )
            assert driver.process.poll() is None, driver.said()

        # A standalone cluster starts on every worker; those above `min` are given back.
        await_executors(2)
        await_executors(1)
        shop.produce(300)
        until(lambda: bool(gate.tasks()), "a task waits")
        await_executors(2)
        gate.open()
        await_executors(1)
        until(lambda: len(shop.bronze()) == 300, "the rows are there")
        assert probe(shop) == 0
        driver.process.terminate()
        assert driver.end() == 143, driver.said()
    assert probe(shop) == 1, "a probe has to find out that the run was stopped"
    shop.check()
    events = deltalake.DeltaTable(shop.root / "lake" / "events").to_pyarrow_table().to_pylist()
    decisions = [event["message"] for event in events if event["event_type"] == "cluster"]
    assert [one.partition(":")[0] for one in decisions] == [
        "The run wants 1 executor instead of 2",
        "The run wants 2 executors instead of 1",
        "The run wants 1 executor instead of 2",
    ], decisions
    assert "a batch takes" in decisions[1]


def test_a_lost_executor_a_lost_worker_and_a_killed_driver_lose_and_double_nothing(
    cluster: Cluster, make: Callable[..., Shop], tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    code = GATED.replace("{gate}", str(tmp_path / "gate"))
    shop = make(code, cluster={"packages": ["python-dateutil"]})

    def await_task() -> int:
        """Wait until the gate holds a task of a batch, and return its worker's number."""
        until(lambda: bool(gate.executors()) or driver.process.poll() is not None, "a task is held")
        assert driver.process.poll() is None, driver.said()
        held = gate.executors()
        return next(number for number, one in cluster.executors().items() if one.pid in held)

    def await_rows() -> None:
        wanted = len(shop.ledger.records)
        until(lambda: len(shop.bronze()) == wanted or driver.process.poll() is not None, "the rows are there")
        assert driver.process.poll() is None, driver.said()

    # What the gate holds has not ended, so each fault comes in the middle of a batch.
    shop.produce(300)
    with start(shop, "--profile", "prod", "--continuous") as driver:
        number, attempts = await_task(), gate.tasks()
        killed = cluster.executors()[number]
        killed.kill()
        until(lambda: cluster.executors().get(number, killed).pid != killed.pid, "another executor starts")
        gate.open()
        await_rows()
        assert gate.tasks() > attempts, "no task was repeated"

        gate.close()
        shop.produce(300)
        cluster.lose_worker(await_task())
        assert len(cluster.executors()) == 1
        gate.open()
        await_rows()

        gate.close()
        before = len(shop.bronze())
        shop.produce(300)
        await_task()
        driver.kill("both")
        driver.wait_until_gone()
    assert len(shop.bronze()) == before, "the batch was committed before the kill"
    gate.open()
    until(lambda: not cluster.executors(), "the executor of the killed driver has ended")
    with start(shop, "--profile", "prod", name="again") as driver:
        assert driver.end() == 0, driver.said()
    shop.check()
    checkpoint = shop.checkpoint()
    assert {path.name for path in (checkpoint / "commits").glob("[0-9]*")} >= {"0", "1", "2"}
