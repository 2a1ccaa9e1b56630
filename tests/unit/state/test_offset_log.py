"""What a batch reads, told from the files that Spark has written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.errors import CheckpointCorruptError
from headrace.sources.delta.facts import DeltaPosition
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.registry import load_next_positions, load_ranges
from headrace.state.checkpoint import (
    LogState,
    SourceIdentity,
    check_readable,
    is_seeded,
    load_offsets,
    load_state,
    seed_files,
)
from headrace.storage.location import Location

KAFKA = SourceIdentity(index=0, kind="kafka", identity={"topics": {"sales": "id-1"}})
DELTA = SourceIdentity(index=1, kind="delta", identity={"table_id": "up", "path": "/lake/up"})
UPSTREAM = DeltaPosition(table_id="up", version=4, index=-1, format=1)

UPSTREAM_TEXT = (
    '{"sourceVersion":1,"reservoirId":"up","reservoirVersion":4,"index":-1,"isStartingVersion":false}'
)
"""As Delta writes it: Spark compares positions as text."""


@pytest.fixture
def checkpoint(location: Location) -> Location:
    return location / "0001"


def write(checkpoint: Location, name: str, *lines: Any) -> Location:
    path = checkpoint / name
    path.replace("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def plan(checkpoint: Location, batch: int, *positions: Any) -> Location:
    """What Spark writes before a batch."""
    return write(checkpoint, f"offsets/{batch}", "v1", {"batchTimestampMs": 1700000000000}, *positions)


def begin(checkpoint: Location, **topics: dict[str, int]) -> None:
    """What Spark's Kafka source writes at its first start, with the zero byte in front."""
    (checkpoint / "sources" / "0" / "0").replace("\0v1\n" + json.dumps(topics))


def test_a_checkpoint_that_has_read_nothing(checkpoint: Location) -> None:
    assert load_state(checkpoint) == LogState(last_planned=-1, last_finished=-1)


def test_the_last_batch_is_found_by_number_among_spark_s_other_files(checkpoint: Location) -> None:
    for batch in (9, 10):
        plan(checkpoint, batch, {"sales": {"0": batch}})
    write(checkpoint, "offsets/.11.crc", "no batch")
    write(checkpoint, "offsets/.12.0c1b.tmp", "no batch")
    write(checkpoint, "commits/9", "v1", {})
    assert load_state(checkpoint) == LogState(last_planned=10, last_finished=9)


def test_a_batch_reads_from_the_end_of_the_one_before(checkpoint: Location) -> None:
    plan(checkpoint, 3, {"sales": {"0": 10, "1": 20}})
    plan(checkpoint, 4, {"sales": {"0": 15, "1": 20}})
    (found,) = load_ranges(checkpoint, 4, [KAFKA])
    assert found.start == KafkaOffsets({"sales": {0: 10, 1: 20}})
    assert found.until == KafkaOffsets({"sales": {0: 15, 1: 20}})
    assert found.identity == KAFKA.identity


def test_the_first_batch_reads_from_where_the_source_began(checkpoint: Location) -> None:
    begin(checkpoint, sales={"0": 7, "1": 0})
    plan(checkpoint, 0, {"sales": {"0": 15, "1": 20}})
    (found,) = load_ranges(checkpoint, 0, [KAFKA])
    assert found.start == KafkaOffsets({"sales": {0: 7, 1: 0}})


@pytest.mark.parametrize("batch", [0, 5])
def test_a_partition_that_appears_later_is_read_from_its_first_offset(
    checkpoint: Location, batch: int
) -> None:
    begin(checkpoint, sales={"0": 7})
    plan(checkpoint, 4, {"sales": {"0": 7}})
    plan(checkpoint, batch, {"sales": {"0": 9, "1": 3}, "more": {"0": 2}})
    (found,) = load_ranges(checkpoint, batch, [KAFKA])
    assert found.start == KafkaOffsets({"sales": {0: 7, 1: 0}, "more": {0: 0}})


def test_each_source_has_its_own_range(checkpoint: Location) -> None:
    begin(checkpoint, sales={"0": 0})
    plan(checkpoint, 0, {"sales": {"0": 5}}, UPSTREAM.to_json())
    kafka, delta = load_ranges(checkpoint, 0, [KAFKA, DELTA])
    assert (kafka.index, kafka.start) == (0, KafkaOffsets({"sales": {0: 0}}))
    assert (delta.index, delta.start, delta.until) == (1, None, UPSTREAM)


def test_a_source_without_an_offset_has_no_range(checkpoint: Location) -> None:
    begin(checkpoint, sales={"0": 0})
    plan(checkpoint, 0, {"sales": {"0": 5}}, "-")
    assert [found.index for found in load_ranges(checkpoint, 0, [KAFKA, DELTA])] == [0]


def test_what_is_not_committed_is_still_to_be_read(checkpoint: Location) -> None:
    begin(checkpoint, sales={"0": 2})
    plan(checkpoint, 0, {"sales": {"0": 5}})
    plan(checkpoint, 1, {"sales": {"0": 9, "1": 4}})
    assert load_next_positions(checkpoint, 0, [KAFKA]) == {0: KafkaOffsets({"sales": {0: 2}})}
    assert load_next_positions(checkpoint, 1, [KAFKA]) == {0: KafkaOffsets({"sales": {0: 5, 1: 0}})}
    assert load_next_positions(checkpoint, 2, [KAFKA]) == {0: KafkaOffsets({"sales": {0: 9, 1: 4}})}


@pytest.mark.parametrize(
    "content",
    ["", "v1", "v1\n{}", "v2\n{}\n{}", "v1\n{}\n{half", "v1\n{}\n7", "\x00\x00\x00"],
    ids=["empty", "one line", "no source", "another version", "cut short", "no position", "zeros"],
)
def test_an_offset_file_that_spark_did_not_write_is_corrupt(checkpoint: Location, content: str) -> None:
    path = write(checkpoint, "offsets/4", content)
    with pytest.raises(CheckpointCorruptError) as caught:
        load_ranges(checkpoint, 4, [KAFKA])
    assert caught.value.params["path"] == str(path)


def test_an_offset_file_that_is_missing_is_corrupt(checkpoint: Location) -> None:
    plan(checkpoint, 4, {"sales": {"0": 5}})
    with pytest.raises(CheckpointCorruptError) as caught:
        load_ranges(checkpoint, 4, [KAFKA])
    assert caught.value.params["path"] == str(checkpoint / "offsets" / "3")


def test_another_number_of_sources_is_corrupt(checkpoint: Location) -> None:
    plan(checkpoint, 3, {"sales": {"0": 5}})
    plan(checkpoint, 4, {"sales": {"0": 5}})
    with pytest.raises(CheckpointCorruptError):
        load_ranges(checkpoint, 4, [KAFKA, DELTA])


def test_a_start_that_cannot_be_read_is_corrupt(checkpoint: Location) -> None:
    plan(checkpoint, 0, {"sales": {"0": 5}})
    path = write(checkpoint, "sources/0/0", "v7\n{}")
    with pytest.raises(CheckpointCorruptError) as caught:
        load_ranges(checkpoint, 0, [KAFKA])
    assert caught.value.params["path"] == str(path)


def test_a_whole_checkpoint_is_readable(checkpoint: Location) -> None:
    check_readable(checkpoint)
    write(checkpoint, "metadata", {"id": "3f"})
    write(checkpoint, "commits/0", "v1", {"nextBatchWatermarkMs": 0})
    check_readable(checkpoint)


@pytest.mark.parametrize(
    ("name", "content"),
    [("metadata", "{half"), ("commits/5", ""), ("commits/5", "v1\n{half"), ("commits/5", "v9\n{}")],
)
def test_a_small_file_that_spark_cannot_read_is_found_first(
    checkpoint: Location, name: str, content: str
) -> None:
    write(checkpoint, "commits/4", "v1", {})
    path = write(checkpoint, name, content)
    with pytest.raises(CheckpointCorruptError) as caught:
        check_readable(checkpoint)
    assert caught.value.params["path"] == str(path)


def seed(checkpoint: Location, positions: dict[int, Any]) -> None:
    for name, text in seed_files(positions, [KAFKA, DELTA], "8").items():
        write(checkpoint, name, text)


def test_a_seeded_checkpoint_has_finished_batch_0_at_its_positions(checkpoint: Location) -> None:
    seed(checkpoint, {0: KafkaOffsets({"sales": {0: 40}}), 1: UPSTREAM})
    assert load_state(checkpoint) == LogState(last_planned=0, last_finished=0)
    assert load_offsets(checkpoint, 0) == ('{"sales":{"0":40}}', UPSTREAM_TEXT)
    check_readable(checkpoint)
    plan(checkpoint, 1, {"sales": {"0": 60, "1": 3}}, UPSTREAM.to_json())
    kafka, delta = load_ranges(checkpoint, 1, [KAFKA, DELTA])
    assert kafka.start == KafkaOffsets({"sales": {0: 40, 1: 0}})
    assert delta.start == delta.until == UPSTREAM


def test_a_source_without_a_position_is_seeded_at_its_beginning(checkpoint: Location) -> None:
    seed(checkpoint, {1: UPSTREAM})
    assert load_offsets(checkpoint, 0) == (None, UPSTREAM_TEXT)


def test_a_seeded_batch_has_the_number_of_partitions_that_spark_compares(checkpoint: Location) -> None:
    seed(checkpoint, {1: UPSTREAM})
    lines = (checkpoint / "offsets" / "0").read_text().splitlines()
    assert json.loads(lines[1])["conf"] == {"spark.sql.shuffle.partitions": "8"}


def test_a_seeded_batch_is_told_from_spark_s(checkpoint: Location) -> None:
    assert not is_seeded(checkpoint)
    plan(checkpoint, 0, {"sales": {"0": 5}})
    assert not is_seeded(checkpoint)
    seed(checkpoint, {0: KafkaOffsets({"sales": {0: 40}})})
    assert is_seeded(checkpoint)
