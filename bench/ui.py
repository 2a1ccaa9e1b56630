"""The dashboard over a large storage: 100 datasets, a million events.

Makes the storage without Spark, then serves it in a process of its own, and prints how long the index takes,
how long each page takes, and the memory of the process. `--quick` makes a tenth of the events.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import requests
from deltalake import write_deltalake

from headrace.model.names import TableName
from headrace.observe.event_table import event_schema
from headrace.storage.arrow_rows import build_table
from headrace.storage.layout import Storage

DATASETS, LAYERS, UPDATES = 100, 8, 40
PIPELINE = "large"
_CHUNK = 50_000
SERVE = """
import os, sys
from pathlib import Path
from headrace.declare.spec import load_project
from headrace.dashboard.server import Address, Dashboard
os.chdir(sys.argv[1])
found = Dashboard(load_project(Path.cwd()), Address(port=int(sys.argv[2])), token="bench")
print(found.port, flush=True)
found.serve()
"""


def dataset(number: int) -> str:
    return f"default.dataset_{number:03d}"


def inputs(number: int) -> list[str]:
    """Up to two datasets of the layer before; the first layer reads topics."""
    per_layer = DATASETS // LAYERS
    if number < per_layer:
        return []
    first = (number // per_layer - 1) * per_layer
    return sorted({dataset(first + number % per_layer), dataset(first + number * 7 % per_layer)})


def make_storage(root: Path, events: int) -> None:
    """Tables with one file each, and an event log with definitions, batches, steps and updates."""
    (root / "headrace.yml").write_text(f"name: {PIPELINE}\nstorage: ./lake\nlibraries: [{{file: none.py}}]\n")
    storage = Storage.at(root / "lake")
    for number in range(DATASETS):
        _make_table(storage.table(TableName.parse(dataset(number), "default")).local_path, number)
    made = _events(events)
    while chunk := [row for _, row in zip(range(_CHUNK), made, strict=False)]:
        write_deltalake(storage.events.path, build_table(chunk, event_schema()), mode="append")


def _make_table(path: Path, number: int) -> None:
    """A table of the pipeline; `deltalake` itself refuses properties of others."""
    write_deltalake(path, pa.table({"id": list(range(10))}))
    commit = path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] = {
                "headrace.pipeline": PIPELINE,
                "headrace.kind": "streaming_table",
                f"headrace.checkpoint.flow_{number:03d}": f"headrace-{number:032x}",
            }
    commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def _events(count: int) -> Iterator[dict[str, Any]]:
    began = datetime.now(UTC) - timedelta(days=20)
    per_update = count // UPDATES
    number = 0
    for update in range(UPDATES):
        id = f"{began + timedelta(hours=12 * update):%Y%m%dT%H%M%S}-{update:06x}"
        at = began + timedelta(hours=12 * update)
        rows = [("create_update", {"mode": "TRIGGERED", "cause": "RUN"}, None, None)]
        for one in range(DATASETS):
            definition = {
                "dataset_type": "STREAMING_TABLE",
                "num_flows": 1,
                "comment": None,
                "expectations": [],
            }
            rows.append(("dataset_definition", definition, dataset(one), None))
            sources = (
                [] if inputs(one) else [{"kind": "kafka", "label": f"kafka t{one}", "topics": [f"t{one}"]}]
            )
            flow = {"output_dataset": dataset(one), "input_datasets": inputs(one), "sources": sources}
            rows.append(("flow_definition", flow, dataset(one), f"flow_{one:03d}"))
        batches = (per_update - len(rows) - 1) // 2
        for one in range(batches):
            name, flow_name = dataset(one % DATASETS), f"flow_{one % DATASETS:03d}"
            rows.append(("flow_progress", _progress(one), name, flow_name))
            steps = {"batch": one // DATASETS, "steps_ms": {"planning": 80, "write": 300, "commit": 40}}
            rows.append(("batch_steps", steps, name, flow_name))
        rows.append(("update_progress", {"state": "FAILED" if update % 9 == 4 else "COMPLETED"}, None, None))
        for index, (kind, details, name, flow_name) in enumerate(rows):
            number += 1
            moment = at + timedelta(seconds=index * 36_000 / len(rows))
            yield _row(id, kind, details, name, flow_name, moment, number)


def _progress(number: int) -> dict[str, Any]:
    failed = 3 if number % 50 == 0 else 0
    expectation = {
        "name": "an id",
        "dataset": "",
        "action": "drop",
        "passed_records": 1000,
        "failed_records": failed,
    }
    metrics = {"num_output_rows": 1000, "duration_ms": 420, "backlog_records": 0, "latency_seconds": 0.7}
    quality = {"dropped_records": failed, "quarantined_records": 0, "expectations": [expectation]}
    version = {"version": number // DATASETS}
    return {"status": "RUNNING", "metrics": metrics, "data_quality": quality, "commit": version}


def _row(
    update: str, kind: str, details: Any, name: str | None, flow: str | None, at: datetime, number: int
) -> dict[str, Any]:
    is_batch = kind == "flow_progress"
    micros = int(at.timestamp() * 1_000_000)
    return {
        "id": str(uuid.UUID(int=number)),
        "sequence": {"data_plane_id": {"instance": update, "seq_no": number}, "control_plane_seq_no": micros},
        "origin": {
            "pipeline_name": PIPELINE,
            "update_id": update,
            "flow_name": flow,
            "dataset_name": name,
            "batch_id": details.get("batch") or details.get("commit", {}).get("version"),
        },
        "timestamp": at,
        "message": f"Flow '{flow}' has committed a batch to '{name}': 1,000 rows."
        if is_batch
        else f"{kind} {name}",
        "level": "METRICS" if is_batch else "INFO",
        "maturity_level": "STABLE",
        "error": None,
        "details": json.dumps({kind: details}),
        "event_type": kind,
    }


def memory(pid: int) -> dict[str, int]:
    """The memory of a process in MB: its own, and that of mapped files, which other processes share."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {
        line.split(":")[0]: int(line.split()[1]) // 1024 for line in lines if line.startswith(("Rss", "Vm"))
    }
    return {"own": found["RssAnon"], "mapped files": found["RssFile"]}


def measure(port: int, pid: int) -> None:
    session, base = requests.Session(), f"http://127.0.0.1:{port}"
    began = time.monotonic()
    session.get(f"{base}/?token=bench")
    sys.stdout.write(f"first page             {1000 * (time.monotonic() - began):6.0f} ms\n")
    page = update = ""
    while not update or "Reading the event log" in page:
        time.sleep(0.5)
        page = session.get(f"{base}/p/{PIPELINE}/updates").text
        update = page.partition("update?id=")[2].partition('"')[0]
    sys.stdout.write(f"index of all events    {time.monotonic() - began:6.1f} s\n")
    own = f"/p/{PIPELINE}"
    for title, path in {
        "pipelines": "/",
        "graph": f"{own}/",
        "graph's data": f"{own}/graph.json",
        "dataset": f"{own}/dataset?name={dataset(50)}",
        "curves": f"{own}/series.json?name={dataset(50)}",
        "updates": f"{own}/updates",
        "update": f"{own}/update?id={update}",
        "timeline": f"{own}/gantt.json?id={update}",
        "events": f"{own}/events",
        "events, searched": f"{own}/events?text=dataset_099&level=metrics",
        "events of a dataset": f"{own}/events?dataset={dataset(7)}&level=metrics",
        "proof": f"{own}/proof",
        "metrics": "/metrics",
    }.items():
        times = []
        for _ in range(9):
            began = time.monotonic()
            answer = session.get(base + path)
            times.append(1000 * (time.monotonic() - began))
            assert answer.status_code == 200, answer.text
        sys.stdout.write(f"{title:<22} {statistics.median(times):6.0f} ms   slowest {max(times):6.0f} ms\n")
    found = ", ".join(f"{name} {value} MB" for name, value in memory(pid).items())
    sys.stdout.write(f"memory                 {found}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", type=Path, help="make the storage in this folder, or use the one in it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = given.keep or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        events = 100_000 if given.quick else 1_000_000
        if not (root / "lake").exists():
            make_storage(root, events)
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(root), "0"],
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": "/usr/bin:/bin", "HEADRACE_CACHE": str(root / "cache"), "HOME": str(root)},
        )
        try:
            assert process.stdout is not None
            measure(int(process.stdout.readline()), process.pid)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
