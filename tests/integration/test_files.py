"""Folders of files as a source: real Spark, real Delta, real files."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import run
from headrace.errors import HeadraceError
from headrace.plan.explain import Explanation
from headrace.project.pipeline import Pipeline
from headrace.runtime.broker import Broker
from landing import VISITS, Site

PAGES = """
from headrace import spark

@hr.materialized_view
def pages():
    return spark.read.format("kafka").option("subscribe", "pages").load().selectExpr("count(*) AS n")
"""


KAFKA_PAGES = """
from headrace import spark

@hr.materialized_view
def kafka_pages():
    return spark.read.table("visits").selectExpr("page AS kafka")
"""

LOOK = """
from headrace import spark

spark.read.format("kafka").options(**{
    "subscribe": "pages", "kafka.request.timeout.ms": "500", "kafka.default.api.timeout.ms": "1000",
}).load().count()
"""


@pytest.fixture
def site(tmp_path: Path, spark: object) -> Site:
    return Site(tmp_path / "site")


def test_each_file_is_read_once_over_many_runs(site: Site) -> None:
    site.write(more=", max_files_per_trigger=1")
    for number in range(4):
        site.put(f"a {number}%é.json", {"id": number, "page": "p"})
    site.run_well()
    assert site.ids() == list(range(4))
    # Spark by itself would pass over a file that is so much older than the others.
    os.utime(site.put("later.json", {"id": 4, "page": "p"}), (1, 1))
    site.run_well()
    site.run_well()
    assert site.ids() == list(range(5))
    row = next(row for row in site.rows() if row["id"] == 4)
    assert row["_source"]["path"].endswith("/landing/later.json")
    assert row["_source"]["size"] == (site.landing / "later.json").stat().st_size
    proof = site.verify()
    assert proof.proven, proof.to_json()
    grades = {grade.grade: grade for grade in proof.datasets[0].flows[0].grades}
    assert (grades["ranges"].verdict, grades["ranges"].figures["files"]) == ("proven", 5)
    assert (grades["records"].verdict, grades["records"].figures["unchanged"]) == ("proven", 5)


def test_a_run_with_nothing_new_needs_no_spark(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.put("a.json", {"id": 1, "page": "p"})
    site.run_well()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was asked for")

    with monkeypatch.context() as patched:
        patched.setattr("headrace.runtime.session.open_spark", refuse)
        assert [flow.outcome for flow in site.run_well().flows] == ["up to date"]
    site.put("b.json", {"id": 2, "page": "p"})
    with Pipeline.load(site.root) as pipeline:
        (status,) = pipeline.status().datasets[0].flows
    assert (status.lag, status.lag_bytes) == (1, (site.landing / "b.json").stat().st_size)
    site.run_well()
    assert site.ids() == [1, 2]


def test_a_broker_is_started_only_for_who_reads_from_it(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path / "broker", bound=True)
    monkeypatch.setenv("HEADRACE_BROKER_DIR", str(broker.directory))
    site.put("a.json", {"id": 1, "page": "p"})
    site.write(VISITS + KAFKA_PAGES)
    site.run_well()
    with Pipeline.load(site.root) as pipeline:
        assert [row[0] for row in pipeline.preview("visits").rows] == [1]
        assert pipeline.plan_refresh(["visits"]).names
    site.run_well()
    assert broker.status().state == "stopped"
    broker.start()
    try:
        broker.create_topic("pages")
        broker.stop()
        site.write(VISITS + PAGES)
        site.run_well()
        assert broker.status().state == "running"
        assert site.rows("pages") == [{"n": 0}]
        broker.stop()
        site.write(VISITS + LOOK)
        site.run_well()
        assert broker.status().state == "running", "a look at a topic while the file is loaded"
    finally:
        broker.stop()


def test_folders_below_patterns_and_hidden_files(site: Site) -> None:
    site.write(more=', recursive=True, glob="*.{json,jsonl}"')
    for name in ("a.json", "x/b.jsonl", "x/y/a.json"):
        site.put(name, {"id": len(name), "page": "p"})
    for name in (".hidden.json", "_work/c.json", "x/notes.txt", "a.json.tmp"):
        site.put(name, "not for us")
    site.run_well()
    # Two files of one name in two folders are two files.
    assert site.ids() == sorted(len(name) for name in ("a.json", "x/b.jsonl", "x/y/a.json"))
    assert [flow.outcome for flow in site.run_well().flows] == ["up to date"]


SEVERAL = """
import headrace as hr

def read(folder):
    return hr.read_files(folder, format="json", schema="id LONG")

@hr.table
def visits():
    return read("landing").unionByName(read("landing/more"))

@hr.table
def split():
    rows = read("landing")
    return rows.where("id > 1").unionByName(rows.where("id <= 1"))
"""


def test_a_query_may_read_several_folders_and_one_of_them_twice(site: Site) -> None:
    site.write(SEVERAL)
    site.put("a.json", {"id": 1})
    site.put("empty.json")
    site.put("b#% ü.json", {"id": 2})
    (site.landing / "more").mkdir()
    site.run_well()
    site.put("more/c.json", {"id": 3})
    site.run_well()
    assert site.ids() == [1, 2, 3]
    assert sorted(row["id"] for row in site.rows("split")) == [1, 2]
    proof = site.verify()
    assert proof.proven, proof.to_json()
    assert {flow.grades[2].verdict for one in proof.datasets for flow in one.flows} == {"proven"}


NAMES = ("12:30.json", "a b#%41+&;,=.json", "ünï 🚀.json", "new\nline.json", "quote's.json")
PATTERNS = ("back\\slash.json", "what?.json", "[a].json", "{a,b}.json", "*.json", "a:b/c.json")
"""Names that Spark takes for patterns, and one in a folder."""

ANY_NAME = """
import headrace as hr
from headrace import spark

@hr.table
def visits():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING", recursive=True)

@hr.table
def plain():
    return hr.read_files("plain", format="json", schema="id LONG", max_files_per_trigger=2)

@hr.table
def own():
    return spark.readStream.schema("id LONG").json("plain").select("id", "_metadata.file_path")

@hr.table
def columns():
    return hr.read_files("columns", format="parquet")
"""


def test_files_of_any_name_are_read_once(site: Site, spark: Any) -> None:
    site.write(ANY_NAME)
    for number, name in enumerate((*NAMES, *PATTERNS)):
        site.put(name, {"id": number, "page": "p"})
        if name in NAMES:
            site.put(f"../plain/{name}", {"id": number})
    for hidden in ("_SUCCESS", ".hidden.json"):
        site.put(f"../plain/{hidden}", "not for us")
    spark.range(1).coalesce(1).write.parquet(str(site.root / "columns"))
    (part,) = (site.root / "columns").glob("part-*")
    part.rename(part.with_name("2026-01-01T12:30:00.parquet"))
    with Pipeline.load(site.root) as pipeline:
        plan = Explanation(pipeline.plan()).to_text()
        assert f"./plain, {len(NAMES)} files (2 ignored, the name begins with . or _)" in plan, plan
        assert sorted(row[0] for row in pipeline.preview("plain").rows) == list(range(len(NAMES)))
    site.run_well()
    assert site.ids() == list(range(len(NAMES) + len(PATTERNS)))
    for table in ("plain", "own"):
        assert sorted(row["id"] for row in site.rows(table)) == list(range(len(NAMES))), table
    assert [row["id"] for row in site.rows("columns")] == [0]
    proof = site.verify()
    assert proof.proven, proof.to_json()
    assert {flow.grades[2].verdict for one in proof.datasets for flow in one.flows} == {"proven"}
    assert {flow.outcome for flow in site.run_well().flows} == {"up to date"}


def test_a_name_that_makes_spark_read_other_files_twice_is_refused(site: Site) -> None:
    """Spark adds the other files of a batch a second time if one name looks like a pattern."""
    site.put("a.json", {"id": 1, "page": "p"})
    site.run_well()
    site.put("b.json", {"id": 2, "page": "p"})
    path = site.put("back\\slash.json", {"id": 3, "page": "p"})
    error = site.error()
    assert (error.code, error.params["path"]) == ("FILE_UNREADABLE", str(path))
    assert site.ids() == [1]
    with Pipeline.load(site.root) as pipeline:
        assert sorted(row[0] for row in pipeline.preview("visits").rows) == [1, 2, 3]
    site.write(more=", recursive=True")
    site.run_well()
    assert site.ids() == [1, 2, 3]
    assert site.verify().proven


def test_files_beside_folders_named_for_a_value_are_not_skipped(site: Site) -> None:
    """Spark reads only the files in folders named key=value, if there are any in the batch."""
    site.reads('"landing", format="json", schema="id LONG, day STRING"')
    site.put("day=01/a.json", {"id": 1})
    site.run_well()
    path = site.put("b.json", {"id": 2})
    error = site.error()
    assert (error.code, error.params["path"]) == ("FILE_UNREADABLE", str(path)), "a batch of such files only"
    site.put("day=02/c.json", {"id": 3})
    error = site.error()
    assert (error.code, error.params["path"]) == ("FILE_UNREADABLE", str(path))
    assert site.ids() == [1]
    path.rename(site.landing / "day=02" / "b.json")
    site.run_well(reset=frozenset({"visits"}))
    assert sorted((row["id"], row["day"]) for row in site.rows()) == [(1, "01"), (2, "02"), (3, "02")]
    assert site.verify().proven


def test_folders_named_for_a_value_beside_files_that_were_read_are_refused(site: Site) -> None:
    site.reads('"landing", format="json", schema="id LONG, day STRING"')
    site.put("a.json", {"id": 1})
    site.run_well()
    path = site.put("day=02/c.json", {"id": 2})
    error = site.error()
    assert (error.code, error.params["path"]) == ("FILE_UNREADABLE", str(path))
    assert site.ids() == [1]


@pytest.mark.parametrize("pattern", ["day=*", "day=*/*.json"])
def test_folders_that_a_pattern_matches_give_a_column(site: Site, pattern: str) -> None:
    read = f'"landing/{pattern}", format="json", schema="id LONG, day STRING"'
    site.reads(read)
    for day in ("01", "02"):
        site.put(f"day={day}/a.json", {"id": int(day)})
        with Pipeline.load(site.root) as pipeline:
            assert len(pipeline.preview("visits").rows) == int(day)
        site.run_well()
    assert sorted((row["id"], row["day"]) for row in site.rows()) == [(1, "01"), (2, "02")]
    assert site.verify().proven


def test_folders_named_for_a_value_give_a_column(site: Site) -> None:
    read = '"landing", format="json", schema="id LONG, day STRING"'
    sheets = read.replace("landing", "sheets").replace('json"', 'csv", options={"header": "true"}')
    site.write_reads({"visits": f"read_files({read})", "sheets": f'read_files({sheets}).select("day")'})
    site.put("day=01/a.json", {"id": 1})
    site.put("../sheets/day=01/a.csv", "id", "1")
    site.run_well()
    site.put("day=02/a.json", {"id": 2})
    site.put("../sheets/day=02/a.csv", "id", "2")
    site.run_well()
    assert sorted((row["id"], row["day"]) for row in site.rows()) == [(1, "01"), (2, "02")]
    assert sorted(row["day"] for row in site.rows("sheets")) == ["01", "02"]
    site.reads(read.replace(", day STRING", ""))
    assert (site.error().code, site.error().params["column"]) == ("ARGUMENT_INVALID", "day")


def test_every_format_is_read_and_its_columns_kept(site: Site, spark: Any) -> None:
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "id BIGINT, page STRING")
    code, tables = "import headrace as hr\n", []
    for format in ("json", "csv", "parquet", "avro", "orc", "text"):
        frame = rows if format != "text" else rows.select("page")
        frame.coalesce(1).write.format(format).option("header", "true").save(str(site.root / "in" / format))
        more = ', options={"header": "true"}' if format == "csv" else ""
        code += f"""
@hr.table
def t_{format}():
    return hr.read_files("in/{format}", format="{format}"{more})
"""
        tables.append(f"t_{format}")
    site.write(code)
    site.run_well()
    for table in tables:
        found = [tuple(row[c] for c in row if c != "_source") for row in site.rows(table)]
        assert sorted(found) == ([("a",), ("b",)] if table == "t_text" else [(1, "a"), (2, "b")]), table
    kept = sorted(path.name.split("-")[0] for path in (site.root / "lake/schemas").iterdir())
    assert kept == ["avro", "csv", "json", "orc", "parquet"]
    # Later files do not change what was inferred.
    (site.root / "in/json/later.json").write_text('{"id": 3, "page": "c", "extra": 1}\n')
    site.run_well()
    assert sorted(row["id"] for row in site.rows("t_json")) == [1, 2, 3]
    assert "extra" not in site.rows("t_json")[0]


BAD: dict[str, tuple[str, str, list[str], int | None]] = {
    "value": ("json", "id LONG", ["{}", '{"id": "x"}'], 2),
    "rest": ("json", "id LONG", ['{"id": 1}', '{"id": 2} {"id": 3}'], 2),
    "packed": ("json", "id LONG", ['{"id": 1}', '{"id": 2', '{"id": 3}'], 2),
    "multi": ("json", "id LONG", ['[{"id": 1},', '{"id": 2, "page" ]'], 2),
    "field": ("csv", "id LONG, page STRING", ["id,page", "1,a", "q,b"], 3),
    "width": ("csv", "id LONG, page STRING", ["id,page", "1,a", "2"], 3),
    "decimal": ("csv", "id LONG, amount DECIMAL(6, 2)", ["id,amount", "1,2.500", "2,0.001"], 0),
    "nested": (
        "json",
        "id LONG, a ARRAY<DECIMAL(6, 2)>",
        ['[{"id": 1, "a": [1.5]},', '{"id": 2, "a": [0.001]}]'],
        0,
    ),
    "foreign": ("csv", "first STRING, last STRING", ["Lovelace,Ada"], 1),
    "unused_width": ("csv", "id LONG, page STRING", ["id,page", "1,a", "2,b,x"], 3),
    "columns": ("parquet", "id LONG", ["PAR1 and no more"], None),
    "objects": ("avro", "id LONG", ["no avro"], None),
}
"""Format, schema, lines and the line that is wrong (0 if it is not known), by table; all run at once."""


def test_bad_files_stop_their_flows_with_path_and_line(site: Site) -> None:
    code, paths = "import headrace as hr\n", {}
    for name, (format, schema, lines, _) in BAD.items():
        options = {
            "csv": {"header": "true"},
            "json": {"multiLine": "true"} if name in ("multi", "nested") else {},
        }
        code += f"""
@hr.table
def {name}():
    options = {options.get(format)}
    rows = hr.read_files("landing/{name}", format="{format}", schema="{schema}", options=options, \\
bad_records="stop")
    return rows{'.select("id")' if name.startswith("unused") else ""}
"""
        paths[name] = site.put(f"{name}/bad.{format}" + (".gz" if name == "packed" else ""), *lines)
    site.write(code)
    errors = {error.params["flow"]: error for error in site.run().errors}
    assert set(errors) == set(BAD)
    for name, (_, _, _, line) in BAD.items():
        said = errors[name].to_dict()
        expected = "FILE_UNREADABLE" if line is None or name == "foreign" else "RECORD_UNPARSEABLE"
        assert said["code"] == expected, said
        assert (said["params"]["path"], said["params"].get("line")) == (str(paths[name]), line or None), said
        assert site.rows(name) == []
    assert "no column of the schema" in errors["foreign"].summary, errors["foreign"].to_dict()
    assert "headrace reset foreign" in errors["foreign"].remedies[-1]


def test_what_is_not_there_is_named_with_the_line_that_reads_it(site: Site) -> None:
    def read(arguments: str) -> HeadraceError:
        site.reads(arguments)
        with Pipeline.load(site.root) as pipeline, pytest.raises(HeadraceError) as caught:
            pipeline.plan()
        assert str(caught.value.location).startswith("visits.py:6"), caught.value.to_dict()
        return caught.value

    assert read('"nowhere", format="json", schema="id LONG"').code == "FILES_NOT_FOUND"
    assert read('"visits.py", format="json", schema="id LONG"').code == "FILES_NOT_FOUND"
    assert read('"landing", format="json"').code == "FILES_NOT_FOUND"
    site.put("a.txt", "text")
    assert read('"landing", format="json", glob="*.json"').code == "FILES_NOT_FOUND"
    assert read('"landing", format="json", schema="id LONG, options"').code == "SCHEMA_INVALID"
    for options, option in (
        ('"ignoreMissingFiles": "true"', "ignoreMissingFiles"),
        ('"fileNameOnly": "true"', "fileNameOnly"),
        ('"cleanSource": "delete"', "cleanSource"),
        ('"mode": "DROPMALFORMED"', "mode"),
    ):
        error = read(f'"landing", format="json", schema="id LONG", options={{{options}}}')
        assert (error.code, error.params["option"]) == ("OPTION_UNSUPPORTED", option)
    error = read('"landing", format="json", schema="id LONG", options={"multiline_": "true"}')
    assert (error.code, error.remedies) == ("ARGUMENT_INVALID", ("did you mean `multiLine`?",))
    assert not (site.root / "lake" / "schemas").exists()


def test_sparks_own_reader_stands_under_the_same_protocol(site: Site) -> None:
    site.write(
        "import headrace as hr\nfrom headrace import spark\n\n@hr.table\ndef visits():\n"
        '    read = spark.readStream.schema("id LONG, page STRING").json("landing")\n'
        '    return read.select("*", "_metadata.file_name")\n'
    )
    site.put("a.json", {"id": 1, "page": "p"})
    site.run_well()
    assert site.rows() == [{"id": 1, "page": "p", "file_name": "a.json"}]
    proof = site.verify()
    assert proof.proven
    assert proof.datasets[0].flows[0].grades[2].figures["unchanged"] == 1
    # Its mode is Spark's, too: a malformed record becomes NULL.
    site.put("b.json", '{"id": "no number"}')
    site.run_well()
    assert {"id": None, "page": None, "file_name": "b.json"} in site.rows()


def test_a_full_refresh_says_first_what_would_not_come_back(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = site.put("a.json", {"id": 1, "page": "p"})
    site.put("b.json", {"id": 2, "page": "p"})
    site.run_well()
    with Pipeline.load(site.root) as pipeline:
        assert pipeline.plan_refresh(["visits"]).gone == ()
    gone.unlink()
    capsys.readouterr()
    assert run(["full-refresh", "visits", "--project", str(site.root)]) == 1
    said = capsys.readouterr().err
    assert f"1 file that it has read no longer exists: {gone}" in said and "put the file back" in said
    assert site.ids() == [1, 2], "the refresh was refused"
    one_flow = 'hr.create_streaming_table("visits")\n\n@hr.append_flow(target="visits", name="other")'
    site.write(code=re.sub(r"@hr.table\([^)]*\)", one_flow, VISITS).replace("landing", "elsewhere"))
    (site.root / "elsewhere").mkdir()
    shutil.copy(site.landing / "b.json", site.root / "elsewhere" / "c.json")
    with Pipeline.load(site.root) as pipeline:
        (gone,) = pipeline.plan_refresh(["visits"]).gone
    assert "flow visits cannot be read again" in gone.text


def test_a_pattern_over_a_folder_that_was_read_does_not_read_its_files_again(site: Site) -> None:
    site.put("a.json", {"id": 1, "page": "p"})
    site.run_well()
    site.write(code=VISITS.replace('"landing"', '"land*"'))
    error = site.error(reset=frozenset({"visits"}))
    assert (error.code, str(site.landing / "a.json") in error.summary) == ("RESUME_IMPOSSIBLE", True)
    assert site.ids() == [1]
