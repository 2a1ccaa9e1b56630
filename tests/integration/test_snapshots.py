"""Flows that apply snapshots: the table equals one snapshot after another, against what plain Python says."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import deltalake
import pytest

from headrace.model.counts import RowChanges
from headrace.model.event_forms import Event
from headrace.model.events import BatchCommitted
from headrace.model.table_events import SnapshotSkipped
from headrace.plan.explain import Explanation
from headrace.project.pipeline import Pipeline
from headrace.run import snapshots
from headrace.run.stop import StopSignal
from headrace.sinks.delta import merge
from landing import Site
from waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

FUNCTION = """
from pathlib import Path

import headrace as hr
from headrace import spark

HERE = Path(__file__).parent

def next_snapshot(last):
    with (HERE / "calls").open("a") as calls:
        print(last, file=calls)
    versions = sorted(int(path.stem) for path in (HERE / "given").glob("*.json"))
    newer = [version for version in versions if last is None or version > last]
    if not newer:
        return None
    path = HERE / "given" / f"{newer[0]}.json"
    return spark.read.schema("id INT, value STRING, note STRING").json(str(path)), newer[0]

hr.create_streaming_table("t")
hr.create_auto_cdc_from_snapshot_flow("t", next_snapshot, ["id"]{more})
"""
FOLDER = """
import headrace as hr

hr.create_streaming_table("t"{schema})
hr.create_auto_cdc_from_snapshot_flow("t", "./given", ["id"]{more})
"""
HISTORY = ', stored_as_scd_type="2", track_history_except_column_list=["note"]'

Rows = Mapping[int, tuple[str | None, str | None]]
"""The value and the note of each key of a snapshot."""


class Snapshots(Site):
    """A pipeline that applies snapshots to the table `t`."""

    def give(self, name: str, rows: Rows) -> None:
        """Add a snapshot."""
        path = self.root / "given" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps({"id": key, "value": one, "note": two}) for key, (one, two) in rows.items())
        path.write_text("".join(f"{line}\n" for line in lines))

    def events(self) -> list[Event]:
        """The events of a run that succeeds."""
        found: list[Event] = []
        with Pipeline.load(self.root) as pipeline:
            result = pipeline.run(emit=found.append)
        assert result.outcome == "completed", [error.to_dict() for error in result.errors]
        return found

    def select(self, columns: str = "*") -> list[tuple[Any, ...]]:
        table = deltalake.DeltaTable(self.storage.table(self.name("t")))
        found = deltalake.QueryBuilder().register("t", table).execute(f"SELECT {columns} FROM t").read_all()
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def holds(self, columns: str, *rows: tuple[Any, ...]) -> bool:
        """Whether these are the rows of the table, which may not exist yet, or may lack a column."""
        try:
            return sorted(self.select(columns)) == sorted(rows)
        except Exception:
            return False

    @property
    def current(self) -> Rows:
        found = self.select("id, value, note")
        assert len({row[0] for row in found}) == len(found), "a key has two rows"
        return {key: (value, note) for key, value, note in found}

    def tracked_history(self) -> set[tuple[Any, ...]]:
        """The history of a table that tracks all columns."""
        found = self.select('id, "__START_AT", "__END_AT", value, note')
        return {(key, start, end, (value, note), None) for key, start, end, value, note in found}

    @property
    def history(self) -> set[tuple[Any, ...]]:
        found = self.select('id, "__START_AT", "__END_AT", value, note')
        assert len(set(found)) == len(found)
        return set(found)


@pytest.fixture
def site(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path / "site")


def draw(seed: int, count: int) -> list[Rows]:
    """Snapshots that follow each other: rows come, go, and change, or stay as they are."""
    chosen = random.Random(seed)
    found: list[Rows] = []
    rows: dict[int, tuple[str | None, str | None]] = {}
    for _ in range(count):
        for key in range(12):
            match chosen.choice(["stay", "stay", "go", "value", "note", "swap"]):
                case "go":
                    rows.pop(key, None)
                case "value":
                    rows[key] = (chosen.choice(["a", "b", None]), "n")
                case "note" if key in rows:
                    rows[key] = (rows[key][0], chosen.choice(["x", "y", None]))
                case "swap" if key in rows:
                    rows[key] = (rows[key][1], rows[key][0])
                case _:
                    pass
        found.append(dict(rows))
    return found


def history_of(snapshots: Sequence[tuple[Any, Rows]]) -> set[tuple[Any, ...]]:
    """The rows of a history: a new one where the value changes; a note changes in its row."""
    found: list[list[Any]] = []
    current: dict[int, list[Any]] = {}
    for version, rows in snapshots:
        for key in [key for key in current if key not in rows]:
            current.pop(key)[2] = version
        for key, (value, note) in rows.items():
            if key in current and current[key][3] == value:
                current[key][4] = note
                continue
            if key in current:
                current[key][2] = version
            current[key] = [key, version, None, value, note]
            found.append(current[key])
    return {tuple(row) for row in found}


def with_note(rows: Rows) -> Any:
    """The rows of a snapshot whose notes are tracked too."""
    return {key: (pair, None) for key, pair in rows.items()}


@pytest.mark.parametrize("seed", [1, 2])
def test_the_table_equals_the_last_snapshot_and_has_the_history_of_all(site: Snapshots, seed: int) -> None:
    site.write(FUNCTION.replace("{more}", HISTORY if seed == 2 else ""))
    drawn = list(enumerate(draw(seed, 7), start=1))
    for first, last in ((0, 3), (3, 4), (4, 7)):
        for version, rows in drawn[first:last]:
            site.give(f"{version}.json", rows)
        site.run_well()
        if seed == 2:
            assert site.history == history_of(drawn[:last])
        else:
            assert site.current == drawn[last - 1][1]
    # The function got the version before, and was called once for each, and once at the end.
    calls = (site.root / "calls").read_text().split()
    assert calls[-4:] == ["4", "5", "6", "7"]
    proof = site.verify()
    assert proof.proven, proof
    with Pipeline.load(site.root) as pipeline:
        found = pipeline.events(level="metrics")
    progress = [one.details["metrics"] for one in found if "metrics" in one.details]
    assert sum(one["num_upserted_rows"] for one in progress) > 0
    assert sum(one["num_deleted_rows"] for one in progress) > 0


def test_a_folder_gives_its_snapshots_in_order_and_an_older_one_is_skipped_and_reported(
    site: Snapshots,
) -> None:
    site.write(FOLDER.replace("{more}", ", stored_as_scd_type=2").replace("{schema}", ""))
    one, two, three = draw(5, 3)
    site.give("date=2026-01-02/part-0.json", one)
    site.give("2026-01-10.jsonl", two)
    site.give("2026-01-11/_temporary/part-0.json", three)
    site.give("2026-01-12/_SUCCESS", three)
    site.run_well()
    applied = [(date(2026, 1, 2), one), (date(2026, 1, 10), two)]
    assert site.tracked_history() == history_of([(day, with_note(rows)) for day, rows in applied])
    site.give("2026-01-05.json", {})
    site.give("2026-02-01.json", three)
    found = site.events()
    (skipped,) = (event for event in found if isinstance(event, SnapshotSkipped))
    assert skipped.snapshot == "2026-01-05" and "2026-01-10" in skipped.reason
    assert len([event for event in found if isinstance(event, BatchCommitted)]) == 1
    applied.append((date(2026, 2, 1), three))
    assert site.tracked_history() == history_of([(day, with_note(rows)) for day, rows in applied])
    assert site.verify().proven


def test_a_column_keeps_its_type_where_the_values_of_a_later_file_fit_into_it(site: Snapshots) -> None:
    site.write(FOLDER.replace("{more}", "").replace("{schema}", ""))
    (site.root / "given").mkdir()
    texts = ["id,price,code\n3000000000,3.5,a1\n", "id,price,code\n1,3,12\n2,4,\n", "id,price,code\n7,,\n"]
    for number, text in enumerate(texts, start=1):
        (site.root / "given" / f"{number}.csv").write_text(text)
        site.run_well()
        if number == 2:
            assert sorted(site.select("id, price, code")) == [(1, 3.0, "12"), (2, 4.0, None)]
    assert site.select("id, price, code") == [(7, None, None)]


def test_a_table_gives_its_newest_version_and_rows_that_are_equal_stay_where_they_are(
    site: Snapshots, spark: SparkSession
) -> None:
    site.write(
        """
import headrace as hr
from headrace import spark

@hr.materialized_view
def exports():
    schema = "id INT, value STRING, __deleted STRING, tags MAP<STRING, STRING>"
    return spark.read.schema(schema).json("given")

hr.create_streaming_table("t")
hr.create_auto_cdc_from_snapshot_flow("t", "exports", ["id"])
"""
    )
    given = site.root / "given" / "rows.json"
    given.parent.mkdir()
    # Debezium adds a column with this name.
    rows = [{"id": key, "value": "a", "__deleted": "false", "tags": {"k": "v"}} for key in range(5)]
    given.write_text("\n".join(map(json.dumps, rows)))
    site.run_well()
    assert sorted(site.select("id, value, __deleted")) == [(key, "a", "false") for key in range(5)]
    given.write_text("\n".join(map(json.dumps, [*rows[1:4], {**rows[4], "tags": {"k": "w"}}, {"id": 9}])))
    found = [event for event in site.events() if isinstance(event, BatchCommitted)]
    (did,) = (event.changes for event in found if str(event.dataset).endswith(".t"))
    assert did is not None
    assert (did.inserted, did.updated, did.deleted, did.superseded) == (1, 1, 1, 0)
    versions = dict(site.select("id, _sequence['value']"))
    assert versions[1] == versions[2] == versions[3] < versions[4] == versions[9]
    # The view is computed in each run, since it reads files: a new version with the same rows.
    (same,) = (event.changes for event in site.events() if isinstance(event, BatchCommitted))
    assert same == RowChanges()
    assert dict(site.select("id, _sequence['value']")) == versions
    given.write_text('{"id": 1}\n{"id": 1}\n')
    assert site.error().code == "SNAPSHOT_KEYS_INVALID"
    # A version of a table cannot be corrected: it is skipped once there is a newer one.
    given.write_text('{"id": 1, "value": "z"}\n')
    (skipped,) = (event for event in site.events() if isinstance(event, SnapshotSkipped))
    assert "newer version" in skipped.reason
    assert site.select("id, value") == [(1, "z")]


def test_keys_that_identify_no_row_stop_the_flow_and_the_next_run_goes_on(site: Snapshots) -> None:
    site.write(FOLDER.replace("{more}", "").replace("{schema}", ""))
    site.give("1.json", {1: ("a", "n")})
    site.run_well()
    path = site.root / "given" / "2.json"
    path.write_text('{"id": 1, "value": "b"}\n{"id": 1, "value": "c"}\n{"value": "d"}\n{"id": 2}\n')
    error = site.error()
    assert (error.code, error.params["snapshot"]) == ("SNAPSHOT_KEYS_INVALID", "2")
    assert (error.params["twice"], error.params["nulls"]) == (1, 1)
    assert "id = 1: 2 rows" in error.facts and "id = NULL: 1 rows" in error.facts
    assert site.current == {1: ("a", "n")}
    path.unlink()
    site.give("3.json", {2: ("c", None)})
    # The snapshot was recorded, and is gone now: it is skipped and reported, and the next one applied.
    (skipped,) = (event for event in site.events() if isinstance(event, SnapshotSkipped))
    assert skipped.snapshot == "2"
    assert site.current == {2: ("c", None)}


def test_a_new_column_of_a_snapshot_becomes_one_of_the_table(site: Snapshots) -> None:
    site.write(FOLDER.replace("{more}", "").replace("{schema}", ""))
    site.give("1.json", {1: ("a", "n")})
    site.give("2.json", {1: ("a", "n"), 2: ("b", "n")})
    (site.root / "given" / "3.json").write_text('{"id": 1, "value": "a", "note": "n", "more": 7}\n')
    (site.root / "given" / "4.json").write_text('{"id": 1, "value": "b"}\n')
    site.run_well()
    assert site.select("id, value, note, more") == [(1, "b", None, None)]
    assert [row[0] for row in site.select("_sequence['value']")] == [4]


def test_an_interrupted_snapshot_that_a_function_no_longer_returns_is_skipped_and_reported(
    site: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write(FUNCTION.replace("{more}", "").replace("newer[0]", "newer[-1]"))
    site.give("1.json", {1: ("a", "n")})
    site.run_well()
    site.give("2.json", {1: ("b", "n")})
    with monkeypatch.context() as patched:
        patched.setattr(merge.MergeTarget, "begin", Mock(side_effect=RuntimeError("planted")))
        assert site.error().code == "FLOW_FAILED"
    site.give("3.json", {1: ("c", "n"), 2: ("c", "n")})
    (skipped,) = (event for event in site.events() if isinstance(event, SnapshotSkipped))
    assert (skipped.snapshot, skipped.reason) == ("2", "the source no longer has it")
    assert site.current == {1: ("c", "n"), 2: ("c", "n")}
    assert site.verify().proven


def test_a_full_refresh_asks_the_source_from_the_beginning(site: Snapshots) -> None:
    site.write(FOLDER.replace("{more}", ", stored_as_scd_type=2").replace("{schema}", ""))
    site.give("1.json", {1: ("a", "n")})
    site.give("3.json", {1: ("b", "n")})
    site.run_well()
    site.give("2.json", {1: ("c", "n")})
    (site.root / "given" / "1.json").unlink()
    with Pipeline.load(site.root) as pipeline:
        (gone,) = pipeline.plan_refresh(["t"]).gone
        assert "1 snapshot" in gone.text
        pipeline.full_refresh(["t"], accept_loss=["t"])
    assert site.history == {(1, 2, 3, "c", "n"), (1, 3, None, "b", "n")}
    assert site.verify().proven


def test_what_cannot_be_a_snapshot_is_refused_with_its_reason(site: Snapshots) -> None:
    site.write(FOLDER.replace("{more}", "").replace("{schema}", ""))
    (site.root / "given").mkdir()
    assert site.error().code == "SNAPSHOT_MISSING"
    site.give("1.json", {1: ("a", "n")})
    site.give("latest.json", {})
    assert "latest.json" in site.error().summary
    (site.root / "given" / "latest.json").unlink()
    site.write(FOLDER.replace('["id"]', '["nr"]').replace("{more}", "").replace("{schema}", ""))
    assert (site.error().code, site.error().params["column"]) == ("COLUMN_NOT_FOUND", "nr")
    for result, problem in (
        ("7", "returned a int, not a snapshot"),
        ("(spark.range(1), [1])", "version of the type list"),
        ("1 / 0", "ZeroDivisionError"),
    ):
        site.write(
            "import headrace as hr\nfrom headrace import spark\n"
            f'hr.create_streaming_table("t")\ndef source(last):\n    return {result}\n'
            'hr.create_auto_cdc_from_snapshot_flow("t", source, ["id"])\n'
        )
        assert problem in site.error().summary
    site.write(
        "import headrace as hr\nfrom headrace import spark\n"
        "@hr.temporary_view\ndef view():\n    return spark.range(1)\n"
        'hr.create_streaming_table("t")\nhr.create_auto_cdc_from_snapshot_flow("t", "view", ["id"])\n'
    )
    assert (site.error().code, site.error().params["what"]) == ("FEATURE_UNSUPPORTED", "snapshots of view")


def test_expectations_hold_for_changed_rows_and_a_row_that_passed_can_be_deleted(site: Snapshots) -> None:
    expectations = ", expect_all_or_quarantine={\"value\": \"coalesce(value, '') <> 'bad'\"}"
    site.write(FOLDER.replace("{more}", "").replace("{schema}", expectations))
    site.give("1.json", {1: ("a", "n"), 2: ("bad", "n"), 3: ("c", "n")})
    site.give("2.json", {1: ("a", "n"), 2: ("good", "n")})
    site.run_well()
    assert site.current == {1: ("a", "n"), 2: ("good", "n")}
    with Pipeline.load(site.root) as pipeline:
        (counted,) = pipeline.quarantine.list(["t"])
    assert sum(counted.states.values()) == 1
    assert site.verify().proven


def test_plan_and_preview_show_the_next_snapshot_and_write_nothing(site: Snapshots) -> None:
    site.write(FOLDER.replace("{more}", HISTORY).replace("{schema}", ""))
    site.give("1.json", {1: ("a", "n"), 2: ("b", "n")})
    with Pipeline.load(site.root) as pipeline:
        text = Explanation(pipeline.plan()).to_text(width=200)
        assert "from snapshots of ./given · history of id by version, tracks all but note" in text
        preview = pipeline.preview("t")
    assert (preview.columns, preview.rows) == (("id", "note", "value"), ((1, "n", "a"), (2, "n", "b")))
    assert not (site.root / "lake").exists()


def test_a_continuous_run_applies_snapshots_that_come_later(
    site: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_LOOK_S", 0.5)
    site.write(FOLDER.replace("{more}", "").replace("{schema}", ""))
    site.give("1.json", {1: ("a", "n")})
    stop, results = StopSignal(), []

    def work() -> None:
        with Pipeline.load(site.root) as pipeline:
            results.append(pipeline.run(continuous=True, stop=stop))

    thread = threading.Thread(target=work, name="headrace-test-run")
    thread.start()
    try:
        until(lambda: site.holds("id, value", (1, "a")), "the first snapshot is applied")
        site.give("2.json", {1: ("b", "n")})
        until(lambda: site.holds("id, value", (1, "b")), "the second snapshot is applied")
        (site.root / "given" / "3.json").write_text('{"id": 2, "value": "c", "more": 7}\n')
        until(lambda: site.holds("id, more", (2, 7)), "the snapshot with a new column is applied")
    finally:
        stop.request()
        thread.join(DEADLINE_S)
    assert [result.outcome for result in results] == ["stopped"]


ACTIONS = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

def next_month(last):
    rows = spark.read.format("delta").load("outside")
    month = rows.where(F.lit(last).isNull() | (F.col("month") > F.lit(last))).agg(F.min("month")).first()[0]
    return None if month is None else (rows.where(F.col("month") == month).drop("month"), month)

hr.create_streaming_table("t")
hr.create_auto_cdc_from_snapshot_flow("t", next_month, ["id"], 2)
hr.create_streaming_table("whole")
hr.create_auto_cdc_from_snapshot_flow("whole", "./outside", ["month", "id"])
"""


def test_a_function_may_call_actions_and_a_delta_table_is_read_by_its_path(
    site: Snapshots, spark: SparkSession
) -> None:
    site.write(ACTIONS)

    def add(month: str, **values: str) -> None:
        rows = [(month, name, value, "") for name, value in values.items()]
        frame = spark.createDataFrame(rows, "month STRING, id STRING, value STRING, note STRING")
        frame.write.format("delta").mode("append").save(str(site.root / "outside"))

    add("2026-01", a="one", b="one")
    add("2026-02", b="two")
    site.run_well()
    add("2026-03", a="one", b="two")
    site.run_well()
    assert site.history == {
        ("a", "2026-01", "2026-02", "one", ""),
        ("b", "2026-01", "2026-02", "one", ""),
        ("b", "2026-02", None, "two", ""),
        ("a", "2026-03", None, "one", ""),
    }
    table = deltalake.DeltaTable(site.storage.table(site.name("whole")))
    found = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
    assert sorted(zip(found["month"].to_pylist(), found["id"].to_pylist(), strict=True)) == [
        ("2026-01", "a"), ("2026-01", "b"), ("2026-02", "b"), ("2026-03", "a"), ("2026-03", "b"),
    ]  # fmt: skip
    assert site.verify().proven
