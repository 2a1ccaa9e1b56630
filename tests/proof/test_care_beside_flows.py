"""Care beside flows: an OPTIMIZE by hand in the middle of a batch, and a vacuum beside a stream that lags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from headrace.project.maintenance import MaintenanceOptions, MaintenanceResult
from headrace.project.pipeline import Pipeline
from landing import Site

MERGED = """
import headrace as hr

@hr.temporary_view
def events():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING, at LONG").drop("_source")

hr.create_streaming_table("visits")
hr.create_auto_cdc_flow(target="visits", source="events", keys=["id"], sequence_by="at", name="visits")
"""
STREAM = """
import headrace as hr
from headrace import spark

@hr.table(maintenance={"auto": False, "small_files": 2})
def visits():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING")

@hr.table
def copied():
    return spark.readStream.table("visits").select("id")
"""


@pytest.mark.proof
def test_an_optimize_by_hand_in_the_middle_of_a_merging_batch(tmp_path: Path, spark: Any) -> None:
    site = Site(tmp_path / "site")
    site.write(MERGED)
    for number in range(2):
        site.put(
            f"{number}.json", *({"id": key, "page": f"p{number}", "at": number} for key in (0, number + 1))
        )
        site.run_well()
    path = site.storage.table(site.name())
    site.put("2.json", {"id": 0, "page": "p2", "at": 2})
    with site.held_at("before-commit", 2) as held:
        held.wait()
        removed = spark.sql(f"OPTIMIZE delta.`{path}`").first()["metrics"]["numFilesRemoved"]
        assert removed > 1
    # The batch had read rows of files that are gone: it is a conflict, and the flow repeats the batch.
    assert held.errors == [] and len(held.retries) == 1
    query = QueryBuilder().register("t", DeltaTable(str(path))).execute("SELECT id, page FROM t")
    found = pa.table(query.read_all())
    pages = dict(zip(found.column("id").to_pylist(), found.column("page").to_pylist(), strict=True))
    assert pages == {0: "p2", 1: "p0", 2: "p1"}
    proof = site.verify()
    assert proof.proven, proof.to_json()


@pytest.mark.proof
def test_a_vacuum_beside_a_stream_that_lags(tmp_path: Path, spark: object) -> None:
    site = Site(tmp_path / "site")
    site.write(STREAM)

    def feed(number: int, *datasets: str) -> None:
        site.put(f"{number}.json", {"id": number, "page": "p"})
        with Pipeline.load(site.root) as pipeline:
            assert pipeline.run(datasets).outcome == "completed"

    def maintain() -> MaintenanceResult:
        options = MaintenanceOptions(retention_s=0, allow_short_retention=True)
        with Pipeline.load(site.root) as pipeline:
            (care,) = pipeline.maintain([f"{site.database}.visits"], options=options)
        assert care.warning is None
        return care

    feed(0)
    for number in range(1, 4):
        feed(number, "visits")
    care = maintain()
    assert care.after is not None and care.after.files == 1
    # The files of the rows that the stream has not read are kept, and their commits.
    held = care.after.vacuum
    assert len(held.held) >= 3 and "flow copied" in map(str, held.holders)
    stored = care.after.stored_files
    feed(4)
    feed(5)
    assert sorted(row["id"] for row in site.rows("copied")) == list(range(6)) == site.ids()
    # Now the stream has read them.
    care = maintain()
    assert care.after is not None and care.after.stored_files < stored
    feed(6)
    assert sorted(row["id"] for row in site.rows("copied")) == list(range(7)) == site.ids()
    proof = site.verify()
    assert proof.proven, proof.to_json()
