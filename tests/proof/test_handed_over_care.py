"""`headrace maintain` beside a running flow that changes rows by key: the flow compacts between batches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from headrace.project.maintenance import MaintenanceOptions, MaintenanceResult
from headrace.project.pipeline import Pipeline
from landing import Site
from waiting import DEADLINE_S, until

TABLES = """
import headrace as hr

@hr.temporary_view
def events():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING, at LONG").drop("_source")

hr.create_streaming_table("visits", maintenance={"auto": False, "small_files": 1})
hr.create_auto_cdc_flow(target="visits", source="events", keys=["id"], sequence_by="at", name="visits")
"""


@contextmanager
def continuous_run(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """`headrace run --continuous` in a process of its own, with a JVM of its own."""
    output = (site.root / "run.txt").open("wb")
    command = [sys.executable, "-m", "headrace", "run", "--continuous", "--project", str(site.root)]
    process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        output.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(DEADLINE_S)


def feed(site: Site, first: int, last: int) -> None:
    """One batch for each number: it adds a key, and changes another one."""
    for number in range(first, last):
        site.put(f"{number}.json", *({"id": key, "page": f"p{number}", "at": number} for key in (number, 0)))
        until(lambda number=number: pages(site).get(number) == f"p{number}", f"batch {number} is there")


def pages(site: Site) -> dict[int, str]:
    path = site.storage.table(site.name())
    if not (path / "_delta_log" / f"{1:020d}.json").exists():
        return {}
    query = QueryBuilder().register("t", DeltaTable(str(path))).execute("SELECT id, page FROM t")
    found = pa.table(query.read_all())
    return dict(zip(found.column("id").to_pylist(), found.column("page").to_pylist(), strict=True))


def maintain(site: Site) -> MaintenanceResult:
    with Pipeline.load(site.root) as pipeline:
        found = pipeline.maintain(["visits"], options=MaintenanceOptions(steps=("optimize",)))
    return next(one for one in found if one.role == "table")


def compactions(site: Site) -> int:
    history = DeltaTable(str(site.storage.table(site.name()))).history()
    return sum(one["operation"] == "OPTIMIZE" for one in history)


@pytest.mark.proof
def test_a_running_flow_compacts_its_table_for_the_command(tmp_path: Path, spark: object) -> None:
    site = Site(tmp_path / "site")
    site.write(TABLES)
    path = site.storage.table(site.name())
    with continuous_run(site) as process:
        feed(site, 0, 3)
        assert compactions(site) == 0
        care = maintain(site)
        assert (care.steps, care.by_flow, care.warning) == (("optimize",), True, None)
        assert len(DeltaTable(str(path)).file_uris()) == 1 and compactions(site) == 1
        # The flow goes on with the compacted table.
        feed(site, 3, 6)

        # The process is killed in the middle of a compaction: the command does it itself.
        before = set(path.glob("*.parquet"))
        found: list[MaintenanceResult] = []
        command = threading.Thread(target=lambda: found.append(maintain(site)))
        command.start()
        until(lambda: set(path.glob("*.parquet")) != before, "the compaction writes")
        jvms = psutil.Process(process.pid).children(recursive=True)
        for pid in (*(one.pid for one in jvms), process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
        command.join(DEADLINE_S)
    (care,) = found
    assert (care.steps, care.by_flow, care.warning) == (("optimize",), False, None)
    assert compactions(site) == 2 and len(DeltaTable(str(path)).file_uris()) == 1
    named = {
        action["add"]["path"]
        for file in (path / "_delta_log").glob("*.json")
        for line in file.read_text().splitlines()
        if "add" in (action := json.loads(line))
    }
    left = {one.name for one in path.glob("*.parquet")} - named
    assert left, "the killed compaction has written a file that no commit names"
    assert pages(site) == {0: "p5", **{number: f"p{number}" for number in range(1, 6)}}
    site.put("6.json", {"id": 1, "page": "again", "at": 6})
    site.run_well()
    assert pages(site)[1] == "again"
    proof = site.verify()
    assert proof.proven, proof.to_json()
