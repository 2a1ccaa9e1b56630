"""A pipeline on a cluster: a real master, and workers whose environment is that of another machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import psutil
import pytest

from cluster import Cluster
from headrace.cli.main import run as run_command
from proof.driver import start
from proof.shop import Shop, rows
from waiting import DEADLINE_S, until

PYTHON = f"python3.{sys.version_info.minor}"
SLOW_S = 2 * DEADLINE_S  # driver, executors and Python workers start one after the other

GREETINGS = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F
from shops.names import greeting

PLACE = ["topic", "partition", "offset"]
SALE = "id LONG, name STRING, sales DECIMAL(12,2)"

@F.udf("string", useArrow=False)
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
    shop = make(GREETINGS, cluster={"packages": ["python-dateutil"]})
    (modules := shop.root / "shops").mkdir()
    (modules / "names.py").write_text("def greeting(name):\n    return f'Hello {name}'\n")
    (modules / "later.py").write_text("def again(text):\n    return text + '! '\n")
    shop.produce(500)
    with start(shop, "--profile", "prod", verb=("submit",)) as driver:
        assert driver.process.wait(SLOW_S) == 0, driver.said()
    shop.check()
    names = {record.sale["name"] for record in shop.ledger.records}
    said = sorted((one["name"], one["said"]) for one in rows(shop, shop.table("people")))
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


def test_executors_follow_the_backlog_and_a_lost_one_a_lost_worker_and_a_killed_driver_double_nothing(
    cluster: Cluster, make: Callable[..., Shop], tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    shop = make(
        GATED.replace("{gate}", str(tmp_path / "gate")),
        {"spark.executor.cores": "1"},
        cluster={
            "packages": ["python-dateutil"],
            "executors": {"min": 1, "max": 2, "backlog": "2 s", "idle": "3 s"},
        },
    )

    def wait(holds: Callable[[], bool], what: str) -> None:
        until(lambda: holds() or driver.process.poll() is not None, what, SLOW_S)
        assert driver.process.poll() is None, driver.said()

    def await_task() -> int:
        """Wait until the gate holds a task of a batch, and return its worker's number."""
        wait(lambda: bool(gate.executors()), "a task is held")
        held = gate.executors()
        return next(number for number, one in cluster.executors().items() if one.pid in held)

    def await_rows() -> None:
        wait(lambda: len(shop.bronze()) == len(shop.ledger.records), "the rows are there")

    # What the gate holds has not ended, so each fault comes in the middle of a batch.
    shop.produce(300)
    with start(shop, "--profile", "prod", "--continuous") as driver:
        number = await_task()
        wait(lambda: len(cluster.executors()) == 2, "a long batch gets a second executor")
        attempts = gate.tasks()
        killed = cluster.executors()[number]
        killed.kill()
        wait(lambda: cluster.executors().get(number, killed).pid != killed.pid, "another executor starts")
        gate.open()
        await_rows()
        assert gate.tasks() > attempts, "no task was repeated"
        wait(lambda: len(cluster.executors()) == 1, "an idle run gives an executor back")
        named = ["--project", str(shop.root), "--profile", "prod"]
        assert run_command(["status", *named, "--check"]) == 0

        gate.close()
        shop.produce(300)
        cluster.lose_worker(await_task())
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
    until(lambda: not cluster.executors(), "the executor of the killed driver has ended", SLOW_S)
    with start(shop, "--profile", "prod", name="again") as driver:
        assert driver.process.wait(SLOW_S) == 0, driver.said()
    shop.check()
    assert {path.name for path in (shop.checkpoint() / "commits").glob("[0-9]*")} >= {"0", "1", "2"}
    events = deltalake.DeltaTable(shop.root / "lake" / "events").to_pyarrow_table().to_pylist()
    rows = sorted(
        (event["timestamp"], event["message"]) for event in events if event["event_type"] == "cluster"
    )
    decisions = [message for _, message in rows]
    assert decisions[0].startswith("The run wants 1 executor instead of"), decisions
    assert decisions[1].startswith("The run wants 2 executors instead of 1: flow bronze: "), decisions
    assert decisions[2].startswith("The run wants 1 executor instead of 2: for 3.0 s, fewer"), decisions
