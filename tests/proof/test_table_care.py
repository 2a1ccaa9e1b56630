"""A kill in the middle of a compaction, of a vacuum, or of a cleanup of the log loses and doubles nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from headrace.maintain.condition import examine_table
from headrace.model.maintenance import TablePolicy
from headrace.project.maintenance import MaintenanceOptions
from headrace.project.pipeline import Pipeline
from headrace.storage.layout import locate
from landing import Site

TABLES = """
import headrace as hr
from headrace import spark

@hr.table(maintenance={"auto": False, "small_files": 2}, table_properties={"delta.checkpointInterval": "3"})
def visits():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING")

@hr.table
def copied():
    return spark.readStream.table("visits").select("id")
"""
KILL_AT_DELETE = """
import os, signal, sys
from headrace.project.pipeline import Pipeline
from headrace.project.maintenance import MaintenanceOptions
from headrace.storage.local import LocalFiles

delete, deleted = LocalFiles.delete, []

def kill_in_the_middle(self, path):
    delete(self, path)
    if sys.argv[2] in path:
        deleted.append(path)
        if len(deleted) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

LocalFiles.delete = kill_in_the_middle
with Pipeline.load(sys.argv[1], overrides={"maintenance.log_retention": "0 seconds"}) as pipeline:
    pipeline.maintain(options=MaintenanceOptions(retention_s=0, allow_short_retention=True))
"""
KILL_AT_WRITE = """
import os, signal, sys, threading
from pathlib import Path
from headrace.project.pipeline import Pipeline

folder = Path(sys.argv[2])
before = set(folder.glob("*.parquet"))
pipeline = Pipeline.load(sys.argv[1])
pipeline._engine.session()
jvm = pipeline._engine.opened().jvm_pid

def watch():
    while set(folder.glob("*.parquet")) == before:
        pass
    os.kill(jvm, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=watch, daemon=True).start()
pipeline.maintain(vacuum=False)
raise SystemExit("nothing was written")
"""


@pytest.fixture
def site(tmp_path: Path, spark: object) -> Site:
    site = Site(tmp_path / "site")
    site.write(TABLES)
    for number in range(6):
        site.put(f"{number}.json", {"id": number, "page": "p"})
        site.run_well()
    return site


def kill(script: str, site: Site, what: str) -> None:
    command = [sys.executable, "-c", script, str(site.root), what]
    ended = subprocess.run(command, cwd=site.root, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]


def check(site: Site, rows: int) -> None:
    """The table, the stream that reads it, and the proof are as before."""
    assert site.ids() == list(range(rows))
    assert sorted(one["id"] for one in site.rows("copied")) == list(range(rows))
    proof = site.verify()
    assert proof.proven, proof.to_json()


@pytest.mark.proof
def test_a_kill_in_the_middle_of_the_care_of_a_table(site: Site) -> None:
    path = site.storage.table(site.name())
    kill(KILL_AT_WRITE, site, str(path))
    check(site, 6)
    with Pipeline.load(site.root) as pipeline:
        assert all(one.warning is None for one in pipeline.maintain(vacuum=False))
    assert len(DeltaTable(str(path)).file_uris()) == 1
    site.put("6.json", {"id": 6, "page": "p"})
    site.run_well()
    check(site, 7)

    stored = examine_table(locate(str(path)), TablePolicy()).stored_files
    kill(KILL_AT_DELETE, site, "/part-")
    left = examine_table(locate(str(path)), TablePolicy()).stored_files
    assert left < stored
    check(site, 7)
    kill(KILL_AT_DELETE, site, "/_delta_log/0")
    check(site, 7)
    with Pipeline.load(site.root, overrides={"maintenance.log_retention": "0 seconds"}) as pipeline:
        done = pipeline.maintain(options=MaintenanceOptions(retention_s=0, allow_short_retention=True))
    assert not any(one.warning for one in done), done
    # What the killed compaction had written, and no commit names, is kept for a day.
    assert examine_table(locate(str(path)), TablePolicy()).stored_files <= 3
    site.put("7.json", {"id": 7, "page": "p"})
    site.run_well()
    check(site, 8)
