"""The live display: what the board says after events, and which lines a log gets."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from rich.console import Console

from headrace.model.event_forms import Event
from headrace.model.events import (
    BatchCommitted,
    BatchStarted,
    FlowFailed,
    FlowFinished,
    FlowReconnected,
    FlowReconnecting,
    FlowRetrying,
    FlowStarted,
    UpdateFinished,
    UpdateStarted,
    ViewRefreshed,
    ViewRefreshing,
)
from headrace.model.names import TableName
from headrace.observe.board import Board
from headrace.observe.display import LineDisplay, LiveDisplay, board_table, row_cells

START = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
BRONZE = TableName("default", "bronze")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def started() -> Event:
    views = (TableName("default", "gold"), TableName("sales", "gold"))
    return UpdateStarted(
        update="u", at=START, pipeline="shop", mode="continuous", flows=("bronze",), views=views
    )


def commit(seconds: float, batch: int, rows: int = 500, **fields: object) -> BatchCommitted:
    values: dict[str, object] = {"lag": 12, "latency_s": (0.6, 0.2), "duration_s": 0.5, **fields}
    return BatchCommitted(
        update="u", at=at(seconds), flow="bronze", dataset=BRONZE, batch=batch, version=batch + 1, rows=rows,
        ranges=(), **values,  # type: ignore[arg-type]
    )  # fmt: skip


def board_after(*events: Event) -> Board:
    board = Board()
    for event in events:
        board = board.with_event(event)
    return board


def test_the_board_lists_flows_and_views_before_they_start() -> None:
    board = board_after(started())
    assert list(board.rows) == ["bronze", "gold", "sales.gold"]
    assert {row.state for row in board.rows.values()} == {"waiting"}


def test_commits_add_up_and_give_rate_and_latency() -> None:
    row = board_after(started(), commit(1, 0), commit(2, 1, rows=700)).rows["bronze"]
    assert row.rows == 1200
    # From the start of the first batch, half a second before its commit, until now.
    assert row.rate(at(2.5)) == 1200 / 2.0
    assert row.latency_p50() == 0.4
    assert row_cells(row, at(2.5)) == {
        "flow": "bronze", "state": "running", "rows written": "1,200", "rows/s": "600", "lag": "12",
        "batch time": "0.50 s", "latency p50": "0.40 s", "last commit": "v2  0.50 s ago",
    }  # fmt: skip


def test_a_batch_whose_records_are_all_quarantined_is_shown() -> None:
    first, second = commit(1, 0, rows=0, quarantined=7), commit(4, 1, rows=0, quarantined=1)
    row = board_after(started(), first, second).rows["bronze"]
    assert row_cells(row, at(5))["rows written"] == "0 (8 quarantined)"
    assert "+0 rows  7 quarantined" in lines(started(), first)[-1]
    end = FlowFinished(
        update="u", at=at(5), flow="bronze", dataset=BRONZE, outcome="up to date", rows=0, batches=2
    )
    assert lines(started(), first, second, end)[-1].endswith("up to date: 0 rows in 2 batches, 8 quarantined")


def test_the_age_of_a_backlog_is_no_latency() -> None:
    board = board_after(started(), commit(3, 0, latency_s=(130, 110)))
    row = board.rows["bronze"]
    assert (row.latency_p50(), row.backlog_age()) == (None, 120)
    assert row_cells(row, at(3))["latency p50"] == "age 2 min"
    row = board.with_event(commit(4, 1)).rows["bronze"]
    assert (row.latency_p50(), row.backlog_age()) == (0.4, None)
    assert lines(started(), commit(3, 0, latency_s=(130, 110)))[-1] == (
        "bronze  batch 0  +500 rows  lag 12  took 0.50 s  records 2 min old  v1"
    )


def test_an_idle_flow_has_a_rate_of_none_left() -> None:
    row = board_after(started(), commit(1, 0)).rows["bronze"]
    assert row.rate(at(60)) == 0.0


def test_old_commits_leave_the_board() -> None:
    row = board_after(started(), *(commit(number, number) for number in range(100))).rows["bronze"]
    assert len(row.recent) <= 11
    assert row.rows == 50_000


def test_states_follow_what_happens() -> None:
    error = {"code": "BROKER_UNREACHABLE", "summary": "no answer"}
    events: list[tuple[Event, str]] = [
        (FlowStarted(update="u", flow="bronze", dataset=BRONZE, checkpoint="c"), "starting"),
        (BatchStarted(update="u", flow="bronze", dataset=BRONZE, batch=0), "running"),
        (
            FlowRetrying(update="u", flow="bronze", dataset=BRONZE, error=error, attempt=1, wait_s=1),
            "retrying",
        ),
        (FlowFailed(update="u", flow="bronze", dataset=BRONZE, error=error), "failed"),
        (
            FlowFinished(update="u", flow="bronze", dataset=BRONZE, outcome="up to date", rows=7, batches=1),
            "up to date",
        ),
    ]
    board = board_after(started())
    for event, state in events:
        board = board.with_event(event)
        assert board.rows["bronze"].state == state
    assert board.rows["bronze"].rows == 7


def test_a_flow_without_a_broker_reconnects() -> None:
    error = {
        "code": "BROKER_UNREACHABLE",
        "summary": "no answer",
        "facts": ["since 12:00"],
        "remedies": ["headrace doctor"],
    }
    lost = FlowReconnecting(update="u", at=at(2), flow="bronze", dataset=BRONZE, error=error)
    board = board_after(started(), commit(1, 0), lost)
    assert row_cells(board.rows["bronze"], at(14))["state"] == "reconnecting 12 s"
    assert lines(started(), lost)[-1] == (
        "bronze  reconnecting: [BROKER_UNREACHABLE] no answer; since 12:00   help: `headrace doctor`"
    )
    back = FlowReconnected(update="u", at=at(15), flow="bronze", dataset=BRONZE)
    for event in (back, commit(15, 1)):
        assert row_cells(board.with_event(event).rows["bronze"], at(16))["state"] == "running"


def test_a_view_that_is_being_computed_is_seen_at_work() -> None:
    board = board_after(started()).with_event(
        ViewRefreshing(update="u", dataset=TableName("default", "gold"))
    )
    assert board.rows["gold"].state == "running"


def lines(*events: Event) -> list[str]:
    stream = io.StringIO()
    with LineDisplay(stream) as display:
        for event in events:
            display(event)
    # The time of day leads each line.
    return [line.split("  ", 1)[1] for line in stream.getvalue().splitlines()]


def test_batches_make_at_most_one_line_a_second_and_lose_no_rows() -> None:
    events = [commit(number * 0.25, number, rows=100) for number in range(9)]
    found = [line for line in lines(started(), *events) if "batch" in line]
    assert [line.split("  ")[2] for line in found] == ["+100 rows", "+400 rows", "+400 rows"]


def test_one_line_for_one_fact() -> None:
    error = {"code": "TOPIC_RECREATED", "summary": "not the same topic"}
    found = lines(
        started(),
        commit(1, 0),
        FlowRetrying(update="u", flow="bronze", dataset=BRONZE, error=error, attempt=2, wait_s=4),
        FlowFailed(update="u", flow="bronze", dataset=BRONZE, error=error),
        ViewRefreshed(update="u", dataset=TableName("default", "gold"), version=7, rows=1, duration_s=0.8),
        UpdateFinished(update="u", outcome="failed", duration_s=12.4),
    )
    assert found == [
        "shop  1 flow, 2 views, continuous",
        "bronze  batch 0  +500 rows  lag 12  took 0.50 s  latency 0.40 s  v1",
        "bronze  retrying in 4.0 s (attempt 2): [TOPIC_RECREATED] not the same topic",
        "bronze  failed: [TOPIC_RECREATED] not the same topic",
        "gold  refreshed: 1 row  took 0.80 s  v7",
        "failed in 12 s",
    ]


def test_the_table_shows_every_row() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(board_table(board_after(started(), commit(1, 0)), at(2)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "latency p50" in text
    assert "bronze" in text and "sales.gold" in text and "v1" in text


def test_the_live_display_ends_with_the_last_board() -> None:
    stream = io.StringIO()
    with LiveDisplay(stream) as display:
        display(started())
        display(commit(1, 0))
        display.note("a note that stays")
    assert "a note that stays" in stream.getvalue()
    assert "500" in stream.getvalue()


def many(count: int) -> Board:
    names = tuple(f"flow{number:02d}" for number in range(count))
    begun = UpdateStarted(update="u", at=START, pipeline="shop", mode="continuous", flows=names, views=())
    board = board_after(
        begun, *(FlowStarted(update="u", flow=n, dataset=BRONZE, checkpoint="c") for n in names)
    )
    failed = FlowFailed(update="u", flow="flow17", dataset=BRONZE, error={"code": "X", "summary": "no"})
    return board.with_event(failed)


def printed(board: Board, **size: int) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=size["width"], height=size["height"])
    console.print(board_table(board, at(2), **size))
    return stream.getvalue().splitlines()


def test_a_screen_shows_what_it_has_room_for_and_failures_first() -> None:
    lines = printed(many(40), width=120, height=24)
    assert len(lines) <= 22
    assert any("flow17" in line and "failed" in line for line in lines)
    assert lines[-1].split() == ["…", "and", "20", "starting"]
    assert len(printed(many(40), width=120, height=60)) == 41


def test_a_narrow_screen_shows_a_block_for_each_flow() -> None:
    name = "orders_of_all_shops_in_northern_europe"
    board = board_after(started(), replace(commit(1, 0), flow=name), replace(commit(1.5, 1), flow=name))
    wide, narrow = (printed(board, width=width, height=24) for width in (140, 80))
    assert wide[0].split()[-2:] == ["latency", "p50"] and wide[4].split()[:2] == [name, "running"]
    at = narrow.index(name)
    assert [line.rstrip() for line in narrow[at : at + 4]] == [
        name,
        "  state: running   rows written: 1,000   lag: 12   last commit: v2  0.50 s ago",
        "  rows/s: 667   batch time: 0.50 s   latency p50: 0.40 s",
    ]
    for width in (20, 50, 80, 120):
        lines = printed(board, width=width, height=24)
        assert max(map(len, lines)) <= max(width, len(name)) and not any("…" in line for line in lines), lines


def test_a_screen_without_room_for_blocks_leaves_out_columns() -> None:
    for width in (50, 70, 80):
        lines = printed(many(12), width=width, height=19)
        assert max(map(len, lines)) <= width
        assert len(lines) == 14 and "flow00" in lines[1] and "starting" in lines[1]
    assert "latency p50" not in lines[0] and "last commit" in lines[0]


def test_many_flows_say_little_each() -> None:
    stream = io.StringIO()
    names = tuple(f"flow{number}" for number in range(20))
    with LineDisplay(stream) as display:
        display(UpdateStarted(update="u", at=START, pipeline="p", mode="continuous", flows=names, views=()))
        for second in range(60):
            for number, name in enumerate(names):
                display(replace(commit(second + number / 100, second), flow=name))
    lines = stream.getvalue().splitlines()
    assert 20 * 10 <= len(lines) <= 60 * 4 + 20
    assert all(any(f"{name}  batch" in line for line in lines) for name in names)
