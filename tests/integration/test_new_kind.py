"""A new kind of source is a folder and one line: it goes the whole way from the plan to the proof."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace

TOY = Path(__file__).parent.parent / "numbered"
IMPORT = "from headrace.verify.kafka.reader import KafkaReader\n"
READER = '    "other": OpaqueReader,\n'
LINE = '        "delta.source",\n'


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a pipeline over the new kind has shown, with a copy of the package that has the kind."""
    root = tmp_path_factory.mktemp("new_kind")
    package = root / "package" / "headrace"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(headrace.__file__).parent, package, ignore=ignored)
    shutil.copytree(TOY / "source", package / "sources" / "numbered", ignore=ignored)
    registry = package / "sources" / "registry.py"
    registry.write_text(registry.read_text().replace(LINE, f'        "numbered.kind",\n{LINE}'))
    shutil.copy(TOY / "numbered_reader.py", package / "verify" / "numbered.py")
    registry = package / "verify" / "registry.py"
    text = registry.read_text().replace(
        IMPORT, f"{IMPORT}from headrace.verify.numbered import NumberedReader\n"
    )
    registry.write_text(text.replace(READER, f'    "numbered": NumberedReader,\n{READER}'))
    pipeline = root / "pipeline"
    pipeline.mkdir()
    run = subprocess.run(
        [sys.executable, str(TOY / "whole_way.py"), str(pipeline)],
        env={**os.environ, "PYTHONPATH": str(package.parent), "HEADRACE_ENGINE": "off"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("SEEN "))
    found: dict[str, Any] = json.loads(line.removeprefix("SEEN "))
    return found


def test_the_plan_shows_what_the_source_holds(seen: dict[str, Any]) -> None:
    text = " ".join(seen["plan"].split())
    assert "from log orders, 5 records" in text
    assert "keeps log and number" in text


def test_each_record_is_there_once_after_a_failure_between_write_and_commit(seen: dict[str, Any]) -> None:
    assert seen["first"] == {"outcome": "completed", "errors": []}
    assert seen["after first"] == [0, 1, 2, 3, 4]
    assert "a test has ended orders in batch 1" in json.dumps(seen["failed"])
    assert seen["after failure"] == [0, 1, 2, 3, 4]
    assert seen["again"] == {"outcome": "completed", "errors": []}
    assert seen["after again"] == [0, 1, 2, 3, 4, 5, 7]


def test_the_status_counts_the_records_that_are_not_read(seen: dict[str, Any]) -> None:
    assert seen["behind"] == {"lag": 4, "batch": 0}
    assert seen["current"]["lag"] == 0


def test_rejected_records_have_the_coordinates_of_the_kind(seen: dict[str, Any]) -> None:
    bad, negative = sorted(seen["rejected"], key=lambda row: row["number"])
    assert bad == {
        "state": "quarantined",
        "log": "orders",
        "number": 6,
        "topic": None,
        "value": "no order",
        "reason": "RECORD_UNPARSEABLE",
    }
    assert (negative["log"], negative["number"], negative["reason"]) == ("orders", 7, "positive")


def test_a_replay_adds_what_the_query_accepts_now(seen: dict[str, Any]) -> None:
    assert seen["replayed"] == 1
    assert seen["after replay"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert {row["number"]: row["state"] for row in seen["rejected after replay"]} == {
        6: "quarantined",
        7: "replayed",
    }


def test_the_proof_compares_each_record_with_the_log(seen: dict[str, Any]) -> None:
    records = grades(seen["verified"])["records"]
    assert records["verdict"] == "proven"
    assert records["text"] == "9 read from the logs = 7 in the table + 2 in quarantine"
    assert {one["verdict"] for one in grades(seen["verified"]).values()} == {"proven"}
    assert {one["verdict"] for one in grades(seen["verified after replay"]).values()} == {"proven"}


def test_the_proof_finds_a_row_without_a_record(seen: dict[str, Any]) -> None:
    records = grades(seen["verified after a deletion"])["records"]
    assert records["verdict"] == "refuted"
    assert [one["ranges"] for one in records["findings"]] == [[[2, 3]]]


def grades(proof: dict[str, Any]) -> dict[str, Any]:
    (dataset,) = proof["datasets"]
    (flow,) = dataset["flows"]
    found: dict[str, Any] = flow["grades"]
    return found
