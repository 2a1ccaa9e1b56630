"""What a commit says of itself: one golden file for the writer and for `verify`, which share no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.model.counts import BatchCounts
from headrace.model.ranges import SourceRange
from headrace.sinks.delta.commit import batch_metadata, generation_metadata, refresh_metadata
from headrace.sinks.target import BatchStamp, OpenedGeneration, RefreshStamp
from headrace.sources.delta.facts import DeltaPosition
from headrace.sources.files.lists import FilePosition
from headrace.sources.kafka.position import KafkaOffsets
from headrace.state.facts import FENCED, Open
from headrace.storage.table_log import replay_transaction
from headrace.verify import source_range
from headrace.verify.commits import (
    Batches,
    CommitClaims,
    Opening,
    Refresh,
    build_claims,
    replay_transaction as verified_transaction,
)
from headrace.verify.delta_log import Commit, TableLog, TableMetadata
from headrace.verify.equations import RowCounts
from headrace.verify.registry import READERS, known_kinds
from headrace.verify.source_range import DeclaredRange

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "commits.json").read_text(encoding="utf-8")
)
COUNTS = ("input", "accepted", "quarantined", "dropped")
RANGES = (
    SourceRange(
        index=0,
        kind="kafka",
        identity={"topics": {"t": "id-1"}},
        start=KafkaOffsets({"t": {0: 10, 1: 0}}),
        until=KafkaOffsets({"t": {0: 15, 1: 2}}),
        marks={"last": {"t": {"0": [14, 1700000000000, 4294967295], "1": [1, 1700000000001]}}},
    ),
    SourceRange(
        index=1,
        kind="delta",
        identity={"table_id": "up", "path": "/lake/up"},
        start=None,
        until=DeltaPosition(table_id="up", version=4, index=-1, format=1),
    ),
    SourceRange(
        index=2,
        kind="files",
        identity={"path": "/in"},
        start=FilePosition(0),
        until=FilePosition(1),
        marks={"files": {"count": 2, "bytes": 17, "sha256": "ab12", "total": 5}},
    ),
)
SEED = SourceRange(
    index=0,
    kind="kafka",
    identity={"topics": {"t": "id-1"}},
    start=KafkaOffsets({"t": {0: 9}}),
    until=KafkaOffsets({"t": {0: 9}}),
)


def as_read(one: SourceRange) -> source_range.SourceRange:
    """A range as `verify` has it."""
    marks = {key: mark for key, mark in one.marks.items() if mark is not None}
    values = (one.to_json()["from"], one.to_json()["until"])
    return READERS[one.kind].range(one.index, one.kind, one.identity, *values, marks)


LOSS = {"source": 0, "topic": "t", "partition": 0, "from": 4, "until": 9}


def opened(checkpoint: str, generation: int, opening: Open, **more: Any) -> dict[str, Any]:
    return generation_metadata(
        OpenedGeneration(
            pipeline="shop",
            flow="sales",
            checkpoint=checkpoint,
            generation=generation,
            opening=opening,
            **more,
        )
    )


WRITTEN: dict[str, dict[str, Any]] = {
    "batch": batch_metadata(
        BatchStamp(pipeline="shop", flow="sales", checkpoint="headrace-2", batch=3, ranges=RANGES),
        BatchCounts(input=8, accepted=5, quarantined=2, dropped=1),
    ),
    "replay": batch_metadata(
        BatchStamp(
            pipeline="shop",
            flow="sales",
            checkpoint="headrace-replays-sales",
            batch=6,
            ranges=(),
            replayed=3,
            replay="headrace-replays-sales#6",
        ),
        BatchCounts(input=3, accepted=2, dropped=1),
    ),
    "opening": opened("headrace-1", 1, Open(reason="first")),
    "seeded opening": opened(
        "headrace-2",
        2,
        Open(reason="data-loss", positions={0: SEED.until}, fences="headrace-1", losses=(LOSS,)),
        ranges=(SEED,),
    ),
    "renamed_flow": opened("headrace-1", 1, Open(reason="renamed"), renamed_from="old"),
    "view": refresh_metadata(
        RefreshStamp(
            pipeline="shop",
            view="default.gold",
            update="u1",
            definition="abc",
            inputs={"default.sales": {"table_id": "t1", "version": 8}},
        )
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_writer_says_what_the_golden_file_says(name: str) -> None:
    assert json.loads(json.dumps(WRITTEN[name])) == GOLDEN[name]


def read(name: str, transactions: Mapping[str, int]) -> CommitClaims:
    """What `verify` makes of the golden text in the commit of version 6."""
    commit = Commit(
        version=6,
        timestamp_ms=1000,
        operation="STREAMING UPDATE",
        engine="Spark",
        user_metadata=json.dumps(GOLDEN[name]),
        transactions=transactions,
        added=(),
        removed=(),
        metadata=None,
        written_ms=1000,
    )
    metadata = TableMetadata(id="t1", properties={}, schema="{}")
    log = TableLog(
        path=Path("table"),
        version=6,
        metadata=metadata,
        commits=(commit,),
        base={},
        base_version=5,
        transactions=transactions,
    )
    return build_claims(log, known_kinds())


def test_verify_reads_a_batch() -> None:
    said = read("batch", {"headrace-2": 3})
    assert said.roles == {6: "batch"}
    assert said.batches == [
        Batches(
            flow="sales",
            checkpoint="headrace-2",
            first=3,
            last=3,
            first_version=6,
            last_version=6,
            counts=RowCounts("append", {"input": 8, "accepted": 5, "quarantined": 2, "dropped": 1}),
            sources=tuple(map(as_read, RANGES)),
        )
    ]


def test_verify_believes_no_range_without_its_transaction() -> None:
    assert read("batch", {}).batches == []
    assert read("batch", {"headrace-2": 2}).batches == []


def test_verify_reads_a_replay() -> None:
    name = "headrace-replays-sales#6"
    said = read("replay", {"headrace-replays-sales": 6})
    assert [(one.id, one.rows, one.counts.added) for one in said.replays] == [(name, 3, 2)]
    assert read("replay", {"headrace-replays-sales": 8}).replays == []
    assert (replay_transaction(name), verified_transaction(name)) == (("headrace-replays-sales", 6),) * 2
    assert replay_transaction("headrace-replay-1f") == ("headrace-replay-1f", 0)


def test_verify_reads_an_opening() -> None:
    (opening,) = read("opening", {}).openings
    assert opening == Opening(flow="sales", checkpoint="headrace-1", generation=1, reason="first", version=6)


def test_verify_reads_a_seeded_opening_and_its_losses() -> None:
    said = read("seeded opening", {"headrace-2": 0, "headrace-1": FENCED})
    (opening,) = said.openings
    assert (opening.reason, opening.fences, opening.fenced) == ("data-loss", "headrace-1", True)
    assert opening.losses == (DeclaredRange(("topic", "partition"), ("t", 0), 4, 9),)
    (batch,) = said.batches
    assert (batch.first, batch.counts.added, batch.sources) == (0, 0, (as_read(SEED),))


def test_verify_reads_a_renamed_flow() -> None:
    (opening,) = read("renamed_flow", {}).openings
    assert (opening.reason, opening.renamed_from, opening.fences) == ("renamed", "old", None)


def test_verify_reads_a_view_s_refresh() -> None:
    (refresh,) = read("view", {}).refreshes
    inputs = {"default.sales": ("t1", 8)}
    assert refresh == Refresh(version=6, rows=None, inputs=inputs, update="u1", definition="abc")
