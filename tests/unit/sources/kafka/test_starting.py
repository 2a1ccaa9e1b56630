"""Where a flow starts, and what it is told where it cannot."""

from __future__ import annotations

import time
from typing import cast

import pytest

from headrace.errors import SourceLocation, StartInvalidError
from headrace.sources.kafka.cluster import KafkaCluster, Offsets
from headrace.sources.kafka.facts import KafkaFacts
from headrace.sources.kafka.starting import Start, check_start
from headrace.state.checkpoint import SourceIdentity

HERE = SourceLocation("orders.py", 3)
SOURCE = SourceIdentity(index=0, kind="kafka", identity={"topics": {"a": "1"}})
FACTS = KafkaFacts(source=SOURCE, earliest={"a": {0: 5, 1: 0}}, latest={"a": {0: 9, 1: 0}})


class Moments:
    """Answers for a cluster that has no record of partition 1."""

    def offsets_since(self, moments: Offsets) -> Offsets:
        return {t: {p: -1 if p == 1 else 7 for p in parts} for t, parts in moments.items()}


def start(**options: str) -> Start:
    return Start.of(options, default="latest")


def test_options_are_looked_at_in_spark_s_order() -> None:
    assert start().at == "latest"
    assert Start.of({}, default="earliest").at == "earliest"
    assert start(STARTINGOFFSETS="Earliest").at == "earliest"
    assert start(startingOffsets='{"a": {"0": 5, "1": -2}}').offsets == {"a": {0: 5, 1: -2}}
    both = start(startingTimestamp="1000", startingOffsets="latest")
    assert (both.at, both.timestamp_ms, both.lenient) == ("timestamp", 1000, False)
    each = start(startingOffsetsByTimestamp='{"a": {"0": 1}}', startingOffsetsByTimestampStrategy="Latest")
    assert (each.at, each.timestamps_ms, each.lenient) == ("timestamps", {"a": {0: 1}}, True)
    assert "2001-09-09" in start(startingTimestamp="1000000000000").describe()


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "newest"},
        {"startingOffsets": "{"},
        {"startingOffsets": "[]"},
        {"startingOffsets": '{"a": 5}'},
        {"startingOffsets": '{"a": {"x": 5}}'},
        {"startingOffsets": '{"a": {"0": -3}}'},
        {"startingOffsets": '{"a": {"0": "5"}}'},
        {"startingTimestamp": "2020-01-01"},
        {"startingTimestamp": str(int(time.time() * 1000) + 3_600_000)},
        {"startingOffsetsByTimestamp": '{"a": {"0": 99999999999999999}}'},
        {"startingOffsetsByTimestampStrategy": "earliest"},
    ],
)
def test_a_value_that_cannot_be_is_said(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        start(**options)


@pytest.mark.parametrize(
    ("offsets", "params"),
    [
        ('{"a": {"0": 5, "1": 0, "2": 0}}', {"unknown": [["a", 2]]}),
        ('{"a": {"0": 5}}', {"lacking": [["a", 1]]}),
        ('{"a": {"0": 4, "1": 0}}', {"topic": "a", "partition": 0, "offset": 4, "low": 5, "high": 9}),
        ('{"a": {"0": 9, "1": 1}}', {"topic": "a", "partition": 1, "offset": 1, "low": 0, "high": 0}),
    ],
)
def test_offsets_that_the_broker_does_not_hold_are_named(offsets: str, params: dict[str, object]) -> None:
    with pytest.raises(StartInvalidError) as caught:
        check_start(start(startingOffsets=offsets), FACTS, cast(KafkaCluster, Moments()), HERE)
    assert (caught.value.params, caught.value.location) == (params, HERE)


def test_a_start_that_can_be_passes() -> None:
    cluster = cast(KafkaCluster, Moments())
    for offsets in ('{"a": {"0": 9, "1": 0}}', '{"a": {"0": -1, "1": -2}}', "earliest"):
        check_start(start(startingOffsets=offsets), FACTS, cluster, HERE)
    lenient = start(startingTimestamp="1", startingOffsetsByTimestampStrategy="latest")
    check_start(lenient, FACTS, cluster, HERE)
    with pytest.raises(StartInvalidError) as caught:
        check_start(start(startingTimestamp="1"), FACTS, cluster, HERE)
    assert caught.value.params["partitions"] == [["a", 1]]
