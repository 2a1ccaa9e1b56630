"""Lines that fit a screen."""

from __future__ import annotations

from headrace.model.wrapping import wrap


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
    assert wrap("keep the rows:   headrace reset orders", 24) == [
        "keep the rows:",
        "headrace reset orders",
    ]
    assert wrap("headrace reset orders", 20, "  help: ") == ["  help: headrace reset orders"]


def test_columns_keep_their_gaps_and_styles_take_no_room() -> None:
    assert wrap("a   b   c", 20) == ["a   b   c"]
    assert wrap("\x1b[1mone\x1b[0m two", 7) == ["\x1b[1mone\x1b[0m two"]
