"""Durations from text to seconds, and back."""

from __future__ import annotations

import pytest

from headrace.model.durations import DAY_S, duration_text, parse_duration, parse_seconds


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
