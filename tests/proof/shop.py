"""A small real pipeline with an independent ledger, and the oracle that compares the two exactly."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa

from bucket_path import open_table
from disk import Disk
from headrace.errors import HeadraceError
from headrace.model.event_forms import Event
from headrace.model.names import TableName
from headrace.model.remedies import Remedies
from headrace.project.pipeline import Pipeline
from headrace.run.failpoints import FAIL_VARIABLE
from headrace.run.schedule import RunResult
from headrace.run.stop import StopSignal
from headrace.verify.report import Proof
from proof.lakes import Lake
from proof.ledger import ProducerLedger
from waiting import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNFORESEEN = {
    *("SECOND_DRIVER", "STORAGE_UNWRITABLE", "FLOW_FAILED", "TABLE_NAME_TAKEN"),
    *("RECORD_UNPARSEABLE", "RECORD_DRIFTED", "UPSTREAM_REWRITTEN", "UPSTREAM_LOG_EXPIRED", "START_INVALID"),
}
"""What only shows when a run is under way."""

BRONZE = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

PLACE = ["topic", "partition", "offset"]

@hr.table
def bronze():
    records = hr.read_kafka("{topic}", max_offsets_per_trigger={limit})
    return records.select("value", *[f"_source.{name}" for name in (*PLACE, "timestamp")])
"""

SILVER = """
@hr.table
def silver():
    sale = hr.parse_json("value", "id LONG, name STRING, sales DECIMAL(12,2)", at=PLACE)
    rows = spark.readStream.table("bronze").select(sale.alias("sale"), *PLACE, "timestamp")
    return rows.select("sale.*", *PLACE, "timestamp")

@hr.materialized_view
def gold():
    sales = spark.read.table("silver").groupBy("name")
    return sales.agg(F.sum("sales").alias("sales"), F.count("*").alias("n"))
"""

NAMED = """
import headrace as hr

hr.create_streaming_table("bronze")

@hr.append_flow(target="bronze", name="{flow}")
def read():
    records = hr.read_kafka("{topic}")
    place = [f"_source.{name}" for name in ("topic", "partition", "offset", "timestamp")]
    return records.select("value", *place)
"""


def named(flow: str) -> str:
    """The code of a bronze table that is fed by a flow of another name."""
    return NAMED.replace("{flow}", flow)


def rows(shop: Shop, path: str) -> list[dict[str, Any]]:
    """The rows of a table, by its path in the storage; also of a table with deletion vectors."""
    table = open_table(shop.lake.root / path)
    found = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t")
    # Its own `read_all` holds the interpreter's lock, which the proxy before a bucket needs.
    return pa.RecordBatchReader.from_stream(found).read_all().to_pylist()


def settings_of(spark: SparkSession) -> dict[str, str]:
    """A session's settings, but for those in which Delta itself keeps notes of what it has done."""
    notes = ("spark.databricks.delta.lastCommitVersionInSession", "spark.sql.parquet.fieldId.")
    return {key: value for key, value in spark.conf.getAll.items() if not key.startswith(notes)}


def tables_of(spark: SparkSession) -> list[str]:
    """The tables that the session knows in its default schema; no temporary views.

    Spark's own `listTables` needs compiled code, which the session of all tests does without.
    """
    found = spark.sql("SHOW TABLES IN default").where("NOT isTemporary").collect()
    return sorted(row.tableName for row in found)


def take_back_newest(spark: SparkSession, table: Path) -> None:
    """Take the newest commit out of a table's log by hand, and write on with another process's Spark.

    The checksum stays behind, and Delta derives those of later commits from it.
    """

    def forget() -> None:
        spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]

    newest = max((table / "_delta_log").glob("*.json"))
    claimed = json.loads(newest.with_suffix(".crc").read_text())["setTransactions"]
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    for value in "ab":
        forget()
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('somebody' = '{value}')")
    forget()
    derived = json.loads(max((table / "_delta_log").glob("*.crc")).read_text())
    assert derived["setTransactions"] == claimed, "Delta has found the fault itself"


def fail_at(run: Callable[[], RunResult], where: str, batch: int) -> None:
    """Run, and let the work fail at a point of the protocol in that batch, in place of a kill.

    Args:
        where: A point of `run/failpoints.py`, or ``flow/point``.
    """
    os.environ[FAIL_VARIABLE] = f"{where}:{batch}"
    try:
        errors = run().errors
    except HeadraceError as error:
        errors = (error,)
    finally:
        unfired = os.environ.pop(FAIL_VARIABLE, None)
    assert unfired is None, f"batch {batch} has not reached {where}"
    assert any("a test has ended" in str(error) for error in errors), errors


@dataclass
class Shop:
    """One pipeline in a folder of its own, with one topic and everything that was produced to it."""

    root: Path
    lake: Lake
    database: str
    topic: str
    partitions: int
    ledger: ProducerLedger
    spec: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    @property
    def storage(self) -> Disk:
        return Disk(self.lake.root)

    def table(self, name: str) -> Path:
        return self.storage.table(TableName(self.database, name))

    def checkpoints(self, flow: str = "bronze", table: str | None = None) -> Path:
        return self.storage.flow_checkpoints(TableName(self.database, table or flow), flow)

    def checkpoint(self, flow: str = "bronze") -> Path:
        """The flow's newest checkpoint."""
        return max(path for path in self.checkpoints(flow).iterdir() if path.name.isdigit())

    def write(self, *code: str, limit: int = 500_000) -> None:
        """Write the pipeline's files: the spec, and the code given, one part after another."""
        self.root.mkdir(parents=True, exist_ok=True)
        spec = {
            "name": "shop",
            "storage": str(self.lake.root),
            "database": self.database,
            "kafka": {"bootstrap.servers": self.ledger.bootstrap},
            "libraries": [{"file": "shop.py"}],
            "views": {"interval": "1 s"},
            **self.spec,
        }
        (self.root / "headrace.yml").write_text(json.dumps(spec))
        text = "".join(code or (BRONZE,))
        (self.root / "shop.py").write_text(text.replace("{topic}", self.topic).replace("{limit}", str(limit)))

    def produce(self, count: int) -> None:
        self.ledger.produce(self.topic, count, self.partitions)

    # Running it within this process.

    def run(
        self,
        *datasets: str,
        reset: str | None = None,
        rename_flow: dict[str, str] | None = None,
        continuous: bool = False,
        stop: StopSignal | None = None,
    ) -> RunResult:
        remedies = Remedies(reset=frozenset([reset] if reset else []), rename_flow=rename_flow or {})
        with Pipeline.load(self.root) as pipeline:
            return pipeline.run(
                datasets, remedies=remedies, emit=self.events.append, continuous=continuous, stop=stop
            )

    def run_well(self, *datasets: str, **arguments: Any) -> RunResult:
        result = self.run(*datasets, **arguments)
        assert result.outcome == "completed", [error.to_dict() for error in result.errors]
        return result

    def fail_at(self, where: str, batch: int) -> None:
        fail_at(self.run, where, batch)

    def refused(self, *datasets: str, **arguments: Any) -> HeadraceError:
        """Run, and return the one error that it ends with; no table may have changed.

        What is refused before anything is read, `plan` says too, by the same code.
        """
        before = self.versions()
        foreseen = None if arguments else self.foreseen(*datasets)
        try:
            errors = self.run(*datasets, **arguments).errors
        except HeadraceError as error:
            errors = (error,)
        assert len(errors) == 1, errors
        assert foreseen in (None, [errors[0].code]) or errors[0].code in UNFORESEEN, (foreseen, errors)
        after = self.versions()
        assert all(after[name] == version for name, version in before.items()), (before, after)
        return errors[0]

    def foreseen(self, *datasets: str) -> list[str]:
        """The codes of what `plan` says that a run would refuse."""
        try:
            with Pipeline.load(self.root) as pipeline:
                return [error.code for error in pipeline.plan(datasets).refusals]
        except HeadraceError as error:
            return [error.code]

    @contextmanager
    def running(self, *datasets: str) -> Iterator[StopSignal]:
        """Run continuously in a thread, until the block ends or the flows have."""
        stop, results, failures = StopSignal(), [], []

        def work() -> None:
            try:
                results.append(self.run(*datasets, continuous=True, stop=stop))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work, name="headrace-test-run")
        thread.start()
        try:
            yield stop
        finally:
            stop.request()
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        if failures:
            raise failures[0]

    def happened(self, kind: type[Event], **values: Any) -> list[Event]:
        """The events of a kind that hold these values."""
        return [
            event
            for event in list(self.events)
            if isinstance(event, kind) and all(getattr(event, key) == value for key, value in values.items())
        ]

    # The oracle.

    def versions(self) -> dict[str, int]:
        """The version of each table, from the names of its log's files."""
        found = {}
        for log in self.storage.tables.glob("*/*/_delta_log"):
            versions = [int(path.name[:20]) for path in log.glob("*.json") if path.name[:20].isdigit()]
            found[log.parent.name] = max(versions, default=-1)
        return found

    def bronze(self) -> list[tuple[str, int, int, bytes]]:
        rows = open_table(self.table("bronze")).to_pyarrow_table(
            columns=["topic", "partition", "offset", "value"]
        )
        return sorted(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))

    def check(self, *, silver: bool = False, proof: bool = True) -> Proof | None:
        """The tables hold exactly what the ledger says, and `verify` agrees."""
        expected = sorted((*record.place, record.value) for record in self.ledger.records)
        _compare("bronze", self.bronze(), expected)
        if silver:
            self._check_silver()
        return self.verify() if proof else None

    def verify(self) -> Proof:
        with Pipeline.load(self.root) as pipeline:
            found = pipeline.verify()
        assert found.proven, json.dumps(found.to_json(), indent=1, default=str)
        return found

    def _check_silver(self) -> None:
        names = ["topic", "partition", "offset", "id", "name", "sales"]
        rows = open_table(self.table("silver")).to_pyarrow_table(columns=names)
        found = sorted(zip(*(rows[name].to_pylist() for name in names), strict=True))
        sales = [(*record.place, record.sale) for record in self.ledger.records]
        _compare("silver", found, sorted((*p, s["id"], s["name"], s["sales"]) for *p, s in sales))
        sums: dict[str, Decimal] = {}
        counts: Counter[str] = Counter()
        for record in self.ledger.records:
            sums[record.sale["name"]] = sums.get(record.sale["name"], Decimal()) + record.sale["sales"]
            counts[record.sale["name"]] += 1
        gold = open_table(self.table("gold")).to_pyarrow_table().to_pylist()
        _compare(
            "gold",
            sorted((row["name"], row["sales"], row["n"]) for row in gold),
            sorted((name, total, counts[name]) for name, total in sums.items()),
        )

    def keep_copy(self, flow: str = "bronze") -> Path:
        """A copy of the flow's checkpoints, as a backup would hold them."""
        copy = self.root / f"backup-{flow}"
        shutil.copytree(self.checkpoints(flow), copy)
        return copy

    def restore_copy(self, copy: Path, flow: str = "bronze") -> None:
        shutil.rmtree(self.checkpoints(flow))
        shutil.copytree(copy, self.checkpoints(flow))


def _compare(table: str, found: list[Any], expected: list[Any]) -> None:
    if found == expected:
        return
    missing, extra = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    raise AssertionError(
        f"{table}: {len(found)} rows for {len(expected)} records; "
        f"{sum(missing.values())} lost, such as {list(missing)[:5]}; "
        f"{sum(extra.values())} doubled or foreign, such as {list(extra)[:5]}"
    )
