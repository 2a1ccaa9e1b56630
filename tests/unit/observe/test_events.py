"""Events as JSON: what is written is what is read back."""

from __future__ import annotations

import json
from dataclasses import fields
from string import Formatter

import pytest

from checked_json import check_data
from headrace.model.counts import RowChanges
from headrace.model.event_forms import Event
from headrace.model.events import (
    BatchCommitted,
    FlowFailed,
    FlowFinished,
    UpdateFinished,
    UpdateStarted,
    ViewRefreshed,
)
from headrace.model.names import TableName
from headrace.model.ranges import OpaquePosition, SourceRange
from headrace.model.table_events import ForeignCommitSeen
from headrace.observe.log import event_from_json, event_to_json

NAME = TableName("sales", "orders")
RANGE = SourceRange(
    0, "kafka", {"topics": {"t": "id"}}, OpaquePosition({"t": {"0": 1}}), OpaquePosition({"t": {"0": 5}})
)
EVENTS: list[Event] = [
    UpdateStarted(update="u1", pipeline="shop", mode="triggered", flows=("a", "b"), views=(NAME,)),
    BatchCommitted(
        update="u1", flow="a", dataset=NAME, batch=1, version=2, rows=3, duration_s=0.5, ranges=(RANGE,),
        lag=7, latency_s=(1.0, 0.1), changes=RowChanges(inserted=3),
    ),
    FlowFailed(update="u1", flow="b", dataset=NAME, error={"code": "X", "params": {"a": [1]}}),
    FlowFinished(update="u1", flow="a", dataset=NAME, outcome="up to date", rows=3, batches=1),
    ViewRefreshed(update="u1", dataset=NAME, version=1, rows=2, duration_s=0.1),
    ForeignCommitSeen(update="u1", dataset=NAME, version=4, operation="OPTIMIZE", engine="x"),
    UpdateFinished(update="u1", outcome="failed", duration_s=2.5),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_as_it_was(event: Event) -> None:
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event
    check_data("run", event_to_json(event))


def test_fields_and_events_of_newer_versions_are_passed_over() -> None:
    assert event_from_json({**event_to_json(EVENTS[0]), "new_field": 1}) == EVENTS[0]
    assert event_from_json({"event": "NotYetKnown", "update": "u"}) is None


def kinds_below(kind: type[Event]) -> list[type[Event]]:
    return [one for below in kind.__subclasses__() for one in (below, *kinds_below(below))]


@pytest.mark.parametrize("kind", kinds_below(Event), ids=lambda kind: kind.__name__)
def test_an_event_has_all_values_of_its_texts(kind: type[Event]) -> None:
    names = {name for text in (kind.message, kind.line) for _, name, _, _ in Formatter().parse(text) if name}
    for word in kind.details.split():
        key, _, text = word.partition("=")
        names |= {text.strip("{}") or key} if not text or text.startswith("{") else set()
    known = {*dir(kind), *(one.name for one in fields(kind))}
    assert names <= known
