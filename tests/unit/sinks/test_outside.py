"""What the record of a sink's batch says, and how it is judged."""

from __future__ import annotations

from headrace.model.counts import BatchCounts, sum_counts
from headrace.model.declarations import Sink
from headrace.sinks.target import describe_sink
from headrace.verify.equations import RowCounts


def test_rows_that_were_sent_are_not_expected_in_the_table() -> None:
    counts = BatchCounts(kind="send", input=5, accepted=4, dropped=1).to_json()
    for stated in (counts, sum_counts(counts, counts), sum_counts({}, counts)):
        found = RowCounts.parse(stated)
        assert (found.kind, found.added, found.broken) == ("send", 0, [])


def test_a_sink_states_its_guarantee() -> None:
    copy, topic = Sink(format="delta", options={"path": "/a"}), Sink(format="kafka", options={"topic": "t"})
    assert describe_sink(copy) == "appends to the Delta table /a: exactly once"
    sends = "sends to the Kafka topic t"
    exact = f"{sends}, for readers with isolation.level=read_committed: exactly once"
    assert describe_sink(topic) == exact
    weaker = Sink(format="kafka", options={**topic.options, "guarantee": "at_least_once"})
    assert describe_sink(weaker) == f"{sends}: at least once"
    assert describe_sink(Sink(format="function", function=print)).endswith("each batch: at least once")
