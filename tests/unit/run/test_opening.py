"""The checkpoint that a killed process has left unfinished is removed, and no other one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import LeaseLostError, SourceLocation
from headrace.model.declarations import AppendFlow
from headrace.model.names import TableName
from headrace.model.queries import PythonQuery
from headrace.model.remedies import Remedies
from headrace.run import opening as opening_module
from headrace.run.opening import FlowOpener, FlowStart
from headrace.sinks.target import OpenedGeneration
from headrace.state.checkpoint import CheckpointIdentity, load_identity, write_checkpoint
from headrace.state.facts import Open
from headrace.storage.layout import Storage
from headrace.storage.location import Location

SALES = TableName("default", "sales")
FLOW = AppendFlow(name="sales", target=SALES, query=PythonQuery(lambda: None, SourceLocation("sales.py", 1)))


class Opener:
    """Opens the checkpoint of a flow whose table names none."""

    def __init__(self, root: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        self.storage = Storage(root)
        self.opened: list[OpenedGeneration] = []
        self.table: Any = SimpleNamespace(
            version=0, table_id="t1", checkpoints={}, transactions={}, refreshing=None, fenced=lambda _: None
        )
        start = FlowStart(opening=Open(reason="first"), sources=(), table=self.table)
        monkeypatch.setattr(opening_module, "prepare_flow", lambda *_: start)

    def leave(self, generation: int) -> Location:
        """Leave a checkpoint that is not committed to the table."""
        path = self.storage.checkpoint(SALES, "sales", generation)
        identity = CheckpointIdentity(
            pipeline="shop",
            flow="sales",
            dataset=str(SALES),
            generation=generation,
            table_id="t1",
            sources=(),
        )
        write_checkpoint(path, identity, {})
        return path

    def open(self, is_lost: bool = False) -> Location:
        def check_lease() -> None:
            if is_lost:
                raise LeaseLostError("another process has taken over")

        planned = SimpleNamespace(
            flow=FLOW, sink=None, record=SimpleNamespace(to_json=lambda: {"fingerprint": "f"})
        )
        surveyor: Any = SimpleNamespace(
            planned=planned,
            settings=SimpleNamespace(storage=self.storage, name="shop"),
            target=SimpleNamespace(state=lambda: self.table, remove_strays=lambda *_: None),
            checkpoints=self.storage.flow_checkpoints(SALES, "sales"),
            declared_flows=frozenset({"sales"}),
            ledger=SimpleNamespace(
                fold=lambda *_: (), rewind=lambda *_: False, folder=self.storage.ledger(SALES, "sales")
            ),
        )
        target: Any = SimpleNamespace(open_generation=self.opened.append)
        spark: Any = None
        opener = FlowOpener(
            surveyor=surveyor, spark=spark, target=target, check_lease=check_lease, report=lambda _: None
        )
        return opener.open(Remedies()).path


def test_a_process_that_has_lost_its_lease_removes_no_checkpoint(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    opener = Opener(location, monkeypatch)
    # The next process has it open, and not committed yet.
    path = opener.leave(1)
    with pytest.raises(LeaseLostError):
        opener.open(is_lost=True)
    assert load_identity(path).generation == 1


def test_the_path_of_a_checkpoint_that_was_removed_is_not_used_again(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    opener = Opener(location, monkeypatch)
    unfinished = opener.leave(3)
    opened = opener.open()
    # A process that stalls can still be about to remove the unfinished one.
    unfinished.delete_folder()
    assert load_identity(opened).generation == 4
    assert [one.generation for one in opener.opened] == [4]
