"""What the record of a sink's batch says, and how it is judged."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from headrace.model.counts import BatchCounts, sum_counts
from headrace.model.declarations import Sink
from headrace.sinks.outside.stateful import SinkState
from headrace.sinks.target import Followed, describe_sink
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


def test_a_state_comes_back_from_json_whole() -> None:
    whole = SinkState(
        version=7,
        refreshing="update",
        checkpoints={"flow": "c"},
        transactions={"c": 3},
        replaced={"flow": ("b", 2)},
        follows=Followed(columns=("id", "name"), is_whole=False, has_preimages=True),
    )
    plain = SinkState()
    same = [one.name for one in fields(SinkState) if getattr(whole, one.name) == getattr(plain, one.name)]
    assert same == [], "give these fields other values than their defaults"
    assert SinkState.of_json(json.loads(json.dumps(whole.kept()))) == whole


def test_a_state_keeps_what_holds_for_all_rows_of_a_sink() -> None:
    whole = Followed(columns=("id", "name"), is_whole=True, has_preimages=True)
    first = SinkState().with_rows(whole)
    assert first.follows == whole
    fed = replace(first, checkpoints={"flow": "c"})
    later = fed.with_rows(replace(whole, columns=("id", "size"), has_preimages=False))
    assert later.follows == Followed(columns=("id",), is_whole=True, has_preimages=False)
    assert later.with_rows(None).with_rows(whole).follows is None
    assert later.with_rows(whole, clear=True).follows == whole
    # An earlier version of Headrace has written it.
    old = {name: value for name, value in fed.kept().items() if name != "follows"}
    assert SinkState.of_json(old).with_rows(whole).follows is None
