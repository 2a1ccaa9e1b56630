"""Delta checkpoints are written by one thread, whichever flows commit."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from stores import At

from headrace.sinks.delta import compaction
from headrace.sinks.delta.compaction import LogCheckpointer


def test_flows_that_commit_at_the_same_time_start_one_thread(
    at: At, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)
    started: list[str] = []

    class Thread(threading.Thread):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            if self.name == "headrace-checkpoints":
                # A second flow that gets here before the first thread is known would start another one.
                with suppress(threading.BrokenBarrierError):
                    both.wait(timeout=0.3)
                started.append(self.name)

        def start(self) -> None:
            if self.name != "headrace-checkpoints":
                super().start()

    log = LogCheckpointer(cast(Any, None), every=1)
    monkeypatch.setattr(compaction.threading, "Thread", Thread)
    with ThreadPoolExecutor(2) as pool:
        offers = [pool.submit(log.offer, at(tmp_path / "t"), version) for version in (8, 9)]
        for offer in offers:
            offer.result(10)
    assert started == ["headrace-checkpoints"]
