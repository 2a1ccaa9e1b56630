"""The limit of rejected records of a batch."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.declarations import RejectionLimit


@pytest.mark.parametrize(
    ("limit", "allowed", "refused"),
    [
        ("5%", (5, 100), (6, 100)),
        ("0.5 %", (1, 200), (1, 199)),
        ("0%", (0, 10), (1, 10)),
        ("100%", (10, 10), None),
        (0, (0, 10), (1, 10)),
        (3, (3, 3), (4, 1_000_000)),
        ("5%", (0, 0), None),
        ("5% of 20 batches", (5, 100), (6, 100)),
        ("3 of 2 batches", (3, 3), (4, 1_000_000)),
    ],
)
def test_a_limit_is_a_share_or_a_number(
    limit: Any, allowed: tuple[int, int], refused: tuple[int, int] | None
) -> None:
    found = RejectionLimit.parse(limit)
    assert found.allows(*allowed)
    assert refused is None or not found.allows(*refused)


@pytest.mark.parametrize(
    "wrong",
    ["5", "101%", "-1%", "five%", -1, 0.05, True, None, "%", "5% of 0 batches", "of 3 batches", "5% of"],
)
def test_other_values_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="must be a share such as 5%"):
        RejectionLimit.parse(wrong)


@pytest.mark.parametrize("text", ["5%", "5% of 20 batches"])
def test_a_limit_is_shown_as_it_is_written(text: str) -> None:
    assert str(RejectionLimit.parse(text)) == text
