"""A sink that keeps the state of its flows itself has each row once, and the newest row of each key."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import sqlite_sink
from cdc_oracle import Change, current_rows, growing_changes
from headrace.errors import HeadraceError
from headrace.observe.snapshot import take_snapshot
from headrace.plan.explain import Explanation
from headrace.project.pipeline import Pipeline
from headrace.run.failpoints import FAIL_VARIABLE, Point
from headrace.verify.report import proof_lines
from landing import Site
from proof.driver import start
from proof.replaced_driver import check_replaced_driver

pytestmark = pytest.mark.usefixtures("spark")

PIPELINE = """
import headrace as hr
import sqlite_sink

hr.create_sink("copied", format="sqlite", options={"path": "copied.db"})
hr.create_sink("current", format="sqlite", options={"path": "current.db"})

def read():
    return hr.read_files("landing", format="json", schema="id LONG, at LONG, op STRING, value STRING, n LONG")

hr.temporary_view(name="changes")(read)
hr.append_flow(target="copied", name="copied")(read)
hr.create_auto_cdc_flow("current", "changes", ["id"], "at", apply_as_deletes="op = 'delete'", name="current")
"""
POINTS: tuple[Point, ...] = ("batch-start", "before-commit", "after-commit", "after-batch")
STEPS = ("rows", "batch", "commit")


class Changes:
    """The pipeline, and what has been put into its files."""

    def __init__(self, root: Path) -> None:
        self.site = Site(root)
        self.site.write(PIPELINE)
        self.put: list[Change] = []
        self._random = random.Random(7)

    def produce(self) -> None:
        """A file with inserts, updates and deletes of few keys, out of their order."""
        new = growing_changes(self._random, len(self.put))
        lines = (
            {"id": one.key, "at": one.sequence, "op": one.operation, "value": one.value, "n": one.offset}
            for one in new
        )
        self.site.put(f"{len(self.put):05d}.json", *lines)
        self.put += new

    def rows(self, sink: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.site.root / f"{sink}.db")) as database:
            found = database.execute("SELECT row FROM rows WHERE row IS NOT NULL").fetchall()
        return [json.loads(text) for (text,) in found]

    def batches(self, sink: str) -> list[int]:
        with closing(sqlite3.connect(self.site.root / f"{sink}.db")) as database:
            found = database.execute("SELECT document FROM commits ORDER BY version").fetchall()
        return [said["batch"] for (text,) in found if "input" in (said := json.loads(text))]

    def check(self) -> None:
        assert sorted(row["n"] for row in self.rows("copied")) == [one.offset for one in self.put]
        assert {row["id"]: row["value"] for row in self.rows("current")} == current_rows(self.put)

    def states(self) -> dict[str, Any]:
        with Pipeline.load(self.site.root) as pipeline:
            snapshot = take_snapshot(pipeline.settings, pipeline.settings.kafka)
        return {one.dataset.name: one for one in snapshot.datasets}


@pytest.fixture
def changes(tmp_path: Path) -> Changes:
    return Changes(tmp_path / "site")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """How often each step of the sink fails from now on."""
    left: dict[str, int] = {}

    def between(step: str) -> None:
        if left.get(step):
            left[step] -= 1
            raise RuntimeError(f"a test has ended the process at {step}")

    monkeypatch.setattr(sqlite_sink, "between", between)
    yield left


@pytest.mark.guarantee
def test_a_process_that_ends_at_any_step_loses_and_doubles_nothing(
    changes: Changes, failing: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = changes.site
    changes.produce()
    failing["opening"] = 2
    site.run()
    assert failing["opening"] == 0 and not changes.rows("copied")
    site.run_well()
    changes.check()
    faults = [(flow, point) for point in POINTS for flow in ("copied", "current")]
    for batch, (flow, point) in enumerate(faults, 1):
        # The other flow completes the batch, and this one repeats it in the next run.
        changes.produce()
        monkeypatch.setenv(FAIL_VARIABLE, f"{flow}/{point}:{batch}")
        site.run()
        assert FAIL_VARIABLE not in os.environ, f"{flow} has come to {point}"
    site.run_well()
    changes.check()
    for step in STEPS:
        changes.produce()
        failing[step] = 2
        site.run()
        assert failing[step] == 0
        site.run_well()
        changes.check()
    numbers = list(range(1 + len(faults) + len(STEPS)))
    assert (changes.batches("copied"), changes.batches("current")) == (numbers, numbers)
    assert site.run_well().flows


def test_a_killed_process_loses_and_doubles_nothing(
    changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(sqlite_sink.__file__).parent), prepend=os.pathsep)
    changes.produce()
    with start(changes.site, pause=("current/after-commit", 0)) as driver:
        driver.wait_at("after-commit")
        held = changes.rows("current")
        driver.kill("python")
        driver.wait_until_gone()
    assert held and changes.batches("current") == [0]
    changes.produce()
    changes.site.run_well()
    changes.check()


def test_a_replaced_driver_commits_nothing(changes: Changes, spark: Any) -> None:
    site = changes.site
    changes.produce()
    site.run_well()
    before = changes.rows("current")
    stale = spark.createDataFrame([(1, 10**9, "stale")], "id LONG, at LONG, value STRING").selectExpr(
        "id",
        "at",
        "'' AS op",
        "value",
        "0L AS n",
        "struct(at AS value, 0L AS partition, '' AS source, 0L AS position) AS _sequence",
        "'upsert' AS _cdc_operation",
    )
    check_replaced_driver(site, "current", stale)
    assert changes.rows("current") == before
    changes.produce()
    site.run_well()
    changes.check()


def test_a_full_refresh_status_and_plan_of_such_a_sink(changes: Changes, failing: dict[str, int]) -> None:
    site = changes.site
    with Pipeline.load(site.root) as pipeline:
        text = Explanation(pipeline.plan()).to_text(500)
    assert "writes to the database" in text and "exactly once" in text
    changes.produce()
    site.run_well()
    state = changes.states()["current"]
    assert (state.kind, [(one.flow, one.batch, one.lag) for one in state.flows]) == (
        "sink",
        [("current", 0, 0)],
    )
    changes.produce()
    assert changes.states()["current"].flows[0].lag == 1
    site.run_well()
    with Pipeline.load(site.root) as pipeline:
        assert "new streaming table" not in Explanation(pipeline.plan()).to_text(500)
    failing["opening"] = 1
    with Pipeline.load(site.root) as pipeline, pytest.raises(Exception, match="opening"):
        pipeline.full_refresh(["copied", "current"])
    with Pipeline.load(site.root) as pipeline:
        pipeline.full_refresh(["copied", "current"])
    site.run_well()
    changes.check()
    assert changes.batches("current") == [0, 1, 0]
    proof = site.verify()
    assert proof.proven and [one.kind for one in proof.datasets] == ["sink", "sink"]
    assert "not checked: the sqlite sink has the rows and the batches" in "\n".join(proof_lines(proof))


def test_a_sink_is_given_only_what_it_can_apply(changes: Changes) -> None:
    changes.site.write(PIPELINE.replace('name="current")', 'name="current", stored_as_scd_type=2)'))
    with Pipeline.load(changes.site.root) as pipeline, pytest.raises(HeadraceError) as caught:
        pipeline.plan()
    assert caught.value.code == "TARGET_INVALID"
    assert caught.value.params["missing"] == ["history"]
