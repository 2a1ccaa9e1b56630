"""CSV files whose headers differ: each is read by the names in its own header, also after a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.project.pipeline import Pipeline
from landing import Site
from proof.shop import fail_at

CODE = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

CSV = {"format": "csv", "options": {"header": "true"}}
SCHEMA = {**CSV, "schema": "id LONG, name STRING"}

@hr.table
def ignored():
    return hr.read_files("landing", **SCHEMA)

@hr.table
def evolved():
    return hr.read_files("landing", drift="evolve", **CSV)

@hr.table
@hr.expect_or_quarantine("small", "id < 9")
def rescued():
    return hr.read_files("landing", drift={"*": "rescue", "none": "evolve"}, **SCHEMA)

@hr.table
def stopped():
    return hr.read_files("landing", drift="fail", **SCHEMA)

@hr.table
def stateful():
    return hr.read_files("landing", **SCHEMA).dropDuplicates(["id"])

@hr.table
def foreign():
    return hr.read_files("foreign", **SCHEMA)

@hr.table
def repeated():
    return hr.read_files("repeated", **SCHEMA)

@hr.table
def exact():
    return hr.read_files("landing", format="csv", options={"header": "true"}, schema="id DECIMAL(4, 1)")

def own(stream):
    if "size" not in stream.columns:
        stream = stream.withColumn("size", F.lit(None).cast("int"))
    return stream

@hr.table
def placeheld():
    return own(hr.read_files("landing", drift="evolve", **CSV))

@hr.table
def renamed():
    return hr.read_files("landing", drift="evolve", **CSV).select("id", F.lit("mine").alias("size"))

@hr.table
def twice():
    return hr.read_files("landing", drift="evolve", **CSV).select("*", F.lit("mine").alias("size"))

@hr.table
def other_columns():
    return hr.read_files("others", drift="evolve", **SCHEMA)

@hr.table
def other_columns_rescued():
    return hr.read_files("others", drift="rescue", **SCHEMA)

@hr.table
def misplaced():
    return spark.readStream.option("header", "true").schema("id LONG, name STRING").csv("misplaced")

@hr.table
def enforced():
    reader = spark.readStream.option("header", "true").option("enforceSchema", "true")
    return reader.schema("id STRING, name STRING").csv("misplaced")

@hr.table
def loaded():
    reader = spark.readStream.format("cloudFiles").option("cloudFiles.format", "csv")
    return reader.load("landing").select("*", "_metadata.file_name")
"""


def values(site: Site, table: str) -> list[dict[str, Any]]:
    rows = ({name: row[name] for name in row if name != "_source"} for row in site.rows(table))
    return sorted(rows, key=lambda row: int(row["id"] or 99))


@pytest.mark.guarantee
def test_each_file_is_read_by_the_names_in_its_header(tmp_path: Path, spark: object) -> None:
    site = Site(tmp_path / "site")
    site.write(CODE)
    site.put("1.csv", "id,name", "1,a")
    site.put("../foreign/1.csv", "id,name", "1,a")
    site.put("../misplaced/1.csv", "id,name", "1,a")
    site.put("../others/1.csv", "id,name", "1,a")
    site.put("../repeated/1.csv", "id,name", "1,a")
    site.run_well()
    site.put("2.csv", "NAME,id", "b,2", "c,3")
    site.put("3.csv.gz", "id", "4")
    site.put("4.csv", 'id,name,"ex,tra",size', "5,d,x,10", "9,e,,")
    foreign = site.put("../foreign/2.csv", "2,b", "3,c")
    misplaced = site.put("../misplaced/2.csv.zst", "name,id", "b,2")
    site.put("../others/2.csv", "size,place", "7,Graz")
    repeated = site.put("../repeated/2.csv", "", "id,name,ID", "3,c,4")
    fail_at(site.run, "evolved/before-commit", 1)
    errors = {error.params["flow"]: error for error in site.run().errors}
    assert {name: error.code for name, error in errors.items()} == {
        "foreign": "FILE_UNREADABLE",
        "misplaced": "FILE_UNREADABLE",
        "repeated": "FILE_UNREADABLE",
        "stateful": "FILE_UNREADABLE",
        "stopped": "RECORD_DRIFTED",
        "twice": "RECORD_DRIFTED",
    }
    assert (errors["foreign"].params["path"], errors["foreign"].params["line"]) == (str(foreign.resolve()), 1)
    assert (errors["repeated"].params["path"], errors["repeated"].params["line"]) == (
        str(repeated.resolve()),
        2,
    )
    assert errors["stopped"].params["columns"] == ["ex,tra", "size"]
    assert errors["misplaced"].params["path"] == str(misplaced.resolve())
    assert "`id` at another position" in errors["misplaced"].summary
    assert errors["twice"].params["columns"] == ["size"]
    assert [len(values(site, name)) for name in errors] == [1] * 6
    nothing, new = {"id": None, "name": None}, {"size": 7, "place": "Graz"}
    assert values(site, "other_columns") == [
        {"id": 1, "name": "a", "size": None, "place": None},
        {**nothing, **new},
    ]
    assert [json.loads(row["_rescued_data"] or "{}") for row in values(site, "other_columns_rescued")] == [
        {},
        {"size": "7", "place": "Graz"},
    ]
    # By position, as the user asks for.
    assert {row["id"] for row in site.rows("enforced")} == {"1", "b"}

    names = {1: "a", 2: "b", 3: "c", 4: None, 5: "d", 9: "e"}
    assert values(site, "ignored") == [{"id": id, "name": name} for id, name in names.items()]
    sizes = {5: 10}
    assert values(site, "evolved") == [
        {"id": id, "name": name, "size": sizes.get(id)} for id, name in names.items()
    ]
    # The function was called again: the column is that of the files, with the type that the query gives it.
    assert values(site, "placeheld") == [
        {"id": id, "name": name, "size": sizes.get(id)} for id, name in names.items()
    ]
    assert [row["size"] for row in values(site, "renamed")] == ["mine"] * 6
    del names[9]
    kept = {5: '{"ex,tra":"x","size":"10"}'}
    assert values(site, "rescued") == [
        {"id": id, "name": name, "_rescued_data": kept.get(id)} for id, name in names.items()
    ]
    assert [row["id"] for row in values(site, "exact")] == [1, 2, 3, 4, 5, 9]
    assert values(site, "loaded")[3:5] == [
        {"id": "4", "name": None, "_rescued_data": None, "file_name": "3.csv.gz", "size": None},
        {"id": "5", "name": "d", "_rescued_data": '{"ex,tra":"x"}', "file_name": "4.csv", "size": "10"},
    ]
    proof = site.verify()
    assert proof.proven, proof.to_json()

    site.put("5.csv", "size,name,id", "x,f,6")
    errors = {error.params["flow"]: error for error in site.run().errors}
    assert (errors["evolved"].code, errors["evolved"].params["line"]) == ("RECORD_UNPARSEABLE", 2)
    with Pipeline.load(site.root) as pipeline:
        assert sorted(row[0] for row in pipeline.preview("ignored").rows) == [1, 2, 3, 4, 5, 6, 9]
