"""A broker that does not answer is reported once, and again when it is back."""

from __future__ import annotations

import threading

from headrace.errors import BrokerUnreachableError, KafkaLoginError, SourceLocation
from headrace.model.declarations import AppendFlow
from headrace.model.event_forms import Event
from headrace.model.events import FlowReconnected, FlowReconnecting
from headrace.model.names import TableName
from headrace.model.queries import PythonQuery
from headrace.project.updating import ANSWER_S, INTERVAL_S, ServerWatch
from headrace.sources.requests import Server

BRONZE = TableName("default", "bronze")
FLOW = AppendFlow(name="bronze", target=BRONZE, query=PythonQuery(lambda: None, SourceLocation("a.py", 1)))
AWAY = BrokerUnreachableError("no Kafka broker answers at b:9092", remedies=["headrace doctor"])


def events_of(*answers: Exception | None) -> list[Event]:
    """The events that a cluster with these answers causes."""
    left, events, done = list(answers), list[Event](), threading.Event()

    def ping() -> None:
        if not left:
            done.set()
            return
        if (error := left.pop(0)) is not None:
            raise error

    with ServerWatch(Server("b:9092", ping, "headrace broker start"), [FLOW], "u", events.append, 0.001):
        assert done.wait(10)
    return events


def test_a_lost_broker_is_reported_once_with_time_and_remedy() -> None:
    lost, back = events_of(None, AWAY, AWAY, AWAY, None)
    assert isinstance(lost, FlowReconnecting) and isinstance(back, FlowReconnected)
    assert (lost.flow, lost.dataset, lost.error["code"]) == ("bronze", BRONZE, "BROKER_UNREACHABLE")
    assert lost.error["remedies"] == ["headrace broker start"]
    assert lost.error["facts"][0].startswith("the last answer came at ")


def test_a_broker_that_has_not_answered_yet_has_no_last_answer() -> None:
    lost, _ = events_of(AWAY, None)
    assert isinstance(lost, FlowReconnecting)
    assert lost.error["facts"][0].startswith("it has not answered since ")


def test_other_answers_are_left_to_the_flow() -> None:
    assert events_of(None, KafkaLoginError("no"), None) == []


def test_it_is_reported_within_ten_seconds() -> None:
    assert INTERVAL_S + ANSWER_S < 10
