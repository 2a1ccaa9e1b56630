"""What a shell completes, and the script that asks for it; no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]

FILE = """
import headrace as hr
from pyspark import pipelines as dp

@hr.table
def orders(): ...

@hr.materialized_view(name="sales.revenue")
def query(): ...

@dp.temporary_view()
def recent(): ...

hr.create_streaming_table("merged")
hr.create_streaming_table(name="")
hr.create_streaming_table(name=hr.spark.conf.get("unknown"))
hr.create_sink("alerts", "kafka")
threading.Thread(target=print, name="worker")

@hr.append_flow(target="merged", name="backfill")
def older():
    hr.spark.table("x").createOrReplaceTempView("tmp")
    hr.spark.sql("CREATE OR REPLACE TEMP VIEW tmp2 AS SELECT 1")

def helper(): ...
"""
SQL = """
CREATE STREAMING TABLE Paid AS SELECT * FROM x;
CREATE OR REFRESH STREAMING TABLE sales.lines COMMENT 'of the table orders2';
CREATE TEMPORARY VIEW `seen` AS SELECT * FROM Paid; -- no VIEW it
CREATE FLOW more AS INSERT INTO sales.lines2 BY NAME SELECT * FROM STREAM Paid;
"""


def completed(folder: Path, *words: str) -> list[str]:
    """What bash is offered for the last word."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "_HEADRACE_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("headrace", *words)),
            "COMP_CWORD": str(len(words)),
        },
    )
    assert done.stderr == ""
    return [line.removeprefix("plain,") for line in done.stdout.splitlines()]


def test_datasets_and_profiles_are_completed(tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text(
        'name: shop\nprofiles:\n  prod:\n    kafka: {sasl.password: "${NONE}"}\n'
    )
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "a.py").write_text(FILE)
    (tmp_path / "transformations" / "broken.py").write_text("def")
    (tmp_path / "transformations" / "away.py").symlink_to("/proc/self/mem")  # it cannot be read
    (tmp_path / "transformations" / "b.sql").write_text(SQL)
    (tmp_path / "lake" / "tables" / "default" / "old" / "_delta_log").mkdir(parents=True)
    assert completed(tmp_path, "pl") == ["plan"]
    declared = ["Paid", "merged", "orders", "recent", "sales.lines", "sales.revenue", "seen"]
    assert completed(tmp_path, "plan", "") == sorted([*declared, "old"])
    assert completed(tmp_path, "run", "--profile", "prod", "o") == ["old", "orders"]
    assert completed(tmp_path, "plan", "--profile", "") == ["dev", "prod"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(headrace: Call, shell: str) -> None:
    called = headrace("completion", shell)
    assert called.exit_code == 0
    assert "_HEADRACE_COMPLETE" in called.out


def test_the_versions_are_named_without_a_jvm(headrace: Call) -> None:
    data = headrace("--version", "--json").data
    assert list(data) == ["format_version", "headrace", "spark", "delta", "kafka", "kafka_clients", "java"]
    assert all(data.values())
    assert headrace("--version").out.splitlines()[1:5] == [
        f"  Spark {data['spark']}",
        f"  Delta Lake {data['delta']}",
        f"  Kafka broker {data['kafka']}",
        f"  Kafka clients {data['kafka_clients']}",
    ]
