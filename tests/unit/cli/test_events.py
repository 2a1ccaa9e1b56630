"""`headrace events` and `quality`: what they print, without Spark, in less than a second."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checked_json import read_json
from headrace.model.events import BatchCommitted, FlowFailed, FlowStarted
from headrace.model.names import TableName
from headrace.observe.event_log import EventLog
from headrace.storage.layout import Storage

Call = Callable[..., Any]
ORDERS = TableName("default", "orders")


@pytest.fixture(autouse=True)
def log(tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text("name: shop\nlibraries: [{file: shop.py}]\n")
    counts = {"name": "an id", "dataset": "default.orders", "action": "drop", "passed": 6, "failed": 2}
    with EventLog(Storage.at(tmp_path / "lake"), "shop", "u1") as log:
        log(FlowStarted(update="u1", flow="orders", dataset=ORDERS, checkpoint="c"))
        log(
            BatchCommitted(
                update="u1",
                flow="orders",
                dataset=ORDERS,
                batch=0,
                version=1,
                rows=6,
                duration_s=0.1,
                ranges=(),
                dropped=2,
                quarantined=1,
                expectations=(counts,),
                bad_records=({"name": "RECORD_UNPARSEABLE", "action": "quarantine", "records": 1},),
            )
        )
        error = {"code": "TOPIC_RECREATED", "summary": "another topic"}
        log(FlowFailed(update="u1", flow="orders", dataset=ORDERS, error=error))


def test_events_are_lines(headrace: Call) -> None:
    lines = headrace("events").out.splitlines()
    assert [line.split("  ", 2)[1].strip() for line in lines] == ["INFO", "INFO", "METRICS", "ERROR", "ERROR"]
    assert lines[0].endswith("Flow 'orders' is starting.")
    assert lines[2].endswith(
        "Flow 'orders' has committed batch 0 to 'default.orders': 6 rows, 1 quarantined, 2 dropped."
    )
    assert lines[3].endswith("Flow 'orders' failed: [TOPIC_RECREATED] another topic")
    assert len(headrace("events", "--limit", "2").out.splitlines()) == 2
    none = headrace("events", "--flow", "other")
    assert (none.out, none.exit_code) == ("", 0)
    assert "no such events" in none.err


def test_events_are_json_lines(headrace: Call) -> None:
    failed, refused = map(json.loads, headrace("events", "--level", "error", "--json").out.splitlines())
    assert (failed["event_type"], refused["event_type"]) == ("flow_progress", "refusal")
    assert failed["details"]["error"]["code"] == "TOPIC_RECREATED"
    assert (failed["flow"], failed["dataset"], failed["update"]) == ("orders", "default.orders", "u1")


def test_followed_events_come_as_they_are_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "events", "--follow", "--json", "--level", "info"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as follower:
        assert follower.stdout is not None
        before = [read_json("events", follower.stdout.readline())[0]["message"] for _ in range(4)]
        with EventLog(Storage.at(tmp_path / "lake"), "shop", "u2") as log:
            log(FlowStarted(update="u2", flow="orders", dataset=ORDERS, checkpoint="c"))
            last = json.loads(follower.stdout.readline())
        follower.kill()
    assert len(before) == 4
    assert last["update"] == "u2"


def test_quality_shows_a_bar_for_each_expectation(headrace: Call) -> None:
    began = time.process_time()
    shown = headrace("quality", "orders").out
    assert time.process_time() - began < 1
    assert "orders  9 rows = 6 accepted + 1 quarantined + 2 dropped" in shown
    (line,) = (line for line in shown.splitlines() if line.lstrip().startswith("an id"))
    assert line.split()[2:] == ["dropped", "6", "2", "25.00", "▃"]
    (line,) = (line for line in shown.splitlines() if line.lstrip().startswith("RECORD_UNPARSEABLE"))
    assert line.split()[1:] == ["quarantined", "8", "1", "11.11", "▂"]
    (dataset,) = headrace("quality", "--json").data["datasets"]
    assert dataset["bad_records"][0]["failed"] == 1
    assert dataset["expectations"][0]["failed"] == 2
    assert "has no counts of expectations" in headrace("quality", "raw").out


@pytest.mark.parametrize("command", ["events", "quality"])
def test_no_spark_is_loaded(command: str, tmp_path: Path) -> None:
    code = (
        f"import sys; from headrace.cli.main import run; assert run(['{command}']) == 0; "
        "assert not {'pyspark', 'py4j'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_secrets_are_replaced_also_in_json(headrace: Call, tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text(
        "name: shop\nlibraries: [{file: shop.py}]\n"
        "kafka: {bootstrap.servers: 'x:1', sasl.password: hunter2-of-shop}\n"
    )
    with EventLog(Storage.at(tmp_path / "lake"), "shop", "u2") as log:
        error = {"code": "SOURCE_FAILED", "summary": "no login with hunter2-of-shop"}
        log(FlowFailed(update="u2", flow="orders", dataset=ORDERS, error=error))
    for form in ((), ("--json",)):
        shown = headrace("events", *form).out
        assert "no login with ***" in shown and "hunter2" not in shown
