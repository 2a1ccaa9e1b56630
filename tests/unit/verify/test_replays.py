"""Rejected rows that were replayed or discarded, in the equations of the proof."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from lake import HandFlow, Lake, LakeTable, Row, edit, rows
from rejected_rows import rejected, write_rejected

from headrace.model.names import TableName
from headrace.sinks.delta.reader import DeltaCommits
from headrace.state.ledger import Ledger
from headrace.storage.layout import locate

Verify = Any
Broker = Any
ID, NUMBER = "headrace-replays-bronze", 4
REPLAY = f"{ID}#{NUMBER}"


@pytest.fixture
def table(lake: Lake) -> LakeTable:
    return lake.table()


@pytest.fixture
def flow(table: LakeTable, broker: Broker) -> HandFlow:
    """Offsets 0 to 9 are in the table, 10 to 13 were rejected."""
    flow = table.flow()
    flow.append({0: (0, 14)}, rows(range(10)))
    edit(table, 2, input=14, quarantined=4)
    broker.holds({0: range(14)})
    return flow


def replay(flow: HandFlow, content: Sequence[Row], *, numbered: bool = True, **words: Any) -> int:
    """Commit rows as a replay."""
    counts = {"rows": len(content), "input": len(content), "accepted": len(content)}
    metadata = {"headrace": 1, "pipeline": "shop", "flow": flow.name, "replay": REPLAY, **counts, **words}
    numbers = [{"txn": {"appId": ID, "version": NUMBER}}] if numbered else []
    return flow.table.commit([*numbers, flow.table.write(content)], metadata=metadata)


def marked(flow: HandFlow, offset: int, state: str = "replayed") -> dict[str, Any]:
    return rejected(flow, offset, state=state, replay=REPLAY)


def test_discarded_rows_are_counted_apart(flow: HandFlow, verify: Verify) -> None:
    kept = [rejected(flow, offset) for offset in (10, 11, 12)]
    write_rejected(flow, [*kept, rejected(flow, 13, state="discarded")])
    assert verify().proven
    report = verify.grade("records")
    assert report.text == "14 read from Kafka = 10 in the table + 3 in quarantine + 1 discarded"


@pytest.mark.parametrize("state", ["replaying", "replayed"])
def test_replayed_rows_are_in_the_table_and_no_longer_in_quarantine(
    flow: HandFlow, verify: Verify, state: str
) -> None:
    replay(flow, rows([10, 11]))
    write_rejected(
        flow, [*(marked(flow, n, state) for n in (10, 11)), rejected(flow, 12), rejected(flow, 13)]
    )
    assert verify().proven
    assert verify.grade("records").text == "14 read from Kafka = 12 in the table + 2 in quarantine"
    assert verify.grade("counts").text == (
        "14 in = 10 accepted + 4 quarantined + 0 dropped"
        "; 2 replayed: 2 in = 2 accepted + 0 quarantined + 0 dropped"
    )
    assert verify.dataset().table.text == "12 rows in 2 files = 10 accepted + 2 replayed"


def test_rows_of_a_replay_that_was_interrupted_are_still_in_quarantine(
    flow: HandFlow, verify: Verify
) -> None:
    write_rejected(flow, [marked(flow, n, "replaying") for n in range(10, 14)])
    assert verify().proven
    assert verify.grade("records").text == "14 read from Kafka = 10 in the table + 4 in quarantine"


def test_a_record_that_is_in_the_table_and_in_quarantine_is_found(flow: HandFlow, verify: Verify) -> None:
    replay(flow, rows([10, 11]))
    write_rejected(flow, [marked(flow, 10), *(rejected(flow, n) for n in (11, 12, 13))])
    assert verify.codes("counts") == ["REPLAY_DIFFERS"]
    assert verify.codes("records") == ["RECORDS_TWICE"]


def test_a_record_that_was_replayed_twice_is_found(flow: HandFlow, verify: Verify) -> None:
    replay(flow, rows([10, 11, 11]))
    write_rejected(flow, [*(marked(flow, n) for n in (10, 11)), *(rejected(flow, n) for n in (12, 13))])
    assert verify.codes("records") == ["RECORDS_TWICE"]
    assert verify.codes("counts") == ["REPLAY_DIFFERS"]


def test_rows_that_a_replay_has_dropped_are_not_missing(flow: HandFlow, verify: Verify) -> None:
    replay(flow, rows([10, 11]), rows=4, input=4, dropped=2)
    write_rejected(flow, [marked(flow, n) for n in range(10, 14)])
    assert verify().proven
    assert verify.grade("records").text == "14 read from Kafka = 12 in the table + 2 dropped"


def test_rows_that_a_replay_has_dropped_count_for_the_batch_that_had_quarantined_them(
    table: LakeTable, verify: Verify, broker: Broker
) -> None:
    flow = table.flow()
    flow.append({0: (0, 14)}, rows(range(9)))
    edit(table, 2, input=14, quarantined=4, dropped=1)
    flow.append({0: (14, 20)}, rows(range(14, 18)))
    edit(table, 3, input=6, quarantined=1, dropped=1)
    broker.holds({0: range(20)})
    replay(flow, rows([10, 12]), rows=5, input=5, dropped=3)
    write_rejected(flow, [*(marked(flow, n) for n in range(10, 14)), {**marked(flow, 18), "batch": 1}])
    assert verify().proven, verify().to_json()
    assert verify.grade("records").text == "20 read from Kafka = 15 in the table + 5 dropped"


def test_a_replayed_record_that_no_count_explains_is_missing(flow: HandFlow, verify: Verify) -> None:
    replay(flow, rows([10, 11]), rows=4, input=3, dropped=1)
    write_rejected(flow, [marked(flow, n) for n in range(10, 14)])
    (finding,) = verify.grade("records").findings
    assert (finding.code, finding.place["ranges"]) == ("RECORDS_MISSING", [[12, 14]])


def test_a_replay_whose_commit_the_table_lost_is_found(flow: HandFlow, verify: Verify) -> None:
    write_rejected(flow, [marked(flow, 10), *(rejected(flow, n) for n in (11, 12, 13))])
    (finding,) = verify.dataset().table.findings
    assert (finding.code, finding.place["replay"]) == ("REPLAY_MISSING", REPLAY)


def test_a_replay_that_states_other_counts_than_its_files_have_is_found(
    flow: HandFlow, verify: Verify
) -> None:
    replay(flow, rows([10, 11]), input=3, accepted=3)
    write_rejected(flow, [*(marked(flow, n) for n in (10, 11)), *(rejected(flow, n) for n in (12, 13))])
    assert verify.codes("counts") == ["COUNTS_DIFFER"]


def test_a_commit_that_repeats_the_metadata_of_a_replay_does_not_count(
    flow: HandFlow, verify: Verify
) -> None:
    replay(flow, rows([10, 11]), numbered=False)
    write_rejected(flow, [rejected(flow, n) for n in range(10, 14)])
    (finding,) = verify.dataset().table.findings
    assert finding.code == "COMMIT_UNNUMBERED"


def test_the_ledger_keeps_replays_whose_commits_are_gone(
    table: LakeTable, flow: HandFlow, verify: Verify
) -> None:
    version = replay(flow, rows([10, 11]))
    write_rejected(flow, [*(marked(flow, n) for n in (10, 11)), *(rejected(flow, n) for n in (12, 13))])
    ledger = Ledger(
        locate(table.storage.ledger(table.name, flow.name)), TableName("default", "bronze"), flow.name
    )
    assert ledger.fold(DeltaCommits(locate(table.path)), table.id, lambda kind, one, two: {}) == ()
    (fold,) = ledger.folds()
    assert [one["replay"] for one in fold["replays"]] == [REPLAY]
    table.forget_log(version)
    flow.append({0: (14, 15)})
    proof = verify()
    assert proof.proven, json.dumps(proof.to_json(), indent=1)
    assert "2 replayed: 2 in = 2 accepted" in verify.grade("counts").text


def test_a_replay_that_was_fenced_is_no_replay(table: LakeTable, flow: HandFlow, verify: Verify) -> None:
    words = {"headrace": 1, "pipeline": "shop", "flow": flow.name, "replay": REPLAY, "fenced": True}
    table.commit([{"txn": {"appId": ID, "version": NUMBER + 1}}], metadata=words)
    write_rejected(flow, [marked(flow, n, "replaying") for n in range(10, 14)])
    assert verify().proven
    ledger = Ledger(
        locate(table.storage.ledger(table.name, flow.name)), TableName("default", "bronze"), flow.name
    )
    ledger.fold(DeltaCommits(locate(table.path)), table.id, lambda kind, one, two: {})
    assert verify().proven
    assert ledger.folds()[0]["replays"] == []


def test_later_replays_of_the_flow_have_the_same_id(table: LakeTable, flow: HandFlow, verify: Verify) -> None:
    replay(flow, rows([10, 11]))
    write_rejected(flow, [*(marked(flow, n) for n in (10, 11)), *(rejected(flow, n) for n in (12, 13))])
    table.commit([{"txn": {"appId": ID, "version": NUMBER + 3}}])
    assert verify().proven
    write_rejected(flow, [marked(flow, n, "replaying") for n in (10, 11)])
    assert not verify().proven, "the replay of these rows was passed before it was committed"


def test_a_replay_with_an_id_of_its_own_is_still_read(
    table: LakeTable, flow: HandFlow, verify: Verify
) -> None:
    counts = {"rows": 1, "input": 1, "accepted": 1}
    metadata = {"headrace": 1, "pipeline": "shop", "flow": flow.name, "replay": "headrace-replay-1", **counts}
    numbers = [{"txn": {"appId": "headrace-replay-1", "version": 0}}]
    table.commit([*numbers, table.write(rows([10]))], metadata=metadata)
    done = rejected(flow, 10, state="replayed", replay="headrace-replay-1")
    write_rejected(flow, [done, *(rejected(flow, n) for n in (11, 12, 13))])
    assert verify().proven
    assert "1 replayed" in verify.grade("counts").text
