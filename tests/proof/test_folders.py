"""Folders whose files, checkpoints or ledger change or are lost between runs: each file is read once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import deltalake
import pytest

from headrace.project.pipeline import Pipeline
from landing import VISITS, Site


@pytest.fixture
def site(tmp_path: Path, spark: object) -> Site:
    return Site(tmp_path / "site")


def test_files_that_are_removed_rewritten_or_appended_after_they_were_read_are_reported(site: Site) -> None:
    for number in (0, 1, 2, 4):
        site.put(f"{number}.json", {"id": number, "page": "p"})
    site.run_well()
    (site.landing / "0.json").unlink()
    site.put("1.json", {"id": 1, "page": "changed"})
    with (site.landing / "4.json").open("a") as file:
        file.write('{"id": 5, "page": "appended"}\n')
    site.put("3.json", {"id": 3, "page": "p"})
    records = site.verify().datasets[0].flows[0].grades[2]
    assert records.verdict == "partial"
    figures = {name: records.figures[name] for name in ("unchanged", "changed", "gone", "pending")}
    assert figures == {"unchanged": 1, "changed": 2, "gone": 1, "pending": 1}
    assert records.details["gone"] == [str(site.landing / "0.json")]
    site.run_well()
    # A file is read once; what is added to it later never arrives, and `verify` says so.
    assert site.ids() == [0, 1, 2, 3, 4]


def test_a_lost_checkpoint_goes_on_from_the_ledgers_lists(site: Site) -> None:
    site.write(more=", max_files_per_trigger=1")
    for number in range(5):
        site.put(f"{number}.json", {"id": number, "page": "p"})
    site.run_well()
    shutil.rmtree(site.storage.flow_checkpoints(site.name(), "visits"))
    site.put("5.json", {"id": 5, "page": "p"})
    assert site.error().code == "CHECKPOINT_LOST"
    site.run_well(reset=frozenset({"visits"}))
    assert site.ids() == list(range(6))
    for number in range(6, 9):
        site.put(f"{number}.json", {"id": number, "page": "p"})
    site.run_well()
    assert site.ids() == list(range(9))
    proof = site.verify()
    assert proof.proven, proof.to_json()
    assert proof.datasets[0].flows[0].grades[2].figures["unchanged"] == 9
    # Without the lists nobody knows what was read, and nothing is guessed.
    shutil.rmtree(site.storage.ledger(site.name(), "visits") / "files")
    assert site.error(reset=frozenset({"visits"})).code == "RESUME_IMPOSSIBLE"
    assert site.ids() == list(range(9))
    with Pipeline.load(site.root) as pipeline:
        assert pipeline.full_refresh(["visits"]).outcome == "completed"
    assert site.ids() == list(range(9))
    assert site.verify().proven


def test_a_checkpoint_whose_log_of_files_was_lost_reads_nothing_twice(site: Site) -> None:
    site.put("a.json", {"id": 1, "page": "p"})
    site.run_well()
    checkpoint = site.storage.checkpoint(site.name(), "visits", 1)
    shutil.rmtree(checkpoint / "sources" / "0")
    site.put("b.json", {"id": 2, "page": "p"})
    assert site.error().code == "CHECKPOINT_CORRUPT"
    site.run_well(reset=frozenset({"visits"}))
    assert site.ids() == [1, 2]
    assert site.verify().proven


def test_a_new_generation_goes_on_in_the_same_folder_and_starts_anew_in_another(site: Site) -> None:
    site.put("a.json", {"id": 1, "page": "p"})
    site.run_well()
    site.run_well(**AGAIN)
    site.put("b.json", {"id": 2, "page": "p"})
    site.run_well()
    assert site.ids() == [1, 2]
    site.landing.rename(site.root / "elsewhere")
    site.write(code=VISITS.replace("landing", "elsewhere"))
    assert site.error().code == "SOURCES_CHANGED"
    site.run_well(**AGAIN)
    assert site.ids() == [1, 1, 2, 2]
    assert site.verify().proven


TWO = """
import headrace as hr

def read(folder):
    return hr.read_files(folder, format="json", schema="id LONG, page STRING")

@hr.table
def visits():
    return read("landing"){union}
"""
AGAIN = {"reset": frozenset({"visits"})}


def test_a_folder_that_leaves_a_query_and_comes_back_is_read_on_where_it_was_left(site: Site) -> None:
    def both(union: bool) -> None:
        site.write(TWO.replace("{union}", '.union(read("second"))' if union else ""))

    def put(number: int) -> None:
        site.put(f"{number}.json", {"id": number, "page": "p"})
        site.put(f"../second/{number}.json", {"id": 100 + number, "page": "p"})

    both(True)
    put(1)
    site.run_well()
    both(False)
    put(2)
    assert site.error().code == "SOURCES_CHANGED"
    site.run_well(**AGAIN)
    assert site.ids() == [1, 2, 101]
    records = site.verify().datasets[0].flows[0].grades[2]
    # The files of the folder that is left behind are still there.
    assert (records.verdict, records.figures["gone"], records.figures["pending"]) == ("proven", 0, 0)
    both(True)
    put(3)
    site.run_well(**AGAIN)
    put(4)
    site.run_well()
    assert site.ids() == [1, 2, 3, 4, 101, 102, 103, 104]
    records = site.verify().datasets[0].flows[0].grades[2]
    assert (records.verdict, records.figures["files"]) == ("proven", 8)


def test_a_table_s_log_that_was_cleaned_takes_no_file_from_the_proof(site: Site, spark: Any) -> None:
    for number in range(5):
        site.put(f"{number}.json", {"id": number, "page": "p"})
        site.run_well()
    table = site.storage.table(site.name())
    deltalake.DeltaTable(table).create_checkpoint()
    # The cut lies within an entry of the ledger that joins several batches.
    for version in range(4):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    proof = site.verify()
    assert proof.proven, proof.to_json()
    assert proof.datasets[0].flows[0].grades[2].figures["files"] == 5


NAMED = """
import headrace as hr

hr.create_streaming_table("visits")

def read(folder):
    return hr.read_files(folder, format="json", schema="id LONG, page STRING")

@hr.append_flow(target="visits", name="{flow}")
def visit():
    return read("landing"){union}
"""


def test_a_folder_comes_back_to_a_flow_that_was_renamed_meanwhile(site: Site) -> None:
    def write(flow: str, union: bool) -> None:
        more = '.union(read("second"))' if union else ""
        site.write(NAMED.replace("{flow}", flow).replace("{union}", more))

    for number in (1, 2):
        site.put(f"../second/{number}.json", {"id": 100 + number, "page": "p"})
    site.put("1.json", {"id": 1, "page": "p"})
    write("old", union=True)
    site.run_well()
    write("old", union=False)
    site.run_well(reset=frozenset({"old"}))
    write("new", union=False)
    site.run_well(rename_flow={"new": "old"})
    site.put("2.json", {"id": 2, "page": "p"})
    write("new", union=True)
    site.run_well(reset=frozenset({"new"}))
    assert site.ids() == [1, 2, 101, 102]
    records = site.verify().datasets[0].flows[0].grades[2]
    assert (records.verdict, records.figures["files"]) == ("proven", 4)


def test_verify_finds_a_file_that_was_read_twice_and_one_that_was_left_out(site: Site) -> None:
    site.put("a.json", {"id": 1, "page": "p"})
    site.run_well()
    site.put("b.json", {"id": 2, "page": "p"})
    site.run_well()
    log = site.storage.checkpoint(site.name(), "visits", 1) / "sources" / "0" / "1"
    whole = log.read_text()
    log.with_name(".1.crc").unlink(missing_ok=True)
    log.write_text(whole + "\n" + whole.splitlines()[1].replace("b.json", "c.json"))
    assert "FILES_MISSING" in {finding.code for finding in site.verify().findings}
    log.write_text(whole)
    (lists,) = (site.storage.ledger(site.name(), "visits") / "files").iterdir()
    first, second = sorted(lists.iterdir())
    kept = second.read_text()
    second.write_text(first.read_text().replace('"log":0', '"log":1'))
    assert {"FILES_DIFFER", "FILE_TWICE"} <= {finding.code for finding in site.verify().findings}
    second.write_text(kept)
    assert site.verify().proven
    second.unlink()
    ranges = site.verify().datasets[0].flows[0].grades[0]
    assert (ranges.verdict, ranges.findings) == ("partial", ())
