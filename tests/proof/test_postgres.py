"""A table of PostgreSQL that follows a change feed has the rows of the pipeline's table, and no others."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.model.event_forms import Event
from headrace.model.events import FlowRetrying
from headrace.project.pipeline import Pipeline
from headrace.run.failpoints import FAIL_VARIABLE
from headrace.verify.report import proof_lines
from postgres_server import Database
from proof.driver import start
from proof.replaced_driver import check_replaced_driver
from proof.served import CURRENT, POINTS, Served
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")

PIPELINE = f"""{CURRENT}
hr.create_sink("served", "postgres", {{"url": "URL", "table": "served", "keys": "id", "create": "true"}})
hr.create_sink("log", "postgres", {{"url": "URL", "table": "log", "create": "true"}})

@hr.append_flow(target="log", name="log")
def log():
    return hr.read_table_stream("copied").select("id", "at")

@hr.table
def copied():
    return hr.read_files("landing", format="json", schema="id LONG, at LONG, op STRING, value STRING")
"""


class Tables(Served):
    """The tables of a database."""

    def __init__(self, root: Path, database: Database) -> None:
        super().__init__(root)
        self.database = database
        self.site.write(PIPELINE.replace("URL", database.url))

    def check(self) -> None:
        super().check()
        logged = sorted(at for (at,) in self.database.execute("SELECT at FROM log"))
        assert logged == sorted(one.sequence for one in self.put)

    def rows(self) -> dict[int, Any]:
        return dict(self.database.execute("SELECT id, value FROM served"))  # type: ignore[arg-type]

    def batches(self, sink: str) -> list[int]:
        found = self.database.execute(
            "SELECT (document->>'batch')::int FROM headrace_batches "
            "WHERE sink LIKE %s AND document ? 'input' ORDER BY version",
            f"%.{sink}/%",
        )
        return [number for (number,) in found]


@pytest.fixture
def served(tmp_path: Path, database: Database) -> Tables:
    return Tables(tmp_path / "site", database)


@pytest.mark.guarantee
def test_a_process_that_ends_at_any_step_loses_and_doubles_nothing(
    served: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = served.site
    served.produce()
    site.run_well()
    served.check()
    faults = [(flow, point) for point in POINTS for flow in ("served", "log")]
    for flow, point in faults:
        # The other flow completes the batch, and this one repeats it in the next run.
        served.produce()
        batch = served.batches(flow)[-1] + 1
        monkeypatch.setenv(FAIL_VARIABLE, f"{flow}/{point}:{batch}")
        site.run()
        assert FAIL_VARIABLE not in os.environ, f"{flow} has come to {point}"
        site.run_well()
        served.check()
    for flow in ("served", "log"):
        numbers = served.batches(flow)
        assert numbers == list(range(len(numbers)))
    proof = site.verify()
    sinks = {one.dataset.name: one for one in proof.datasets if one.kind == "sink"}
    assert proof.proven and {*sinks} == {"served", "log"}, proof_lines(proof)
    assert all(one.flows[0].grades[0].verdict == "proven" for one in sinks.values()), proof_lines(proof)
    assert not served.database.execute("SELECT 1 FROM pg_tables WHERE tablename LIKE 'headrace_staged%'")


def test_verify_finds_a_batch_that_the_database_has_lost(served: Tables) -> None:
    for _ in range(3):
        served.produce()
        served.site.run_well()
    assert served.site.verify().proven
    lost = "DELETE FROM headrace_batches WHERE sink LIKE '%.log/log' AND document->>'batch' = '1' RETURNING 1"
    assert served.database.execute(lost) == [(1,)]
    proof = served.site.verify()
    assert not proof.proven, proof_lines(proof)
    served.database.execute("DROP TABLE headrace_batches")
    text = "\n".join(proof_lines(served.site.verify()))
    assert "not checked: PostgreSQL: relation" in text, text
    served.site.write("raise ValueError('no address')")
    text = "\n".join(proof_lines(served.site.verify()))
    assert "not checked: the files of the pipeline cannot be loaded: [PIPELINE_FILE_FAILED]" in text, text


def test_a_process_that_is_killed_while_postgres_applies_its_rows(served: Tables) -> None:
    """The transaction is open in the server when its client is gone."""
    served.produce()
    served.site.run_well()
    served.produce()
    with psycopg.connect(served.database.url) as blocking:
        blocking.execute("LOCK TABLE served IN EXCLUSIVE MODE")
        with start(served.site) as driver:
            asked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%served%'"
            until(lambda: served.database.execute(asked), "the batch waits for the table", 120)
            driver.kill("python")
            driver.wait_until_gone()
    served.produce()
    served.site.run_well()
    served.check()


def test_a_killed_process_has_its_batch_repeated_as_a_replay(served: Tables) -> None:
    served.produce()
    with start(served.site, pause=("served/after-commit", 0)) as driver:
        driver.wait_at("after-commit")
        held = served.rows()
        driver.kill("both")
        driver.wait_until_gone()
    assert held and served.batches("served") == [0]
    served.produce()
    served.site.run_well()
    served.check()


def test_a_replaced_driver_commits_nothing(served: Tables, spark: Any) -> None:
    site = served.site
    served.produce()
    site.run_well()
    before = served.rows()
    stale = spark.sql(
        "SELECT 1L id, 'stale' value, 'insert' _change_type, 99L _commit_version, now() _commit_timestamp"
    )
    check_replaced_driver(site, "served", stale)
    assert served.rows() == before
    served.produce()
    site.run_well()
    served.check()


def test_a_server_that_is_away_is_waited_for(served: Tables) -> None:
    """The flow of the sink tries again, the others go on, and nothing is skipped."""
    served.produce()
    served.site.run_well()
    url = served.database.url
    name = url.split("?")[0].rsplit("/", 1)[1]
    admin = url.replace(f"/{name}?", "/postgres?")
    events: list[Event] = []
    served.produce()
    with (
        psycopg.connect(admin, autocommit=True) as server,
        Pipeline.load(served.site.root) as pipeline,
        ThreadPoolExecutor() as pool,
    ):
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        running = pool.submit(pipeline.run, emit=events.append)

        def is_waiting() -> bool:
            return any(isinstance(one, FlowRetrying) and one.flow == "served" for one in list(events))

        until(lambda: is_waiting() or running.done(), "it tries again", 60)
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        result = running.result(120)
    assert is_waiting() and result.outcome == "completed", result.errors
    served.check()
