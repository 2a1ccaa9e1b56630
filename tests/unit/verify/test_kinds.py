"""A new kind of source is a range, a reader and one line in the registry; it is judged like any other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from lake import HandFlow, Lake, LakeTable, rows

from headrace.model.ranges import RecordCoordinates
from headrace.verify import registry
from headrace.verify.checkpoints import Lineage
from headrace.verify.evidence import Evidence
from headrace.verify.proof import verify_pipeline
from headrace.verify.reader import Extent, Found, SourceReader, SourceRecord
from headrace.verify.report import GradeReport
from headrace.verify.source_range import DeclaredRange, Kinds, Partition, SourceRange, Spans
from unit.verify.conftest import HandBroker, Verifier

Shards = dict[str, set[int]]
"""The numbers of the records that each shard holds."""

COLUMNS = {"headrace.coordinates": '{"shard": "_source.topic", "number": "_source.offset"}'}


class ShardRange(SourceRange):
    """Positions are the next number of each shard."""

    coordinates = RecordCoordinates.of(shard="STRING", number="BIGINT")


class ShardReader(SourceReader):
    range = ShardRange
    system = "the shards"
    holder = "the shard"

    def extent(self, lineage: Lineage, partition: Partition, identity: str | None) -> Extent | str:
        held = self.context.access["shards"].get(partition[0])
        return Extent(0, max(held) + 1) if held else f"the shard {partition[0]} is gone"

    def find(self, evidence: Evidence, asked: Mapping[Partition, Spans]) -> Mapping[Partition, Found]:
        shards: Shards = self.context.access["shards"]
        return {
            key: Found(
                Spans.of_offsets(
                    np.array([n for n in sorted(shards[key[0]]) if _holds(spans, n)], dtype=np.int64)
                )
            )
            for key, spans in asked.items()
        }


def _holds(spans: Spans, number: int) -> bool:
    return any(low <= number < high for low, high in spans.pairs())


@pytest.fixture
def flow(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> HandFlow:
    monkeypatch.setitem(registry.READERS, "shards", ShardReader)
    return lake.table(coordinates=False, properties=COLUMNS).flow()


def append(
    flow: HandFlow, shard: str, low: int, high: int, content: Iterable[int] | None = None, **batch: Any
) -> None:
    """Commit a batch of one shard; by default with all rows."""
    until = {"index": 0, "kind": "shards", "identity": {}, "from": {shard: low}, "until": {shard: high}}
    flow.append_from([until], rows(range(low, high) if content is None else content, topic=shard), **batch)


def judge(lake: Lake, shards: Shards) -> dict[str, GradeReport]:
    (dataset,) = verify_pipeline(lake.settings, access={"shards": shards}, systems=lake.systems()).datasets
    (flow,) = dataset.flows
    return {report.grade: report for report in flow.grades}


def places(report: GradeReport) -> list[tuple[str, Any]]:
    return [(one.code, {key: one.place[key] for key in ("shard", "ranges")}) for one in report.findings]


def test_a_table_that_holds_each_record_once_is_proven(lake: Lake, flow: HandFlow) -> None:
    append(flow, "a", 0, 6)
    append(flow, "a", 6, 10)
    grades = judge(lake, {"a": set(range(10))})
    assert {grade: report.verdict for grade, report in grades.items()} == dict.fromkeys(grades, "proven")
    assert grades["ranges"].text == "1 partition, 10 offsets, 2 commits, no gap, no overlap"
    assert grades["records"].text == "10 read from the shards = 10 in the table"


def test_a_lost_and_a_duplicate_record_are_found(lake: Lake, flow: HandFlow) -> None:
    append(flow, "a", 0, 6, [0, 1, 2, 4, 5, 5])
    report = judge(lake, {"a": set(range(6))})["records"]
    lost, twice = ("RECORDS_MISSING", [[3, 4]]), ("RECORDS_TWICE", [[5, 6]])
    assert places(report) == [(code, {"shard": "a", "ranges": ranges}) for code, ranges in (lost, twice)]
    assert report.findings[0].text == "a: offset 3 is on the shard and not in the table"


@pytest.mark.parametrize(("start", "code"), [(7, "RANGE_MISSING"), (5, "RANGE_TWICE")])
def test_a_batch_that_does_not_continue_is_found(lake: Lake, flow: HandFlow, start: int, code: str) -> None:
    append(flow, "a", 0, 6)
    append(flow, "a", start, 9)
    report = judge(lake, {"a": set(range(9))})["ranges"]
    low, high = sorted((start, 6))
    assert places(report) == [(code, {"shard": "a", "ranges": [[low, high]]})]


def test_a_record_in_quarantine_is_not_lost(lake: Lake, flow: HandFlow) -> None:
    source = pa.struct([("shard", pa.string()), ("number", pa.int64())])
    row = {"checkpoint": flow.checkpoint, "batch": 0, "state": "quarantined", "update": "u", "replay": None}
    schema = pa.schema([(name, pa.int64() if name == "batch" else pa.string()) for name in row])
    quarantined = pa.Table.from_pylist(
        [{**row, "source": {"shard": "a", "number": 3}}], schema.append(pa.field("source", source))
    )
    folder = lake.storage.root / "quarantine" / "default" / "bronze"
    folder.parent.mkdir(parents=True)
    write_deltalake(folder, quarantined)
    append(flow, "a", 0, 6, [0, 1, 2, 4, 5], accepted=5)
    report = judge(lake, {"a": set(range(6))})["records"]
    assert (report.verdict, report.findings) == ("proven", ())
    assert report.text == "6 read from the shards = 5 in the table + 1 in quarantine"


def test_a_shard_that_is_gone_is_not_judged(lake: Lake, flow: HandFlow) -> None:
    append(flow, "a", 0, 6)
    report = judge(lake, {})["records"]
    assert (report.verdict, report.reasons) == ("unjudged", ("the shard a is gone",))


def test_a_flow_of_another_kind_than_the_rows_is_not_judged(
    lake: Lake, flow: HandFlow, verify: Verifier, broker: HandBroker
) -> None:
    broker.holds({0: range(5)})
    flow.append({0: (0, 5)})
    report = verify.grade("records")
    assert (report.verdict, report.findings) == ("unjudged", ())
    assert "another kind of source" in report.reasons[0]


class LinesRange(SourceRange):
    """One position, and no coordinates."""


class LinesReader(SourceReader):
    range = LinesRange
    system = "the lines"


def read_lines(kind: str, start: int | None, until: int, **identity: str) -> dict[str, Any]:
    begin = None if start is None else {"line": start}
    return {"index": 0, "kind": kind, "identity": identity, "from": begin, "until": {"line": until}}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("lines", "the records of the lines have no coordinates"), ("unknown", "only Spark understands")],
)
def test_the_records_of_a_kind_without_coordinates_are_not_judged(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: str, reason: str
) -> None:
    monkeypatch.setitem(registry.READERS, "lines", LinesReader)
    flow = lake.table().flow()
    flow.append_from([read_lines(kind, None, 5, path="a")], rows(range(5)))
    flow.append_from([read_lines(kind, 5, 9, path="a")], rows(range(5, 9)))
    grades = judge(lake, {})
    assert [grades[one].verdict for one in ("ranges", "counts", "records")] == [
        "proven",
        "proven",
        "unjudged",
    ]
    assert reason in grades["records"].reasons[0]


@pytest.mark.parametrize("kind", ["lines", "unknown"])
def test_a_source_that_was_replaced_is_found(lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setitem(registry.READERS, "lines", LinesReader)
    flow = lake.table().flow()
    flow.append_from([read_lines(kind, None, 5, id="one")], rows(range(5)))
    flow.append_from([read_lines(kind, 5, 9, id="two")], rows(range(5, 9)))
    (finding,) = judge(lake, {})["ranges"].findings
    assert finding.code == "SOURCE_CHANGED"
    assert (
        f'reads {kind} {{"id": "two"}} through a checkpoint that read {kind} {{"id": "one"}}' in finding.text
    )


class SplitShardRange(SourceRange):
    """A shard with partitions has the names of a shard, and one more."""

    coordinates = RecordCoordinates.of(shard="STRING", part="INT", number="BIGINT")


@pytest.mark.parametrize("ranges", [(ShardRange, SplitShardRange), (SplitShardRange, ShardRange)])
def test_the_order_of_the_registry_does_not_choose_the_coordinates(ranges: Iterable[Any]) -> None:
    kinds = Kinds({one.__name__: one for one in ranges}, SourceRange)
    assert kinds.find_coordinates(["shard", "number"]) == ShardRange.coordinates
    assert kinds.find_coordinates(["shard", "part", "number", "more"]) == SplitShardRange.coordinates
    assert kinds.find_coordinates(["shard"]) is None
    lost = {"shard": "a", "from": 1, "until": 3}
    assert kinds.read_declared(lost) == DeclaredRange(("shard",), ("a",), 1, 3)
    assert kinds.read_declared({**lost, "part": 7}) == DeclaredRange(("shard", "part"), ("a", 7), 1, 3)
    assert kinds.read_declared({"path": "a"}) is None


class ReplayedReader(ShardReader):
    """Reads its records again: the key of each record, by its number."""

    def check_replay(self, lineage: Lineage) -> str | None:
        return None

    def replay(self, source: SourceRange, take: Callable[[SourceRecord], None]) -> str | None:
        for (shard,), end in source.ends.items():
            keys = self.context.access["shards"].get(shard)
            if keys is None:
                return f"the shard {shard} is gone"
            for number in range(end):
                value = json.dumps({"id": keys[number], "at": number}).encode()
                take(SourceRecord((shard,), number, None, value, timestamp_ms=0))
        return None


def write_current(table: LakeTable, current: Mapping[int, int]) -> dict[str, Any]:
    """A file with the row of each key, by the number of its record."""
    content = [
        {"id": key, "_sequence": {"value": number, "partition": 0, "source": "a", "position": number}}
        for key, number in current.items()
    ]
    path = table.path / "current.parquet"
    pq.write_table(pa.Table.from_pylist(content), path)
    add = {"path": path.name, "partitionValues": {}, "size": path.stat().st_size, "modificationTime": 0}
    return {"add": {**add, "dataChange": True, "stats": json.dumps({"numRecords": len(content)})}}


@pytest.mark.parametrize(
    ("reader", "shards", "current", "verdict", "text"),
    [
        (ReplayedReader, {"a": [1, 2, 1]}, {1: 2, 2: 1}, "proven", "each row is that of its newest record"),
        (ReplayedReader, {"a": [1, 2, 1]}, {1: 0, 2: 1}, "refuted", "a at offset 2"),
        (ReplayedReader, {}, {1: 2, 2: 1}, "unjudged", "the shard a is gone"),
        (ShardReader, {}, {1: 2, 2: 1}, "unjudged", "records are not read again"),
    ],
    ids=["newest records", "an older record", "a shard that is gone", "a kind that is not read again"],
)
def test_records_of_a_new_kind_are_read_again_for_a_sample(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    reader: type[ShardReader],
    shards: dict[str, list[int]],
    current: dict[int, int],
    verdict: str,
    text: str,
) -> None:
    monkeypatch.setitem(registry.READERS, "shards", reader)
    kinds = {"value": "long", "partition": "long", "source": "string", "position": "long"}
    sequence = [{"name": n, "type": kind, "nullable": True, "metadata": {}} for n, kind in kinds.items()]
    columns = {"id": "long", "_sequence": {"type": "struct", "fields": sequence}}
    fields = [{"name": n, "type": kind, "nullable": True, "metadata": {}} for n, kind in columns.items()]
    monkeypatch.setattr("lake.SCHEMA_STRING", json.dumps({"type": "struct", "fields": fields}))
    properties = {"headrace.keys": '["id"]', "headrace.replayable": "true"}
    table = lake.table(coordinates=False, properties=properties)
    flow = table.flow()
    monkeypatch.setattr(table, "write", lambda _: write_current(table, current))
    append(flow, "a", 0, 3)
    (dataset,) = verify_pipeline(
        lake.settings, access={"shards": shards}, systems=lake.systems(), sample=10
    ).datasets
    assert dataset.sample is not None
    assert dataset.sample.verdict == verdict
    said = [dataset.sample.text, *dataset.sample.reasons, *(one.text for one in dataset.sample.findings)]
    assert text in " ".join(said)
