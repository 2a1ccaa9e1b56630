"""Chosen offsets against those that a flow has read."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import HeadraceError, SourceLocation
from headrace.model.remedies import ChosenStart
from headrace.sources.kafka.facts import KafkaFacts
from headrace.sources.kafka.position import KafkaOffsets
from headrace.state.checkpoint import SourceIdentity
from headrace.state.facts import ChosenPosition, FlowFacts, History

FLOW = FlowFacts(
    flow="orders",
    dataset="default.orders",
    location=SourceLocation("orders.py", 3),
    folder="/lake/checkpoints/default.sales/sales",
    declared_flows=frozenset({"orders"}),
    sources=(),
    stateful=False,
)


def commit(checkpoint: str, low: int, high: int) -> dict[str, Any]:
    source = {"index": 0, "kind": "kafka", "identity": {"topics": {"orders": "A"}}}
    ends = {"from": {"orders": {"0": low}}, "until": {"orders": {"0": high}}}
    return {"checkpoint": checkpoint, "sources": [{**source, **ends}]}


def chosen(
    text: str, *read: tuple[int, int], ended: int, whole: bool = True, **allowed: bool
) -> ChosenPosition:
    commits = [commit(f"c{number}", low, high) for number, (low, high) in enumerate(read)]
    facts = KafkaFacts(
        source=SourceIdentity(index=0, kind="kafka", identity={"topics": {"orders": "A"}}),
        earliest={"orders": {0: 5, 1: 0}},
        latest={"orders": {0: 100, 1: 9}},
    )
    history, position = History.of(commits, whole=whole), KafkaOffsets({"orders": {0: ended, 1: 7}})
    return facts.choose_position(FLOW, history, position, ChosenStart.parse(text, **allowed))


def spans(ranges: Any) -> list[tuple[int, int]]:
    return [(one["from"], one["until"]) for one in ranges]


BOTH = {"allow_duplicates": True, "accept_loss": True}


@pytest.mark.parametrize(
    ("start", "read", "ended", "lost", "repeated"),
    [
        (60, [(0, 60)], 60, [], []),
        (30, [(0, 60)], 60, [], [(30, 60)]),
        (80, [(0, 60)], 60, [(60, 80)], []),
        # Back to 30, read to 45, then forward: 45 to 60 were read before.
        (60, [(0, 60), (30, 45)], 45, [], []),
        (70, [(0, 60), (30, 45)], 45, [(60, 70)], []),
        (40, [(0, 60), (30, 45)], 45, [], [(40, 60)]),
        # Offsets 60 to 80 were passed over.
        (70, [(0, 60), (80, 90)], 90, [], [(80, 90)]),
        (50, [(0, 60), (80, 90)], 90, [], [(50, 60), (80, 90)]),
    ],
)
def test_a_start_repeats_what_was_read_after_it_and_loses_what_was_never_read_before_it(
    start: int, read: list[tuple[int, int]], ended: int, lost: Any, repeated: Any
) -> None:
    found = chosen(f"orders:0={start}", *read, ended=ended, **BOTH)
    assert found.position == KafkaOffsets({"orders": {0: start, 1: 7}}), "the other partition continues"
    assert (spans(found.losses), spans(found.repeats)) == (lost, repeated)


def test_what_is_not_known_counts_as_read() -> None:
    found = chosen("orders:0=30", (50, 60), ended=60, whole=False, **BOTH)
    assert spans(found.repeats) == [(30, 60)]


def test_the_edges_are_those_of_the_topic() -> None:
    first = chosen("earliest", (0, 60), ended=60, **BOTH)
    last = chosen("latest", (0, 60), ended=60, **BOTH)
    assert first.position == KafkaOffsets({"orders": {0: 5, 1: 0}})
    assert last.position == KafkaOffsets({"orders": {0: 100, 1: 9}})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("orders:0=30", "RANGES_READ_AGAIN"),
        ("orders:0=80", "RANGES_SKIPPED"),
        ("orders:0=4", "START_INVALID"),
        ("orders:0=101", "START_INVALID"),
    ],
)
def test_what_the_user_does_not_allow_is_refused(text: str, code: str) -> None:
    with pytest.raises(HeadraceError) as raised:
        chosen(text, (0, 60), ended=60)
    assert raised.value.code == code


@pytest.mark.parametrize("text", ["orders", "orders:0", "orders:x=1", "orders:0=-1", "orders:0=1,orders:0=2"])
def test_a_start_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="orders"):
        ChosenStart.parse(text)


def test_a_start_is_shown_as_it_is_given() -> None:
    start = ChosenStart.parse("orders:0=17, items.v2:3=9", allow_duplicates=True)
    assert start.options() == "--from orders:0=17,items.v2:3=9 --allow-duplicates"
