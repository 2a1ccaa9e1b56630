"""`headrace explain`: the page of an error code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.mark.parametrize(
    "code", ["TOPIC_RECREATED", "topic_recreated", "[TOPIC_RECREATED]", "topic-recreated"]
)
def test_a_code_is_explained(headrace: Call, code: str) -> None:
    called = headrace("explain", code)
    assert called.exit_code == 0
    assert called.out.startswith("TOPIC_RECREATED\n\nThe topic was deleted and created again")
    assert called.out.endswith("\nexit code 1\n")
    assert headrace("explain", code, "--json").data["code"] == "TOPIC_RECREATED"


@pytest.mark.parametrize(
    ("typed", "meant"), [("TOPIC_RECREATD", "TOPIC_RECREATED"), ("kinds", "FLOW_KINDS_DIFFER")]
)
def test_an_unknown_code_gets_near_ones(headrace: Call, typed: str, meant: str) -> None:
    called = headrace("explain", typed)
    assert called.exit_code == 2
    assert meant in called.err
