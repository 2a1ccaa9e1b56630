"""`headrace produce`: what is found before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Call = Callable[..., Any]


def test_a_missing_key_is_found_before_the_topic_is_created(headrace: Call, tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id,customer\n1,ada\n")
    called = headrace("produce", "orders", "--file", "orders.csv", "--key", "custmer", "--json")
    error = called.data["error"]
    assert (called.exit_code, error["code"]) == (2, "RECORD_INVALID")
    assert error["remedies"] == ["did you mean `customer`?"]
    assert (error["facts"], error["params"]["delivered"]) == (["nothing was sent"], 0)
    assert not (tmp_path / "broker").exists()
