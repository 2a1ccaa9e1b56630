"""Streams of any format that Spark can open: a Python data source of the user's, and Spark's own `rate`."""

from __future__ import annotations

import shutil
from pathlib import Path

import deltalake
import pytest

from headrace.errors import HeadraceError
from headrace.project.pipeline import Pipeline
from headrace.run.update import RunResult

SPEC = "name: counters\nstorage: ./lake\ndatabase: {schema}\nlibraries:\n  - file: counters.py\n"
CODE = """
import headrace as hr
from headrace import spark
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

class Span(InputPartition):
    def __init__(self, first, end):
        self.first, self.end = first, end

class Reader(DataSourceStreamReader):
    def __init__(self, path):
        self.path = path

    def initialOffset(self):
        return {"next": 0}

    def latestOffset(self):
        with open(self.path) as file:
            return {"next": int(file.read())}

    def partitions(self, start, end):
        return [Span(start["next"], end["next"])]

    def read(self, span):
        for number in range(span.first, span.end):
            yield (number,)

class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "id LONG"

    def streamReader(self, schema):
        return Reader(self.options["file"])

spark.dataSource.register(Numbers)

@hr.table
def counted():
    return spark.readStream.format("numbers").option("file", "{file}").load()

@hr.table
def ticks():
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
"""


class Counters:
    """A pipeline over two such streams."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.schema = f"counters_{root.name[-8:].replace('-', '_')}".lower()
        self.file = root / "count"
        (root / "headrace.yml").write_text(SPEC.format(schema=self.schema))
        (root / "counters.py").write_text(CODE.replace("{file}", str(self.file)))

    def count(self, number: int) -> None:
        self.file.write_text(str(number))

    def run(self, *datasets: str) -> RunResult:
        with Pipeline.load(self.root) as pipeline:
            return pipeline.run(datasets)

    def ids(self) -> list[int]:
        table = deltalake.DeltaTable(self.root / "lake" / "tables" / self.schema / "counted")
        return sorted(table.to_pyarrow_table()["id"].to_pylist())


@pytest.fixture
def counters(tmp_path: Path) -> Counters:
    return Counters(tmp_path)


def test_a_stream_of_any_format_is_read_exactly_once_and_its_ranges_are_proven(counters: Counters) -> None:
    counters.count(5)
    first = counters.run()
    assert first.outcome == "completed", [error.to_dict() for error in first.errors]
    assert counters.ids() == list(range(5))
    counters.count(8)
    assert counters.run("counted").outcome == "completed"
    assert counters.run("counted").outcome == "completed"
    assert counters.ids() == list(range(8))
    with Pipeline.load(counters.root) as pipeline:
        proof = pipeline.verify()
        lags = [flow.lag for dataset in pipeline.status().datasets for flow in dataset.flows]
    grades = {flow.flow: [g.verdict for g in flow.grades] for one in proof.datasets for flow in one.flows}
    assert grades["counted"] == ["proven", "proven", "unjudged"], proof.to_json()
    assert lags == [None, None]


def test_a_lost_checkpoint_of_such_a_stream_is_refused_with_a_full_refresh(counters: Counters) -> None:
    counters.count(5)
    assert counters.run("counted").outcome == "completed"
    shutil.rmtree(counters.root / "lake" / "checkpoints")
    (error,) = counters.run("counted").errors
    assert isinstance(error, HeadraceError) and error.code == "CHECKPOINT_LOST"
    assert error.remedies == (f"read everything again:   headrace full-refresh {counters.schema}.counted",)
    assert counters.ids() == list(range(5))
