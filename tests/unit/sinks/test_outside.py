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
    assert (
        describe_sink(Sink(format="delta", options={"path": "/a"}))
        == "appends to the Delta table /a: exactly once"
    )
    assert (
        describe_sink(Sink(format="kafka", options={"topic": "t"}))
        == "sends to the Kafka topic t: at least once"
    )
    copy, topic = Sink(format="delta", options={"path": "/a"}), Sink(format="kafka", options={"topic": "t"})
    assert describe_sink(copy) == "appends to the Delta table /a: exactly once"
    assert describe_sink(topic) == "sends to the Kafka topic t: at least once"
    assert describe_sink(Sink(format="function", function=print)).endswith("each batch: at least once")
