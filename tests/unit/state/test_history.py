"""What a flow has read over all its checkpoints, from the log and from the ledger alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.errors import CheckpointCorruptError
from headrace.model.names import TableName
from headrace.sinks.delta.reader import DeltaCommits
from headrace.sources.kafka.facts import ended_offsets as ended
from headrace.sources.registry import join_marks
from headrace.state.facts import History, load_history
from headrace.state.ledger import Ledger
from headrace.storage.location import Location
from unit.state.test_ledger import TABLE_ID, Table, txn

DATASET = TableName("default", "sales")


def source(topic: str, until: int, start: int = 0) -> dict[str, Any]:
    return {
        "index": 0,
        "kind": "kafka",
        "identity": {"topics": {topic: f"id of {topic}"}},
        "from": {topic: {"0": start}},
        "until": {topic: {"0": until}},
    }


class Flow:
    """The commits of flows of one table."""

    def __init__(self, root: Location) -> None:
        self.root = root
        self.table = Table(root / "table")

    def opens(self, checkpoint: str, reason: str, fences: str | None, flow: str = "sales") -> None:
        opens = {"generation": 1, "reason": reason, "fences": fences, "losses": []}
        said = {"headrace": 1, "flow": flow, "checkpoint": checkpoint, "opens": opens}
        self.table.commit(userMetadata=json.dumps(said))

    def batch(self, checkpoint: str, number: int, *sources: dict[str, Any], flow: str = "sales") -> None:
        said = {
            "headrace": 1,
            "flow": flow,
            "checkpoint": checkpoint,
            "batch": number,
            **dict.fromkeys(("input", "accepted", "quarantined", "dropped"), 1),
            "sources": list(sources),
        }
        self.table.commit(txn(checkpoint, number), userMetadata=json.dumps(said))

    def ledger(self, flow: str = "sales") -> Ledger:
        return Ledger(self.root / "ledger" / flow, DATASET, flow)

    def history(self, checkpoint: str | None, flow: str = "sales") -> History:
        return load_history(
            self.ledger(flow), DeltaCommits(self.table.path), TABLE_ID, self.table.version, checkpoint
        )

    def lose_log(self) -> None:
        """What Delta does to a log that has grown old."""
        for version in range(self.table.version + 1):
            self.table.file(version).delete()


@pytest.fixture
def flow(location: Location) -> Flow:
    return Flow(location)


@pytest.mark.parametrize("folded", [False, True], ids=["from the log", "from the ledger"])
def test_each_topic_is_known_as_far_as_the_last_checkpoint_that_read_it(flow: Flow, folded: bool) -> None:
    flow.opens("one", "first", None)
    flow.batch("one", 0, source("eu", 5))
    flow.batch("one", 1, source("eu", 9))
    flow.opens("two", "reset", "one")
    flow.batch("two", 0, source("us", 3))
    flow.batch("other", 0, source("asia", 7), flow="beside")
    if folded:
        flow.ledger().fold(DeltaCommits(flow.table.path), TABLE_ID, join_marks)
        flow.lose_log()
    assert ended(flow.history("two")) == {"id of eu": {0: 9}, "id of us": {0: 3}}
    assert flow.history(None) == History()


def test_nothing_is_known_of_what_was_read_before_a_full_refresh(flow: Flow) -> None:
    flow.opens("one", "first", None)
    flow.batch("one", 0, source("eu", 5))
    flow.opens("two", "full-refresh", "one")
    flow.batch("two", 0, source("us", 3))
    assert ended(flow.history("two")) == {"id of us": {0: 3}}


def test_a_flow_knows_what_it_has_read_under_another_name(flow: Flow) -> None:
    flow.opens("one", "first", None, flow="old")
    flow.batch("one", 0, source("eu", 5), flow="old")
    flow.opens("two", "reset", "one", flow="old")
    flow.batch("two", 0, source("us", 3), flow="old")
    flow.ledger("old").fold(DeltaCommits(flow.table.path), TABLE_ID, join_marks)
    flow.opens("two", "renamed", None)
    flow.batch("two", 1, source("us", 4))
    # A flow of the old name, which has begun anew, is another one.
    flow.opens("three", "first", None, flow="old")
    flow.batch("three", 0, source("eu", 1), flow="old")
    for name in ("sales", "old"):
        flow.ledger(name).fold(DeltaCommits(flow.table.path), TABLE_ID, join_marks)
    flow.lose_log()
    assert ended(flow.history("two")) == {"id of eu": {0: 5}, "id of us": {0: 4}}
    assert ended(flow.history("three", "old")) == {"id of eu": {0: 1}}


def test_a_flow_does_not_ask_what_others_of_its_table_have_read(flow: Flow) -> None:
    flow.opens("one", "first", None)
    flow.batch("one", 0, source("eu", 5))
    beside = flow.ledger("beside")
    (beside.folder / "00000000000000000000-broken.json").replace("{")
    assert ended(flow.history("one")) == {"id of eu": {0: 5}}
    # It does where it had another name, for that could have been any of them.
    flow.opens("one", "renamed", None, flow="new")
    with pytest.raises(CheckpointCorruptError, match="broken"):
        flow.history("one", "new")


def test_a_topic_that_a_join_has_read_up_to_two_offsets_has_no_end() -> None:
    entry = {"checkpoint": "one", "sources": [source("eu", 5), {**source("eu", 8), "index": 1}]}
    assert ended(History.of([entry])) == {"id of eu": {0: None}}
    level = {"checkpoint": "one", "sources": [source("eu", 8), {**source("eu", 8), "index": 1}]}
    assert ended(History.of([entry, level])) == {"id of eu": {0: 8}}


def test_what_the_ledger_holds_of_versions_that_were_taken_back_is_not_known(flow: Flow) -> None:
    """An older copy of the table was put in its place: its own log says how far it was read."""
    flow.opens("one", "first", None)
    flow.batch("one", 0, source("eu", 5))
    flow.batch("one", 1, source("eu", 9, 5), source("us", 4) | {"index": 1})
    flow.ledger().fold(DeltaCommits(flow.table.path), TABLE_ID, join_marks)
    flow.table.file(flow.table.version).delete()
    flow.table.version -= 1
    assert ended(flow.history("one")) == {"id of eu": {0: 5}}


def test_a_chain_with_a_checkpoint_that_nobody_knows_is_not_whole(flow: Flow) -> None:
    flow.opens("two", "reset", "one")
    flow.batch("two", 0, source("us", 3))
    assert not flow.history("two").whole
    flow.opens("three", "full-refresh", "two")
    assert flow.history("three").whole
