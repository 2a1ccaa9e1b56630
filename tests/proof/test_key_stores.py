"""A system that keeps the newest row of each key has the rows of the table, and a key never goes back."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cdc_oracle import current_rows
from headrace.errors import BatchFencedError, SinkUnavailableError
from headrace.model.event_forms import Event
from headrace.model.events import FlowRetrying
from headrace.project.pipeline import Pipeline
from headrace.run.failpoints import FAIL_VARIABLE
from headrace.run.targets import sink_store
from headrace.sinks.outside.versioned import VersionedSink, send_rows
from headrace.sinks.target import BatchStamp, SplitRows
from headrace.verify.report import proof_lines
from key_stores import KeyStore, RedisKeys, SearchIndex
from opensearch_server import OpenSearchServer, running_opensearch
from proof.driver import start
from proof.served import CURRENT, POINTS, Served
from redis_server import running_redis
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")


class Kept(Served):
    """A system that keeps the newest row of each key."""

    def __init__(self, root: Path, store: KeyStore) -> None:
        super().__init__(root)
        self.store = store
        options = {"keys": "id", **store.options()}
        self.site.write(f"{CURRENT}\nhr.create_sink('served', {store.format!r}, {options!r})\n")

    def rows(self) -> dict[int, Any]:
        return {int(key): row["value"] for key, row in self.store.rows().items()}

    def sink(self) -> VersionedSink:
        with Pipeline.load(self.site.root) as pipeline:
            store = sink_store(next(one for one in pipeline.plan().flows if one.flow.name == "served"))
        assert isinstance(store, VersionedSink)
        return store


@pytest.fixture(params=["redis", "opensearch"])
def store(request: pytest.FixtureRequest) -> KeyStore:
    if request.param == "redis":
        return RedisKeys(request.getfixturevalue("redis_server"))
    return SearchIndex(request.getfixturevalue("search_server"))


@pytest.fixture
def served(tmp_path: Path, store: KeyStore) -> Kept:
    return Kept(tmp_path / "site", store)


@pytest.mark.guarantee
def test_a_process_that_ends_at_any_step_leaves_the_rows_of_the_table(
    served: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = served.site
    served.step()
    for number, point in enumerate(POINTS):
        served.produce()
        monkeypatch.setenv(FAIL_VARIABLE, f"served/{point}:{number + 1}")
        site.run()
        assert FAIL_VARIABLE not in os.environ, f"it has come to {point}"
        site.run_well()
        served.check()
    proof = site.verify()
    assert proof.proven, proof_lines(proof)
    (sink,) = (one for one in proof.datasets if one.kind == "sink")
    assert sink.flows[0].grades[0].verdict == "proven", proof_lines(proof)


def test_a_killed_process_has_its_batch_repeated(served: Kept) -> None:
    served.produce()
    with start(served.site, pause=("served/before-commit", 0)) as driver:
        driver.wait_at("before-commit")
        held = served.rows()
        driver.kill("both")
        driver.wait_until_gone()
    # The rows were sent, and the batch was not recorded.
    assert held == current_rows(served.put)
    served.step()


def test_a_driver_that_stood_still_brings_no_old_row_back(served: Kept, spark: Any) -> None:
    """It stood still between its look at the state and its rows, while others wrote more batches."""
    served.step()
    sink = served.sink()
    stored = sink.read_document()
    assert stored is not None
    checkpoint = stored.state.checkpoints["served"]
    stamp = BatchStamp(
        pipeline="site",
        flow="served",
        checkpoint=checkpoint,
        batch=stored.state.transactions[checkpoint] + 1,
        ranges=(),
    )
    late = sink.begin(spark, stamp)
    assert late is not None
    keys = sorted({one.key for one in served.put})
    for _ in range(3):
        served.step()
    assert len(served.rows()) < len({one.key for one in served.put}), "a key was deleted"
    old = spark.createDataFrame(
        [(key, "stale", "insert", 1, None) for key in keys],
        "id LONG, value STRING, _change_type STRING, _commit_version LONG, _commit_timestamp TIMESTAMP",
    )
    with pytest.raises(BatchFencedError):
        late.write(SplitRows(accepted=old))
    send_rows(sink, old, stored)
    served.check()
    with Pipeline.load(served.site.root) as pipeline:
        pipeline.full_refresh(["served"])
    served.check()
    with pytest.raises(SinkUnavailableError):
        send_rows(sink, old, stored)
    served.check()
    served.step()


def test_a_full_refresh_that_ended_in_its_middle_is_completed(
    served: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.step()
    removed = VersionedSink.finish_clearing
    ended = []

    def end(sink: VersionedSink) -> None:
        stored = sink.read_document()
        if stored is not None and stored.cleared < stored.kept_from and stored.cleared:
            ended.append(stored)
            raise KeyboardInterrupt
        removed(sink)

    monkeypatch.setattr(VersionedSink, "finish_clearing", end)
    with Pipeline.load(served.site.root) as pipeline, pytest.raises(KeyboardInterrupt):
        pipeline.full_refresh(["served"])
    assert ended
    monkeypatch.undo()
    served.step()


@pytest.mark.parametrize("kind", ["redis", "opensearch"])
def test_a_server_that_is_away_is_waited_for(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    events: list[Event] = []

    def run(served: Kept, stop: Any, restart: Any) -> None:
        served.step()
        served.produce()
        stop()
        with Pipeline.load(served.site.root) as pipeline, ThreadPoolExecutor() as pool:
            running = pool.submit(pipeline.run, emit=events.append)

            def is_waiting() -> bool:
                return any(isinstance(one, FlowRetrying) and one.flow == "served" for one in list(events))

            until(lambda: is_waiting() or running.done(), "it tries again", 120)
            restart()
            result = running.result(240)
        assert is_waiting() and result.outcome == "completed", result.errors
        served.check()

    if kind == "opensearch":
        request.getfixturevalue("search_server")  # skips where there is none
        with running_opensearch(folder) as server:
            run(Kept(tmp_path / "site", SearchIndex(server)), server.stop, server.start)
        return
    with running_redis(folder, "--appendonly", "yes", "--appendfsync", "always") as server:
        run(Kept(tmp_path / "site", RedisKeys(server.address)), server.stop, server.start)


def test_a_system_that_has_lost_its_rows_is_noticed(served: Kept) -> None:
    served.step()
    if isinstance(served.store, RedisKeys):
        with served.store.connect() as connection:
            connection.flushdb()
    else:
        assert isinstance(served.store, SearchIndex)
        server: OpenSearchServer = served.store.server
        server.call("DELETE", f"{served.store.name}-headrace-1")
    served.produce()
    error = served.site.error()
    assert error.code in ("TABLE_LOST", "CHECKPOINT_FOREIGN"), error
    with Pipeline.load(served.site.root) as pipeline:
        result = pipeline.full_refresh(["served"])
    assert result.outcome == "completed", result.errors
    served.check()


def test_a_table_with_lower_versions_is_taken_after_a_reset(served: Kept, spark: Any) -> None:
    for _ in range(3):
        served.step()
    sink = served.sink()
    stored = sink.read_document()
    assert stored is not None
    with Pipeline.load(served.site.root) as pipeline:
        pipeline.reset(["served"])
    served.site.run_well()
    newer = sink.read_document()
    assert newer is not None and newer.epoch > stored.epoch and newer.kept_from == stored.kept_from
    row = "SELECT 1L id, 'other' value, 'insert' _change_type, 0L _commit_version, now() _commit_timestamp"
    send_rows(sink, spark.sql(row), newer)
    assert served.rows()[1] == "other"


def test_a_stalled_full_refresh_removes_no_newer_rows(served: Kept) -> None:
    served.step()
    for _ in range(2):
        with Pipeline.load(served.site.root) as pipeline:
            pipeline.full_refresh(["served"])
    served.check()
    sink = served.sink()
    stored = sink.read_document()
    assert stored is not None
    with contextlib.suppress(SinkUnavailableError):
        sink.remove_older(stored.kept_from - 1)
    served.check()
    served.step()


def test_an_index_whose_name_begins_with_that_of_another_stays(
    tmp_path: Path, search_server: OpenSearchServer
) -> None:
    first, second = SearchIndex(search_server), SearchIndex(search_server)
    second.name = f"{first.name}-headrace-archive"
    archive, served = Kept(tmp_path / "a", second), Kept(tmp_path / "b", first)
    archive.step()
    served.step()
    archive.check()


def test_a_key_that_is_too_long_names_its_row(tmp_path: Path, search_server: OpenSearchServer) -> None:
    served = Kept(tmp_path / "site", SearchIndex(search_server))
    code = (served.site.root / "visits.py").read_text()
    served.site.write(
        code.replace(
            'images="all")',
            'images="all").selectExpr("repeat(\'x\', 600) AS id", '
            '"value", "_change_type", "_commit_version")',
        )
    )
    served.site.put("a.json", {"id": 1, "at": 1, "op": "upsert", "value": "v"})
    error = served.site.error()
    assert error.code == "SINK_ROW_REFUSED" and "512" in str(error), error
