"""A new kind of source is a range, a reader and one line in the registry; it is judged like any other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from lake import HandFlow, Lake, rows

from headrace.model.coordinates import RecordCoordinates
from headrace.verify import registry
from headrace.verify.checkpoint_history import Lineage
from headrace.verify.evidence import Evidence
from headrace.verify.proof import verify_pipeline
from headrace.verify.reader import Extent, Found, SourceReader
from headrace.verify.report import GradeReport
from headrace.verify.source_range import Partition, SourceRange
from headrace.verify.spans import Spans
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
    (dataset,) = verify_pipeline(lake.settings, access={"shards": shards}).datasets
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
