"""A run with nothing to do ends without Spark, and never when there is something to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.cli.main import run as cli
from headrace.model.names import TableName
from headrace.plan.stored import load_stored_at
from headrace.project.noop_check import find_up_to_date, require_spark
from headrace.project.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TopicFactory = Callable[..., str]

SPEC = """
name: standing
storage: ./lake
database: {database}
kafka: {{bootstrap.servers: "{bootstrap}"}}
"""
CODE = """
import headrace as hr
from headrace import spark

TOPIC = "{topic}"

@hr.table
def raw():
    return hr.read_kafka(TOPIC).select("value", "_source")

@hr.materialized_view
def counted():
    return spark.read.table("raw").groupBy("_source.partition").count()
"""

NEW = """
@hr.materialized_view
def total():
    return spark.read.table("counted").selectExpr("sum(count) AS total")
"""


def produce(bootstrap: str, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, json.dumps({"id": number}).encode())
    assert producer.flush(30) == 0


def is_standing(pipeline: Pipeline) -> bool:
    settings = pipeline.settings
    return find_up_to_date(settings, lambda: settings.kafka) is not None


@pytest.fixture
def pipeline(tmp_path: Path, topic: TopicFactory, bootstrap: str, spark: SparkSession) -> Pipeline:
    """A pipeline that has just been run."""
    name = topic(2)
    produce(bootstrap, name, 50)
    # The session of all tests knows one table of a name.
    spec = SPEC.format(bootstrap=bootstrap, database=name.replace("-", "_"))
    (tmp_path / "headrace.yml").write_text(spec)
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "raw.py").write_text(CODE.format(topic=name))
    pipeline = Pipeline.load(tmp_path)
    assert pipeline.run().outcome == "completed"
    return pipeline


def test_it_stands_until_something_changes(pipeline: Pipeline, bootstrap: str) -> None:
    assert is_standing(pipeline)
    events: list[Any] = []
    result = Pipeline.load(pipeline.settings.root).run(emit=events.append)
    assert [(flow.flow, flow.outcome) for flow in result.flows] == [("raw", "up to date")]
    assert [type(event).__name__ for event in events][-1] == "UpdateFinished"

    code = pipeline.settings.root / "transformations" / "raw.py"
    text = code.read_text()
    name = text.split('TOPIC = "')[1].split('"')[0]
    produce(bootstrap, name, 5)
    assert not is_standing(pipeline), "the topic holds records that no flow has read"
    assert pipeline.run().flows[0].rows == 5
    assert is_standing(pipeline)

    code.write_text(text.replace("groupBy", "where('true').groupBy"))
    assert not is_standing(pipeline), "a view has another query"
    assert pipeline.run().views[0].outcome == "refreshed"
    assert is_standing(pipeline)

    require_spark(pipeline.settings)
    assert not is_standing(pipeline), "a signal has stopped the last run"
    assert pipeline.run().flows[0].outcome == "up to date"
    assert is_standing(pipeline)

    newest = sorted((pipeline.settings.storage.root.local_path / "checkpoints").rglob("commits/*"))[-1]
    newest.rename(newest.with_suffix(".away"))
    assert not is_standing(pipeline), "a batch has no commit in its checkpoint"


NAMES = """
@hr.materialized_view
def named():
    names = spark.read.schema("partition INT, name STRING").csv("names.csv")
    return spark.read.table("counted").join(names, "partition").select("name")
"""


def test_a_view_that_also_reads_files_is_refreshed_by_each_run(pipeline: Pipeline) -> None:
    root = pipeline.settings.root
    code = root / "transformations" / "raw.py"
    code.write_text(code.read_text() + NAMES)
    for name in ("first", "second"):
        (root / "names.csv").write_text(f"0,{name}\n1,{name}\n")
        changed = Pipeline.load(root)
        outcomes = {view.dataset.name: view.outcome for view in changed.run().views}
        assert outcomes == {"counted": "up to date", "named": "refreshed"}
        assert set(hr.read_delta("named", project=root)["name"].to_pylist()) == {name}
        assert not is_standing(changed), "the file may change, and only Spark reads it"


def test_a_query_that_reads_the_environment_is_never_taken_to_stand(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = pipeline.settings.root / "transformations" / "raw.py"
    text = code.read_text()
    name = text.split('TOPIC = "')[1].split('"')[0]
    monkeypatch.setenv("A_TOPIC", name)
    # Through a helper in another file.
    helper = pipeline.settings.root / "names.py"
    helper.write_text("def topic():\n    return " + repr(name))
    code.write_text("import names\n" + text.replace("hr.read_kafka(TOPIC)", "hr.read_kafka(names.topic())"))
    assert pipeline.run().outcome == "completed"
    assert is_standing(pipeline)
    helper.write_text("import os\n\ndef topic():\n    return os.environ['A_TOPIC']\n")
    assert pipeline.run().outcome == "completed"
    assert not is_standing(pipeline)


def test_a_declaration_that_the_environment_makes_is_seen(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = pipeline.settings.root / "transformations" / "raw.py"
    text = code.read_text()
    name = text.split('TOPIC = "')[1].split('"')[0]
    monkeypatch.setenv("A_TOPIC", name)
    code.write_text("import os\n" + text.replace(f'"{name}"', 'os.environ["A_TOPIC"]'))
    assert pipeline.run().outcome == "completed"
    assert is_standing(pipeline)
    monkeypatch.setenv("A_TOPIC", "another")
    assert not is_standing(pipeline), "the topic's name comes from the environment, and is another"


def test_a_schema_s_file_is_part_of_what_was_planned(pipeline: Pipeline) -> None:
    code = pipeline.settings.root / "transformations" / "raw.py"
    schema = pipeline.settings.root / "raw.ddl"
    schema.write_text("id LONG")
    parsed = '.where(hr.parse_json("value", "raw.ddl").isNotNull()).select('
    code.write_text(code.read_text().replace(".select(", parsed, 1))
    assert pipeline.run().outcome == "completed"
    assert is_standing(pipeline)
    schema.write_text("id LONG, name STRING")
    assert not is_standing(pipeline), "the records are read with another schema"


def test_a_plan_says_that_a_query_has_changed(pipeline: Pipeline) -> None:
    assert pipeline.plan().changes == ()
    code = pipeline.settings.root / "transformations" / "raw.py"
    code.write_text(code.read_text().replace('.select("value"', '.where("true").select("value"'))
    (change,) = [change for change in pipeline.plan().changes or () if change.part == "query"]
    assert change.kind == "alter"
    assert change.dataset.name == "raw"
    assert "full-refresh" in change.text
    assert pipeline.run().outcome == "completed"
    proof = pipeline.verify(["raw"])
    assert proof.proven, "a query that leaves records out is no loss"
    assert pipeline.verify(["raw"], require="records").exit_code == 3


def test_plan_exit_code_tells_whether_a_run_would_change_a_table(
    pipeline: Pipeline, bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = pipeline.settings.root
    code = root / "transformations" / "raw.py"

    def plan() -> tuple[int, list[tuple[str, str, str | None]]]:
        capsys.readouterr()
        exit_code = cli(["plan", "--exit-code", "--json", "--project", str(root)])
        data = json.loads(capsys.readouterr().out)
        assert data["would_change"] is (exit_code == 4)
        return exit_code, [(c["kind"], c["part"], c["name"]) for c in data["changes"]]

    def run(*datasets: str) -> None:
        assert cli(["run", *datasets, "--json", "--project", str(root)]) == 0

    assert plan() == (0, [])
    produce(bootstrap, code.read_text().split('TOPIC = "')[1].split('"')[0], 5)
    assert plan() == (0, []), "records that wait in a topic are no change of a table"

    text = code.read_text()
    text = text.replace("def raw():", 'def raw():\n    """Every record."""')
    text = text.replace("def counted():", 'def counted():\n    """One row for each partition."""')
    text = text.replace("@hr.materialized_view", '@hr.materialized_view(table_properties={"team": "x"})')
    code.write_text(text)
    assert plan() == (
        4,
        [("alter", "comment", None), ("alter", "comment", None), ("alter", "property", "team")],
    )
    run()
    assert plan() == (0, []), "a run has set the comments and the property"
    assert [hr.read_delta(name, project=root).num_rows for name in ("raw", "counted")] == [55, 2]

    code.write_text(text.replace('.select("value"', '.where("true").select("value"') + NEW)
    exit_code, changes = plan()
    assert exit_code == 4
    assert {("alter", "query", "raw"), ("create", "table", None)} < set(changes)
    with Pipeline.load(root) as changed:
        alone = changed.plan("counted").changes or ()
        assert {change.dataset.name for change in alone} <= {"counted"}, "the others are not asked about"
    assert ("alter", "property", "headrace.coordinates") in changes, "such rows keep no place"
    run()
    assert plan() == (0, [])

    code.write_text(code.read_text().replace('.select("value", "_source")', '.select("_source")'))
    exit_code, changes = plan()
    assert (exit_code, sorted(changes)[:1]) == (4, [("alter", "query", "raw")])
    run("raw")
    assert ("alter", "query", "raw") not in plan()[1], "its query has run, if alone"
    run()
    assert plan() == (0, [("keep", "column", "value")]), "what stays as it is changes nothing"


def test_a_table_is_clustered_anew_when_its_declaration_says_so(pipeline: Pipeline) -> None:
    root = pipeline.settings.root
    code = root / "transformations" / "raw.py"
    text = code.read_text()
    for columns in (["_source.partition", "_source.offset"], ["_source.offset"]):
        told = text.replace("@hr.table", f"@hr.table(cluster_by={columns})")
        code.write_text(told.replace("@hr.materialized_view", '@hr.materialized_view(cluster_by=["count"])'))
        with Pipeline.load(root) as changed:
            before = changed.plan().changes or ()
            assert ("alter", "layout", "raw") in {(c.kind, c.part, c.dataset.name) for c in before}
            assert changed.run().outcome == "completed"
            assert changed.plan().changes == ()
        for name, wanted in (("raw", columns), ("counted", ["count"])):
            path = pipeline.settings.storage.table(TableName(pipeline.settings.database, name))
            stored = load_stored_at(path)
            assert stored is not None and stored.cluster_by == tuple(wanted)
    code.write_text(text)
    with Pipeline.load(root) as changed:
        assert changed.plan().changes == (), "what an owner has set without the code is left alone"
        assert changed.verify().proven


def test_plan_exit_code_needs_the_storage(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--exit-code", "--offline", "--json", "--project", str(pipeline.settings.root)]
    capsys.readouterr()
    assert cli(command) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "COMMAND_LINE"
