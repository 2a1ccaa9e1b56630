"""Durations from text to seconds, and back; values as text."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from headrace.model.texts import (
    DAY_S,
    duration_text,
    json_text,
    parse_duration,
    parse_seconds,
    typed_duration,
    wrap,
)


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("interval 2 weeks", 14),
        ("INTERVAL 30 DAYS", 30),
        ("36 hours", 1.5),
        ("30d", 30),
        ("interval 30 days 12 hours", 30.5),
        ("INTERVAL 1 WEEK 2 DAYS", 9),
        ("interval '30' day", 30),
    ],
)
def test_durations_have_a_unit(text: str, days: float) -> None:
    assert parse_duration(text) == parse_seconds(text) == days * DAY_S


@pytest.mark.parametrize("text", ["30", "30 parsecs", "days", "", None, 30])
def test_a_duration_without_a_unit_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="unit"):
        parse_duration(text)


def test_a_number_without_a_unit_is_seconds_where_that_is_usual() -> None:
    assert [parse_seconds(one) for one in (5, "5", " 0.5 ", "500 ms", "1 minute")] == [5, 5, 0.5, 0.5, 60]
    for wrong in (-1, True, "soon", float("nan")):
        with pytest.raises(ValueError, match="must"):
            parse_seconds(wrong)


def test_durations_read_well() -> None:
    assert [duration_text(s) for s in (-1, 0.314, 3.21, 12.4, 185, 7300, 30 * DAY_S)] == [
        "0.00 s", "0.31 s", "3.2 s", "12 s", "3 min", "2 h", "30 days",
    ]  # fmt: skip


def test_durations_are_typed_in_their_largest_whole_unit() -> None:
    assert [typed_duration(s) for s in (0, 1.5, 90, 120, 3600, 36 * 3600, 7 * DAY_S)] == [
        "0s", "1.5s", "90s", "2m", "1h", "36h", "7d",
    ]  # fmt: skip


def test_lines_are_broken_between_words() -> None:
    assert wrap("one two three", 8) == ["one two", "three"]
    assert wrap("one two three", 9, "  ", "    ") == ["  one two", "    three"]
    assert wrap("one two three", None) == ["one two three"]
    assert wrap("", 8, "  ") == ["  "]


def test_commands_stay_whole() -> None:
    assert wrap("write `headrace reset orders` to go on", 24) == [
        "write",
        "`headrace reset orders`",
        "to go on",
    ]
    assert wrap("keep the rows:   headrace reset orders", 24) == ["keep the rows:", "headrace reset orders"]
    assert wrap("headrace reset orders", 20, "  help: ") == ["  help: headrace reset orders"]


def test_columns_keep_their_gaps_and_styles_take_no_room() -> None:
    assert wrap("a   b   c", 20) == ["a   b   c"]
    assert wrap("\x1b[1mone\x1b[0m two", 7) == ["\x1b[1mone\x1b[0m two"]


def test_json_keeps_what_floats_would_lose() -> None:
    value = {"a": Decimal("12.10"), "at": datetime(2026, 1, 2, tzinfo=UTC), "b": [None, True, "ü", 1.5]}
    assert json_text(value) == '{"a": 12.10, "at": "2026-01-02T00:00:00+00:00", "b": [null, true, "ü", 1.5]}'
    assert json_text({"day": date(2026, 1, 2)}) == '{"day": "2026-01-02"}'
