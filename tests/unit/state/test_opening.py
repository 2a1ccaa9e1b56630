"""How a flow starts: every refusal of the protocol's table, and what each remedy then does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import HeadraceError, SourceLocation
from headrace.model.ranges import OpaquePosition, Position, RecordMark
from headrace.sources.delta.facts import DeltaFacts, DeltaPosition
from headrace.sources.files.lists import FileFacts, FilePosition
from headrace.sources.kafka.facts import KafkaFacts
from headrace.sources.kafka.last_records import LastRecord, ReusedOffset
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.other.source import OtherFacts
from headrace.sources.registry import describe_source
from headrace.state.checkpoint import CheckpointIdentity, SourceIdentity
from headrace.state.facts import (
    FENCED,
    CheckpointFacts,
    Continue,
    FlowFacts,
    History,
    Open,
    Opening,
    RenameFlow,
    SourceFacts,
    TableFacts,
)
from headrace.state.opening import decide

OURS, OLDER = "headrace-ours", "headrace-older"
KAFKA = SourceIdentity(index=0, kind="kafka", identity={"topics": {"sales": "id-1"}})
DELTA = SourceIdentity(index=0, kind="delta", identity={"table_id": "upstream", "path": "/lake/up"})
FILES = SourceIdentity(index=0, kind="files", identity={"path": "/in"})
BROKER: dict[str, Any] = {"earliest": {"sales": {0: 0, 1: 0}}, "latest": {"sales": {0: 100, 1: 100}}}
"""What the broker holds."""
READ = {0: KafkaOffsets({"sales": {0: 40, 1: 50}})}
"""How far the flow has come in the tests below."""


def facts_of(source: SourceIdentity, broker: dict[str, Any], files: dict[str, Any]) -> SourceFacts:
    match source.kind:
        case "kafka":
            return KafkaFacts(source=source, **broker)
        case "delta":
            return DeltaFacts(source=source)
        case "files":
            return FileFacts(source=source, **files)
        case _:
            return OtherFacts(source=source)


def change(
    flow: FlowFacts,
    *,
    sources: tuple[SourceIdentity, ...] | None = None,
    kafka: dict[int, dict[str, Any]] | None = None,
    files: dict[str, Any] | None = None,
    **changes: Any,
) -> FlowFacts:
    """The flow with other sources, or with sources that hold something else now."""
    if sources is not None or kafka is not None or files is not None:
        named = sources or tuple(facts.source for facts in flow.sources)
        held = {0: BROKER} if kafka is None else kafka
        changes["sources"] = tuple(facts_of(one, held.get(one.index, {}), files or {}) for one in named)
    return replace(flow, **changes)


FLOW = FlowFacts(
    flow="sales",
    dataset="default.sales",
    location=SourceLocation("sales.py", 3),
    folder="/lake/checkpoints/default.sales/sales",
    declared_flows=frozenset({"sales"}),
    sources=(facts_of(KAFKA, BROKER, {}),),
    stateful=False,
    describe=describe_source,
)


Read = tuple[SourceIdentity, Position]
"""A source, and where it ended."""


def entry(checkpoint: str, *reads: Read) -> dict[str, Any]:
    """What a commit says of how far it has read."""
    return {
        "checkpoint": checkpoint,
        "sources": [
            {"index": s.index, "kind": s.kind, "identity": s.identity, "until": until.to_json()}
            for s, until in reads
        ],
    }


def fed_by(*reads: Read, before: tuple[dict[str, Any], ...] = ()) -> TableFacts:
    """A table as the checkpoint in force has left it, and what checkpoints before that one had read."""
    return TableFacts(
        table_id="table",
        fresh=False,
        checkpoints={"sales": OURS},
        transactions={OURS: 7},
        positions={source.index: until for source, until in reads},
        sources=tuple(source for source, _ in reads),
        history=History.of((*before, entry(OURS, *reads))),
    )


TABLE = fed_by((KAFKA, READ[0]))
IDENTITY = CheckpointIdentity(
    pipeline="shop",
    flow="sales",
    dataset="default.sales",
    checkpoint=OURS,
    generation=1,
    table_id="table",
    created="2026-11-21T00:00:00+00:00",
    sources=(KAFKA,),
)
CHECKPOINT = CheckpointFacts(identity=IDENTITY, last_planned=7, last_finished=7, positions=READ)


def broker(**changes: Any) -> dict[int, dict[str, Any]]:
    return {0: {**BROKER, **changes}}


def read_by(*sources: SourceIdentity) -> CheckpointFacts:
    return replace(CHECKPOINT, identity=replace(IDENTITY, sources=sources))


def refused(flow: FlowFacts, table: TableFacts, checkpoint: CheckpointFacts | None) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        decide(flow, table, checkpoint)
    error = caught.value
    assert not error.transient
    assert error.params["flow"] == "sales"
    assert error.location == (flow.places or (FLOW.location,))[0]
    return error


# What goes on.


@pytest.mark.parametrize(
    ("transaction", "planned", "finished"),
    [
        pytest.param(7, 7, 7, id="stopped between two batches"),
        pytest.param(6, 7, 6, id="killed before the commit"),
        pytest.param(7, 7, 6, id="killed after the commit"),
        pytest.param(None, 0, -1, id="killed in the first batch"),
        pytest.param(None, -1, -1, id="killed before the first batch"),
    ],
)
def test_a_checkpoint_that_agrees_with_its_table_goes_on(
    transaction: int | None, planned: int, finished: int
) -> None:
    table = replace(TABLE, transactions={} if transaction is None else {OURS: transaction})
    checkpoint = replace(CHECKPOINT, last_planned=planned, last_finished=finished)
    assert decide(FLOW, table, checkpoint) == Continue(identity=IDENTITY)


def test_a_partition_that_is_new_in_a_planned_batch_is_no_other_range() -> None:
    checkpoint = replace(
        CHECKPOINT, last_planned=8, positions={0: KafkaOffsets({"sales": {0: 40, 1: 50, 2: 0}})}
    )
    assert decide(FLOW, TABLE, checkpoint) == Continue(identity=IDENTITY)


def test_a_flow_that_never_ran_opens_its_first_checkpoint() -> None:
    assert decide(FLOW, replace(TABLE, checkpoints={}, transactions={}), None) == Open(reason="first")


def test_a_second_flow_of_a_table_opens_its_first_checkpoint() -> None:
    flow = change(FLOW, declared_flows=frozenset({"sales", "returns"}))
    table = replace(TABLE, checkpoints={"returns": OLDER}, transactions={OLDER: 3})
    assert decide(flow, table, None) == Open(reason="first")


# What is refused.

LOST_LISTS = {"unlisted": frozenset({(OURS, 0)})}
FOLDER = fed_by((FILES, FilePosition(3)))
RENAMED = replace(TABLE, checkpoints={"old": OLDER}, transactions={OLDER: 3})
ANEW = replace(TABLE, table_id="another", checkpoints={}, transactions={})


@pytest.mark.parametrize(
    ("code", "table", "checkpoint", "remedy"),
    [
        pytest.param("CHECKPOINT_LOST", TABLE, None, "reset sales", id="checkpoint lost"),
        pytest.param(
            "CHECKPOINT_BEHIND_TABLE",
            replace(TABLE, transactions={OURS: 9}),
            CHECKPOINT,
            "reset sales",
            id="an older copy was restored",
        ),
        pytest.param(
            "CHECKPOINT_BEHIND_TABLE",
            replace(TABLE, checkpoints={"sales": "headrace-newer"}),
            CHECKPOINT,
            "reset sales",
            id="another checkpoint feeds the table now",
        ),
        pytest.param(
            "CHECKPOINT_BEHIND_TABLE",
            replace(TABLE, checkpoints={"sales": "headrace-newer"}, transactions={OURS: FENCED}),
            CHECKPOINT,
            "reset sales",
            id="the checkpoint was fenced",
        ),
        pytest.param(
            "CHECKPOINT_BEHIND_TABLE",
            TABLE,
            replace(CHECKPOINT, positions={0: KafkaOffsets({"sales": {0: 39, 1: 50}})}),
            "reset sales",
            id="the last batch was planned with other ranges",
        ),
        pytest.param(
            "TABLE_BEHIND_CHECKPOINT",
            replace(TABLE, transactions={OURS: 5}),
            CHECKPOINT,
            "reset sales",
            id="the table went back",
        ),
        pytest.param("TABLE_LOST", ANEW, CHECKPOINT, "full-refresh sales", id="the table was made anew"),
        pytest.param(
            "TABLE_LOST",
            replace(TABLE, checkpoints={}),
            CHECKPOINT,
            "full-refresh sales",
            id="the table does not know the checkpoint",
        ),
        pytest.param("FLOW_RENAMED", RENAMED, None, "run --rename-flow old=sales", id="the flow was renamed"),
    ],
)
def test_what_could_lose_or_double_records_is_refused(
    code: str, table: TableFacts, checkpoint: CheckpointFacts | None, remedy: str
) -> None:
    error = refused(FLOW, table, checkpoint)
    assert error.code == code
    assert any(remedy in line for line in error.remedies)


@pytest.mark.parametrize("latest", [10, 45, 1000], ids=["shorter", "as long", "longer"])
def test_a_topic_that_was_created_again_is_refused_however_long_it_is(latest: int) -> None:
    again = SourceIdentity(index=0, kind="kafka", identity={"topics": {"sales": "id-2"}})
    kafka = broker(latest={"sales": {0: latest, 1: latest}})
    error = refused(change(FLOW, sources=(again,), kafka=kafka), TABLE, CHECKPOINT)
    assert error.code == "TOPIC_RECREATED"
    assert (error.params["topic"], error.params["was"], error.params["is"]) == ("sales", "id-1", "id-2")
    assert any("reset sales" in line for line in error.remedies)


def test_a_topic_that_is_gone_is_refused() -> None:
    gone = SourceIdentity(index=0, kind="kafka", identity={"topics": {"sales": None}})
    kafka = broker(earliest={}, latest={})
    assert refused(change(FLOW, sources=(gone,), kafka=kafka), TABLE, CHECKPOINT).code == "TOPIC_NOT_FOUND"


@pytest.mark.parametrize(
    ("now", "then", "code"),
    [
        (KAFKA, DELTA, "SOURCES_CHANGED"),
        (DELTA, KAFKA, "SOURCES_CHANGED"),
        (
            SourceIdentity(index=0, kind="kafka", identity={"topics": {"other": "id-9"}}),
            KAFKA,
            "SOURCES_CHANGED",
        ),
        (
            SourceIdentity(index=0, kind="kafka", identity={"topics": {"sales": "id-1", "more": "id-2"}}),
            KAFKA,
            "SOURCES_CHANGED",
        ),
        (
            SourceIdentity(index=0, kind="delta", identity={"table_id": "anew", "path": "/lake/up"}),
            DELTA,
            "SOURCES_CHANGED",
        ),
        (SourceIdentity(index=0, kind="files", identity={"path": "/elsewhere"}), FILES, "SOURCES_CHANGED"),
    ],
    ids=[
        "kafka for delta",
        "delta for kafka",
        "another topic",
        "one topic more",
        "upstream made anew",
        "another folder",
    ],
)
def test_positions_of_other_sources_are_refused(now: SourceIdentity, then: SourceIdentity, code: str) -> None:
    flow = change(FLOW, sources=(now,), kafka={})
    assert refused(flow, TABLE, read_by(then)).code == code


ELSEWHERE = replace(KAFKA, identity={**KAFKA.identity, "servers": "b:2"})
OTHER_TOPIC = replace(KAFKA, identity={"topics": {"sales": "id-9"}, "servers": "b:2"})


def test_a_flow_that_moves_to_another_cluster_is_refused() -> None:
    error = refused(change(FLOW, sources=(OTHER_TOPIC,)), TABLE, CHECKPOINT)
    assert error.code == "SOURCES_CHANGED"
    assert "kafka sales" in error.facts[0] and "kafka sales at b:2" in error.facts[1]
    read = SourceLocation("sales.py", 9)
    error = refused(replace(change(FLOW, sources=(OTHER_TOPIC,)), places=(read,)), TABLE, CHECKPOINT)
    assert error.location == read and error.remedies[1].startswith("or remove all rows of sales, and read ")


def test_another_list_of_the_same_cluster_s_brokers_is_no_change() -> None:
    assert isinstance(decide(change(FLOW, sources=(ELSEWHERE,)), TABLE, CHECKPOINT), Continue)


def test_a_source_more_or_less_is_refused() -> None:
    second = SourceIdentity(index=1, kind="files", identity={"path": "/in"})
    assert refused(change(FLOW, sources=(KAFKA, second)), TABLE, CHECKPOINT).code == "SOURCES_CHANGED"
    assert refused(FLOW, TABLE, read_by(KAFKA, second)).code == "SOURCES_CHANGED"


def other(index: int, options: str | None) -> SourceIdentity:
    identity = {"format": "rate"} | ({} if options is None else {"options": options})
    return SourceIdentity(index=index, kind="other", identity=identity)


@pytest.mark.parametrize(
    ("now", "then", "query", "goes_on"),
    [
        (("a", "b"), ("a", "b"), "new", True),
        (("b", "a"), ("a", "b"), "old", False),
        (("b", "a"), ("a", "b"), "new", False),
        (("a", "a"), ("a", "a"), "new", False),
        (("a", "a"), ("a", "a"), "old", True),
        (("a", "c"), ("a", "b"), "old", True),
        (("a", "b"), (None, None), "old", True),
        (("a", "b"), (None, None), "new", False),
    ],
)
def test_streams_of_one_format_keep_their_order(
    now: tuple[str, str], then: tuple[str | None, ...], query: str, goes_on: bool
) -> None:
    flow = change(FLOW, sources=tuple(other(*one) for one in enumerate(now)), kafka={}, query=query)
    before = tuple(other(*one) for one in enumerate(then))
    ends = [OpaquePosition(7), OpaquePosition(9)]
    checkpoint = replace(read_by(*before), positions=dict(enumerate(ends)), query="old")
    table = fed_by(*zip(before, ends, strict=True))
    if goes_on:
        assert isinstance(decide(flow, table, checkpoint), Continue)
    else:
        assert refused(flow, table, checkpoint).code == "SOURCES_CHANGED"


def delta_at(version: int) -> DeltaPosition:
    return DeltaPosition(table_id="upstream", version=version, index=-1)


@pytest.mark.parametrize(
    ("source", "here", "there"),
    [
        (KAFKA, READ[0], KafkaOffsets({"sales": {0: 41, 1: 50}})),
        (FILES, FilePosition(3), FilePosition(2)),
        (DELTA, delta_at(4), delta_at(5)),
    ],
    ids=["kafka", "files", "delta"],
)
def test_a_changed_query_with_two_reads_at_different_positions_is_refused(
    source: SourceIdentity, here: Position, there: Position
) -> None:
    two = (source, replace(source, index=1))
    flow = change(FLOW, sources=two, kafka={0: BROKER, 1: BROKER} if source is KAFKA else {}, query="new")

    def read_to(*ends: Position) -> tuple[TableFacts, CheckpointFacts]:
        before = replace(read_by(*two), positions=dict(enumerate(ends)), query="old")
        return fed_by(*zip(two, ends, strict=True)), before

    assert isinstance(decide(flow, *read_to(here, here)), Continue)
    table, checkpoint = read_to(here, there)
    error = refused(flow, table, checkpoint)
    assert (error.code, error.params["source"]) == ("SOURCES_CHANGED", 1)
    for query in (None, "new"):
        assert isinstance(decide(flow, table, replace(checkpoint, query=query)), Continue)


def test_a_broker_that_lost_what_was_read_is_refused() -> None:
    error = refused(change(FLOW, kafka=broker(latest={"sales": {0: 39, 1: 50}})), TABLE, CHECKPOINT)
    assert error.code == "OFFSETS_BEYOND_END"
    assert (error.params["topic"], error.params["partition"]) == ("sales", 0)


@pytest.mark.parametrize("asked", [{}, {"reset": True}], ids=str)
def test_a_log_that_was_rolled_back_and_used_again_is_refused(asked: dict[str, bool]) -> None:
    read = LastRecord(39, RecordMark(1_700_000_000_000))
    reused = ReusedOffset("sales", 0, read, RecordMark(1_700_000_001_234))
    error = refused(change(FLOW, kafka=broker(reused=(reused,)), **asked), TABLE, CHECKPOINT)
    assert error.code == "OFFSETS_REUSED"
    assert error.params == {
        "flow": "sales",
        "topic": "sales",
        "partition": 0,
        "offset": 39,
        "timestamp_ms": 1_700_000_000_000,
        "now_ms": 1_700_000_001_234,
    }
    assert "headrace full-refresh sales" in error.remedies[-1]
    shown = error.facts[0]
    assert "2023-11-14 22:13:20.000 UTC" in shown and "2023-11-14 22:13:21.234 UTC" in shown


EXPIRED = broker(earliest={"sales": {0: 45, 1: 0}})


def test_records_that_expired_unread_are_refused_by_default() -> None:
    error = refused(change(FLOW, kafka=EXPIRED), TABLE, CHECKPOINT)
    assert error.code == "OFFSETS_EXPIRED"
    assert error.params["losses"] == [
        {"source": 0, "topic": "sales", "partition": 0, "from": 40, "until": 45}
    ]


def test_a_partition_that_expired_before_it_was_ever_read_counts_too() -> None:
    kafka = broker(earliest={"sales": {0: 0, 1: 0, 2: 8}}, latest={"sales": {0: 100, 1: 100, 2: 20}})
    error = refused(change(FLOW, kafka=kafka), TABLE, CHECKPOINT)
    assert error.params["losses"] == [{"source": 0, "topic": "sales", "partition": 2, "from": 0, "until": 8}]


# What the remedies do.


def test_recorded_losses_open_a_generation_behind_them_and_fence_the_old_one() -> None:
    opening = decide(change(FLOW, kafka=EXPIRED, on_data_loss="record"), TABLE, CHECKPOINT)
    assert opening == Open(
        reason="data-loss",
        positions={0: KafkaOffsets({"sales": {0: 45, 1: 50}})},
        fences=OURS,
        losses=({"source": 0, "topic": "sales", "partition": 0, "from": 40, "until": 45},),
    )


def test_a_stateful_flow_cannot_go_on_behind_losses() -> None:
    flow = change(FLOW, kafka=EXPIRED, on_data_loss="record", stateful=True)
    assert refused(flow, TABLE, CHECKPOINT).code == "RESUME_IMPOSSIBLE"


RESUME = change(FLOW, reset=True)


def test_a_resumed_flow_starts_where_the_table_ends() -> None:
    assert decide(RESUME, TABLE, None) == Open(reason="reset", positions=READ, fences=OURS)


def test_a_resumed_flow_that_never_committed_starts_at_the_beginning() -> None:
    opening = decide(RESUME, replace(TABLE, transactions={}, positions=None, history=History()), None)
    assert opening == Open(reason="reset", fences=OURS)


@pytest.mark.parametrize(
    ("flow", "table", "code"),
    [
        (change(RESUME, stateful=True), TABLE, "RESUME_IMPOSSIBLE"),
        (change(RESUME, sources=(FILES,), files=LOST_LISTS), FOLDER, "RESUME_IMPOSSIBLE"),
        (RESUME, replace(TABLE, positions=None), "RESUME_IMPOSSIBLE"),
        (change(RESUME, kafka=EXPIRED), TABLE, "OFFSETS_EXPIRED"),
        (change(RESUME, kafka=broker(latest={"sales": {0: 1, 1: 1}})), TABLE, "OFFSETS_BEYOND_END"),
    ],
    ids=["stateful", "files", "no positions", "expired", "beyond the end"],
)
def test_a_resume_that_would_lose_or_double_records_is_refused(
    flow: FlowFacts, table: TableFacts, code: str
) -> None:
    assert refused(flow, table, None).code == code


def test_a_resume_behind_expired_records_records_them() -> None:
    opening = decide(change(RESUME, kafka=EXPIRED, on_data_loss="record"), TABLE, None)
    assert isinstance(opening, Open)
    assert (opening.reason, opening.fences) == ("data-loss", OURS)
    assert [loss["until"] for loss in opening.losses] == [45]


def test_a_renamed_flow_goes_on_under_its_new_name() -> None:
    assert decide(change(FLOW, rename_from="old"), RENAMED, None) == RenameFlow(old_flow="old")


def test_a_rename_that_a_crash_cut_short_is_repeated() -> None:
    assert decide(change(FLOW, rename_from="old"), TABLE, None) == RenameFlow(old_flow="old")


def test_a_rename_that_is_done_changes_nothing() -> None:
    assert decide(change(FLOW, rename_from="old"), TABLE, CHECKPOINT) == Continue(identity=IDENTITY)


def test_a_flow_that_is_still_declared_cannot_be_renamed() -> None:
    flow = change(FLOW, rename_from="old", declared_flows=frozenset({"sales", "old"}))
    assert refused(flow, RENAMED, None).code == "RENAME_IMPOSSIBLE"


ANOTHER = change(FLOW, reset=True)


def test_a_new_checkpoint_of_the_same_topic_goes_on_where_the_table_ends() -> None:
    assert decide(ANOTHER, TABLE, CHECKPOINT) == Open(reason="reset", positions=READ, fences=OURS)


def test_a_new_checkpoint_reads_what_was_created_again_and_nothing_twice() -> None:
    def ids(sales: str, more: str) -> SourceIdentity:
        return SourceIdentity(index=0, kind="kafka", identity={"topics": {"sales": sales, "more": more}})

    kafka = broker(
        earliest={"sales": {0: 0, 1: 0}, "more": {0: 4}}, latest={"sales": {0: 100, 1: 100}, "more": {0: 20}}
    )
    table = fed_by((ids("id-1", "id-2"), KafkaOffsets({**READ[0].offsets, "more": {0: 11}})))
    opening = decide(change(ANOTHER, sources=(ids("id-1", "id-3"),), kafka=kafka), table, CHECKPOINT)
    assert opening == Open(
        reason="reset", positions={0: KafkaOffsets({**READ[0].offsets, "more": {0: 4}})}, fences=OURS
    )


UPSTREAM = DeltaPosition(table_id="upstream", version=4, index=-1)
EARLIER = replace(UPSTREAM, version=2)
SECOND = replace(DELTA, index=1)


def test_a_new_checkpoint_over_the_same_table_goes_on_where_it_was() -> None:
    table = fed_by((DELTA, UPSTREAM))
    opening = decide(change(ANOTHER, sources=(DELTA,), kafka={}), table, None)
    assert opening == Open(reason="reset", positions={0: UPSTREAM}, fences=OURS)


def test_a_new_checkpoint_over_a_table_made_anew_starts_at_its_beginning() -> None:
    anew = replace(DELTA, identity={"table_id": "anew", "path": "/lake/up"})
    table = fed_by((DELTA, UPSTREAM))
    opening = decide(change(ANOTHER, sources=(anew,), kafka={}), table, None)
    assert isinstance(opening, Open) and not opening.positions


def test_a_new_checkpoint_with_a_source_that_was_never_read_reads_the_others_on() -> None:
    opening = decide(change(ANOTHER, sources=(KAFKA, SECOND)), TABLE, None)
    assert opening == Open(reason="reset", positions=READ, fences=OURS)


def test_a_new_checkpoint_over_the_same_files_goes_on_behind_them() -> None:
    table = fed_by((FILES, FilePosition(3)))
    flow = change(ANOTHER, sources=(FILES,), kafka={})
    opening = decide(flow, table, None)
    assert opening == Open(reason="reset", positions={0: FilePosition(3)}, lists={0: (OURS, 0)}, fences=OURS)
    assert refused(change(flow, files=LOST_LISTS), table, None).code == "RESUME_IMPOSSIBLE"


def test_a_new_checkpoint_over_another_folder_reads_all_of_it() -> None:
    table = fed_by((FILES, FilePosition(3)))
    elsewhere = replace(FILES, identity={"path": "/elsewhere"})
    opening = decide(change(ANOTHER, sources=(elsewhere,), kafka={}), table, None)
    assert opening == Open(reason="reset", fences=OURS)


def test_a_loss_in_kafka_opens_no_checkpoint_that_would_read_files_again() -> None:
    second = replace(FILES, index=1)
    positions = {**READ, 1: FilePosition(3)}
    flow = change(FLOW, sources=(KAFKA, second), kafka=EXPIRED, on_data_loss="record")
    table = fed_by((KAFKA, READ[0]), (second, FilePosition(3)))
    checkpoint = replace(read_by(KAFKA, second), positions=positions)
    opening = decide(flow, table, checkpoint)
    assert isinstance(opening, Open)
    assert opening.positions is not None
    assert (opening.positions[1], opening.lists) == (FilePosition(3), {1: (OURS, 1)})
    lost = change(flow, kafka=EXPIRED, files={"unlisted": frozenset({(OURS, 1)})})
    assert refused(lost, table, checkpoint).code == "RESUME_IMPOSSIBLE"


def test_a_new_checkpoint_of_a_flow_that_never_committed_starts_at_the_beginning() -> None:
    table = replace(TABLE, transactions={}, positions=None, history=History())
    assert decide(ANOTHER, table, None) == Open(reason="reset", fences=OURS)


def test_a_new_flow_beside_a_renamed_one_starts_at_the_beginning_when_asked() -> None:
    assert decide(ANOTHER, RENAMED, None) == Open(reason="reset")


def test_a_new_checkpoint_that_nobody_can_place_is_refused() -> None:
    assert refused(ANOTHER, replace(TABLE, positions=None), None).code == "RESUME_IMPOSSIBLE"
    assert refused(change(ANOTHER, stateful=True), TABLE, None).code == "RESUME_IMPOSSIBLE"


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("source", [KAFKA, FILES], ids=["kafka", "files"])
def test_no_refusal_names_a_resume_that_would_itself_be_refused(
    source: SourceIdentity, stateful: bool
) -> None:
    flow = change(FLOW, sources=(source,), stateful=stateful)
    error = refused(flow, TABLE, None)
    proposed = any("headrace reset" in line for line in error.remedies)
    possible: Opening | None
    try:
        possible = decide(change(flow, reset=True), replace(TABLE, sources=(source,)), None)
    except HeadraceError:
        possible = None
    assert proposed == (possible is not None)


# Topics by a pattern, and by partitions.

PATTERN = "sales.*"


def matched(**ids: str | None) -> SourceIdentity:
    return SourceIdentity(index=0, kind="kafka", identity={"topics": ids, "pattern": PATTERN})


def subscribed(**ids: str | None) -> FlowFacts:
    kafka = {"earliest": {t: {0: 0, 1: 0} for t in ids}, "latest": {t: {0: 100, 1: 100} for t in ids}}
    return change(FLOW, sources=(matched(**ids),), kafka={0: kafka})


JOINED = {0: KafkaOffsets({"sales": {0: 40, 1: 50}, "sales2": {0: 1, 1: 0}})}


def test_topics_may_join_a_pattern() -> None:
    checkpoint = read_by(matched(sales="id-1"))
    assert isinstance(decide(subscribed(sales="id-1", sales2="id-2"), TABLE, checkpoint), Continue)
    plain = replace(TABLE, sources=(matched(sales="id-1"),))
    assert isinstance(decide(subscribed(sales="id-1", sales2="id-2"), plain, CHECKPOINT), Continue)


@pytest.mark.parametrize(
    ("now", "code"),
    [({"sales2": "another"}, "TOPIC_RECREATED"), ({}, "TOPIC_NOT_FOUND"), ({"sales2": "id-2"}, None)],
)
def test_a_topic_that_has_joined_is_watched_by_the_id_of_its_commit(
    now: dict[str, str], code: str | None
) -> None:
    """The checkpoint's identity is older than the topic."""
    table = replace(TABLE, positions=JOINED, sources=(matched(sales="id-1", sales2="id-2"),))
    flow = subscribed(sales="id-1", **now)
    # A query may have named its topics before it had a pattern.
    for then in (matched(sales="id-1"), KAFKA):
        checkpoint = replace(read_by(then), positions=JOINED)
        if code is None:
            assert isinstance(decide(flow, table, checkpoint), Continue)
            continue
        error = refused(flow, table, checkpoint)
        assert (error.code, error.params["topic"]) == (code, "sales2")
        assert any("reset sales" in remedy for remedy in error.remedies)


def test_a_topic_of_a_batch_that_was_never_committed_has_no_id_to_compare() -> None:
    table = replace(TABLE, sources=(matched(sales="id-1"),))
    planned = {0: KafkaOffsets({"sales": {0: 40, 1: 50}, "sales2": {0: 0}})}
    checkpoint = replace(read_by(matched(sales="id-1")), last_planned=8, positions=planned)
    assert isinstance(decide(subscribed(sales="id-1", sales2="any"), table, checkpoint), Continue)
    assert refused(subscribed(sales="id-1"), table, checkpoint).code == "TOPIC_NOT_FOUND"


@pytest.mark.parametrize(
    ("now", "code"),
    [
        ({}, "TOPIC_NOT_FOUND"),
        ({"sales2": "another"}, "TOPIC_RECREATED"),
        ({"sales2": "id-2"}, "CHECKPOINT_BEHIND_TABLE"),
    ],
)
def test_a_batch_that_was_planned_while_a_topic_was_gone_is_no_old_copy(
    now: dict[str, str], code: str
) -> None:
    """Spark leaves such a topic out of the batch, and will never read the batch."""
    table = replace(TABLE, positions=JOINED, sources=(matched(sales="id-1", sales2="id-2"),))
    planned = {0: KafkaOffsets({"sales": {0: 40, 1: 50}})}
    checkpoint = replace(read_by(matched(sales="id-1")), last_planned=8, positions=planned)
    assert refused(subscribed(sales="id-1", **now), table, checkpoint).code == code


def test_other_partitions_are_another_source() -> None:
    def assigned(*partitions: int) -> SourceIdentity:
        identity = {"topics": {"sales": "id-1"}, "partitions": {"sales": list(partitions)}}
        return SourceIdentity(index=0, kind="kafka", identity=identity)

    flow = change(FLOW, sources=(assigned(0),))
    assert isinstance(decide(flow, TABLE, read_by(assigned(0))), Continue)
    for then in (assigned(0, 1), KAFKA):
        assert refused(flow, TABLE, read_by(then)).code == "SOURCES_CHANGED"


@pytest.mark.parametrize(
    ("pipeline", "source", "recorded"), [("refuse", "record", True), ("record", "refuse", False)]
)
def test_a_source_s_own_loss_policy_comes_first(pipeline: Any, source: Any, recorded: bool) -> None:
    kafka = broker(earliest={"sales": {0: 45, 1: 0}}, on_data_loss=source)
    flow = change(FLOW, on_data_loss=pipeline, kafka=kafka)
    if recorded:
        opening = decide(flow, TABLE, CHECKPOINT)
        assert isinstance(opening, Open) and opening.reason == "data-loss"
    else:
        assert refused(flow, TABLE, CHECKPOINT).code == "OFFSETS_EXPIRED"


# Sources that are easily taken for each other.


def folder(index: int, path: str = "/in", glob: str | None = None) -> SourceIdentity:
    return SourceIdentity(
        index=index, kind="files", identity={"path": path} | ({"glob": glob} if glob else {})
    )


READ_FILES = {0: FilePosition(3), 1: FilePosition(5)}


def test_folders_that_have_changed_places_go_on_each_where_it_was() -> None:
    table = fed_by((folder(0, "/one"), READ_FILES[0]), (folder(1, "/two"), READ_FILES[1]))
    flow = change(FLOW, sources=(folder(0, "/two"), folder(1, "/one")), kafka={}, reset=True)
    opening = decide(flow, table, None)
    assert isinstance(opening, Open)
    assert opening.positions == {0: READ_FILES[1], 1: READ_FILES[0]}
    assert opening.lists == {0: (OURS, 1), 1: (OURS, 0)}


@pytest.mark.parametrize("source", [DELTA, KAFKA], ids=["delta", "kafka"])
def test_what_a_join_has_read_up_to_two_positions_starts_nowhere(source: SourceIdentity) -> None:
    kafka = {0: BROKER} if source is KAFKA else {}
    flow = change(FLOW, sources=(source,), kafka=kafka, reset=True)
    end, behind = (
        (READ[0], KafkaOffsets({"sales": {0: 7, 1: 50}})) if source is KAFKA else (UPSTREAM, EARLIER)
    )
    other = replace(source, index=1)
    assert refused(flow, fed_by((source, end), (other, behind)), None).code == "RESUME_IMPOSSIBLE"
    level = decide(flow, fed_by((source, end), (other, end)), None)
    assert isinstance(level, Open) and level.positions == {0: end}


def test_the_only_read_of_a_folder_may_choose_other_files() -> None:
    flow = change(FLOW, sources=(folder(0, glob="*.json"),), kafka={})
    table = fed_by((folder(0), FilePosition(3)))
    checkpoint = replace(read_by(folder(0)), positions={0: FilePosition(3)})
    assert isinstance(decide(flow, table, checkpoint), Continue)


# Sources that were read by a checkpoint before the last, and are back.


def topics(*names: str, pattern: str | None = None) -> SourceIdentity:
    identity: dict[str, Any] = {"topics": {name: f"id of {name}" for name in names}}
    return SourceIdentity(
        index=0, kind="kafka", identity=identity if pattern is None else {**identity, "pattern": pattern}
    )


def reading(source: SourceIdentity, **changes: Any) -> FlowFacts:
    """The flow over topics of one partition with 100 records."""
    ids = source.identity["topics"]
    kafka = {"earliest": {name: {0: 0} for name in ids}, "latest": {name: {0: 100} for name in ids}}
    return change(FLOW, sources=(source,), kafka={0: kafka}, **changes)


LEFT = entry(OLDER, (topics("eu", "us"), KafkaOffsets({"eu": {0: 10}, "us": {0: 20}})))
NARROWED = fed_by((topics("eu"), KafkaOffsets({"eu": {0: 30}})), before=(LEFT,))


@pytest.mark.parametrize("pattern", [".*", None])
def test_a_topic_that_is_back_goes_on_where_it_was_left(pattern: str | None) -> None:
    now = topics("eu", "us", pattern=pattern) if pattern else topics("eu", "us")
    table = fed_by((topics("eu", pattern=".*"), KafkaOffsets({"eu": {0: 30}})), before=(LEFT,))
    opening = decide(reading(now, reset=True), table, None)
    assert isinstance(opening, Open)
    assert opening.positions == {0: KafkaOffsets({"eu": {0: 30}, "us": {0: 20}})}


def test_a_topic_that_a_pattern_matches_again_is_not_read_again() -> None:
    then, now = topics("eu", pattern="eu"), topics("eu", "us", pattern=".*")
    checkpoint = replace(read_by(then), positions={0: KafkaOffsets({"eu": {0: 30}})})
    error = refused(reading(now), fed_by((then, KafkaOffsets({"eu": {0: 30}})), before=(LEFT,)), checkpoint)
    assert (error.code, error.params["topic"], error.params["offset"]) == ("SOURCES_CHANGED", "us", 20)
    assert any("reset sales" in remedy for remedy in error.remedies)
    never_read = fed_by((then, KafkaOffsets({"eu": {0: 30}})))
    assert isinstance(decide(reading(now), never_read, checkpoint), Continue)


def test_a_partition_that_is_assigned_again_goes_on_where_it_was_left() -> None:
    left = entry(OLDER, (KAFKA, KafkaOffsets({"sales": {0: 7, 1: 8}})))
    table = fed_by((KAFKA, KafkaOffsets({"sales": {0: 40}})), before=(left,))
    opening = decide(ANOTHER, table, None)
    assert isinstance(opening, Open) and opening.positions == {0: KafkaOffsets({"sales": {0: 40, 1: 8}})}


@pytest.mark.parametrize(
    ("source", "until"), [(DELTA, UPSTREAM), (FILES, FilePosition(3))], ids=["delta", "files"]
)
def test_a_table_or_a_folder_that_is_back_goes_on_where_it_was_left(
    source: SourceIdentity, until: dict[str, Any]
) -> None:
    table = fed_by((KAFKA, READ[0]), before=(entry(OLDER, (source, until)),))
    back = replace(source, index=1)
    flow = change(ANOTHER, sources=(KAFKA, back))
    opening = decide(flow, table, None)
    assert isinstance(opening, Open) and opening.positions == {**READ, 1: until}
    assert opening.lists == ({1: (OLDER, 0)} if source is FILES else {})
    if source is FILES:
        unlisted = change(flow, files={"unlisted": frozenset({(OLDER, 0)})})
        assert refused(unlisted, table, None).code == "RESUME_IMPOSSIBLE"


@pytest.mark.parametrize("flow", [ANOTHER, RESUME], ids=["new generation", "resume"])
def test_what_an_earlier_checkpoint_read_counts_before_the_first_batch_of_the_next(flow: FlowFacts) -> None:
    table = replace(fed_by(before=(entry(OLDER, (KAFKA, READ[0])),)), transactions={}, positions=None)
    opening = decide(flow, table, None)
    assert isinstance(opening, Open) and opening.positions == READ


def test_nothing_is_taken_for_new_while_an_earlier_checkpoint_is_unknown() -> None:
    table = fed_by((topics("eu"), KafkaOffsets({"eu": {0: 30}})))
    hidden = replace(table, history=replace(table.history, whole=False))
    both = reading(topics("eu", "us"), reset=True)
    assert isinstance(decide(both, table, None), Open)
    assert refused(both, hidden, None).code == "RESUME_IMPOSSIBLE"
    assert isinstance(decide(reading(topics("eu"), reset=True), hidden, None), Open)
    sources = (topics("eu"), replace(DELTA, index=1))
    held = {0: {"earliest": {"eu": {0: 0}}, "latest": {"eu": {0: 100}}}}
    back = change(ANOTHER, sources=sources, kafka=held)
    assert refused(back, hidden, None).code == "RESUME_IMPOSSIBLE"


def test_a_folder_that_holds_files_which_were_read_through_another_is_refused() -> None:
    table = fed_by((FILES, FilePosition(3)))
    around = replace(FILES, identity={"path": "/*"})
    flow = change(ANOTHER, sources=(around,), files={"read_elsewhere": "/in/a.json"})
    error = refused(flow, table, None)
    assert error.code == "RESUME_IMPOSSIBLE" and "/in/a.json" in error.summary


# Streams whose positions only Spark understands.

OTHER = SourceIdentity(index=0, kind="other", identity={"format": "rate"})
STREAMED = fed_by((OTHER, OpaquePosition(17)))
STREAM = change(FLOW, sources=(OTHER,))


def test_a_stream_of_another_kind_continues_with_its_checkpoint() -> None:
    checkpoint = replace(read_by(OTHER), positions={0: OpaquePosition(17)})
    assert isinstance(decide(STREAM, STREAMED, checkpoint), Continue)
    other_end = replace(checkpoint, positions={0: OpaquePosition(16)})
    assert refused(STREAM, STREAMED, other_end).code == "CHECKPOINT_BEHIND_TABLE"
    other_format = change(FLOW, sources=(replace(OTHER, identity={"format": "mine"}),))
    assert refused(other_format, STREAMED, checkpoint).code == "SOURCES_CHANGED"


def test_a_stream_of_another_kind_never_starts_at_a_position_of_another_checkpoint() -> None:
    lost = refused(STREAM, STREAMED, None)
    assert lost.code == "CHECKPOINT_LOST"
    assert lost.remedies[0] == "read everything again:   headrace full-refresh sales"
    assert "/lake/checkpoints/default.sales/sales" in lost.facts[0]
    error = refused(change(STREAM, reset=True), STREAMED, None)
    assert (error.code, "rate" in error.summary) == ("RESUME_IMPOSSIBLE", True)


def test_a_loss_in_kafka_opens_no_checkpoint_beside_a_stream_of_another_kind() -> None:
    second = replace(OTHER, index=1)
    flow = change(FLOW, sources=(KAFKA, second), kafka=EXPIRED, on_data_loss="record")
    table = fed_by((KAFKA, READ[0]), (second, OpaquePosition(17)))
    checkpoint = replace(read_by(KAFKA, second), positions={**READ, 1: OpaquePosition(17)})
    assert refused(flow, table, checkpoint).code == "RESUME_IMPOSSIBLE"


def test_a_table_of_which_an_older_copy_was_restored_is_refused() -> None:
    facts = DeltaFacts(source=DELTA, rolled_back="version 4 of it was read, and it ends at version 3")
    flow = replace(FLOW, sources=(facts,))
    error = refused(flow, fed_by((DELTA, UPSTREAM)), read_by(DELTA))
    assert (error.code, error.params["tables"]) == ("UPSTREAM_REWRITTEN", ["/lake/up"])


@pytest.mark.parametrize("asked", [{}, {"reset": True}], ids=str)
def test_a_table_that_was_restored_to_before_a_new_checkpoint_is_refused(asked: dict[str, bool]) -> None:
    """It names the old checkpoint again, whose fence stays; which batches it holds is not known."""
    table = replace(TABLE, transactions={OURS: FENCED})
    error = refused(replace(FLOW, **asked), table, CHECKPOINT)
    assert error.code == "TABLE_BEHIND_CHECKPOINT"
    (remedy,) = error.remedies
    assert "full-refresh sales" in remedy
