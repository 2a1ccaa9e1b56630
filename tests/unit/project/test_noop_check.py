"""Whether a run has nothing to do, asked without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.model.names import TableName
from headrace.project.noop_check import _require_drained, _Uncertain
from headrace.run.checks import UNCHECKED
from headrace.state.lease import Heart
from headrace.storage.layout import Storage
from headrace.storage.location import Location

SALES = TableName("default", "sales")


def test_a_lease_that_was_released_makes_nothing_uncertain(location: Location) -> None:
    storage = Storage(location)
    planned: Any = SimpleNamespace(flow=SimpleNamespace(name="sales", target=SALES))
    settings: Any = SimpleNamespace(storage=storage)
    systems: Any = None
    # The next question ends the check.
    (storage.ledger(SALES, "sales") / UNCHECKED).replace("{}")
    with Heart() as heart:
        lease = heart.acquire(storage.lease(SALES, "sales"), "sales")
        with pytest.raises(_Uncertain, match="has a lease"):
            _require_drained(planned, [planned], settings, systems)
        heart.release(lease)
        with pytest.raises(_Uncertain, match="has rows to check"):
            _require_drained(planned, [planned], settings, systems)
