"""A driver that stands still between its snapshot and its commit, while the table's log is cleaned."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from headrace.model.events import FlowRetrying
from headrace.run.failpoints import VARIABLE
from proof.shop import Shop
from waiting import until

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.usefixtures("spark")


def clean_log(table: Path) -> None:
    """Another process commits, writes a checkpoint and removes the commits before it."""
    for number in range(3):
        deltalake.DeltaTable(table).alter.set_table_properties(
            {"somebody": str(number)}, raise_if_not_exists=False
        )
    newest = deltalake.DeltaTable(table)
    newest.create_checkpoint()
    for file in (table / "_delta_log").glob("*"):
        if file.name.lstrip(".")[:20].isdigit() and int(file.name.lstrip(".")[:20]) < newest.version():
            file.unlink()


@pytest.mark.guarantee
def test_a_commit_that_the_log_has_passed_is_made_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.produce(30)
    shop.run_well()
    shop.produce(30)
    marker = shop.root / "before-commit"
    monkeypatch.setenv(VARIABLE, f"before-commit:1:{shop.root}")
    thread = threading.Thread(target=shop.run_well)
    thread.start()
    until(marker.exists, "the driver holds still before its commit")
    read = shop.versions()["bronze"]
    clean_log(shop.table("bronze"))
    monkeypatch.delenv(VARIABLE)
    marker.unlink()
    thread.join()
    (retried,) = shop.happened(FlowRetrying)
    assert isinstance(retried, FlowRetrying)
    assert retried.error["code"] == "COMMIT_LOST" and retried.error["params"]["version"] == read + 1
    assert shop.versions()["bronze"] == read + 4
    shop.check()
    shop.produce(10)
    shop.run_well()
    shop.check()
