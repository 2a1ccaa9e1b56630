"""What the code of a pipeline's files may do: relative paths, sessions in helper modules, late imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import deltalake
import pytest

from checked_json import read_json
from headrace.project.pipeline import Pipeline
from landing import Site

FILES = {
    "headrace.yml": json.dumps({"name": "shop", "libraries": [{"file": "shop.py"}]}),
    "limit.txt": "2",
    "names.json": '{"name": "ada"}\n',
    "landing/a.json": '{"id": 1, "name": "ada"}\n{"id": 3, "name": "ada"}\n{"id": 2, "name": "bob"}\n',
    "known.py": """
from pyspark.sql import SparkSession

session = SparkSession.builder.getOrCreate()
names = session.read.json("names.json")
""",
    "late.py": """
def shout(text):
    return text.upper() + "!"
""",
    "shop.py": """
import headrace as hr
import known
from headrace import spark
from pyspark.sql import functions as F

LIMIT = int(open("limit.txt").read())
NAMES = [row.name for row in spark.read.json("names.json").collect()]
assert known.names.count() == 1

@hr.table
def visits():
    from late import shout  # no other module imports it

    limit = int(open("limit.txt").read())
    assert limit == LIMIT
    rows = spark.readStream.schema("id LONG, name STRING").json("landing")
    rows = rows.where(F.col("name").isin(NAMES) & (F.col("id") <= limit))
    return rows.select("id", F.udf(shout)("name").alias("name"))
""",
}


def test_paths_are_relative_to_the_spec_and_a_helper_gets_the_pipelines_session(tmp_path: Path) -> None:
    """In a process of its own: the helper module asks for a session before there is one."""
    root = tmp_path / "shop"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    program = "from headrace.cli.main import main; main()"
    command = [sys.executable, "-c", program, "run", "--json", "--project", str(root)]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "result" in read_json("run", done.stdout)[-1]
    table = deltalake.DeltaTable(root / "lake/tables/default/visits")
    assert table.to_pyarrow_table().to_pylist() == [{"id": 1, "name": "ADA!"}]
    assert not list(elsewhere.iterdir())


LATE = """
import headrace as hr
from pyspark.sql import functions as F

@hr.table
def visits():
    import late_shapes  # no other module imports it

    visits = hr.read_files("landing", format="json", schema="id LONG, page STRING")
    return visits.withColumn("page", F.udf(late_shapes.shout)("page"))
"""


@pytest.mark.usefixtures("spark")
def test_modules_that_only_queries_and_functions_import_run_on_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    site = Site(tmp_path / "site")
    site.write(LATE)
    for number, sign in enumerate("!?"):
        # Written within one second, so that a cached module would not be noticed as old.
        (site.root / "late_shapes.py").write_text(
            f"def shout(text):\n    from late_signs import sign\n    return sign(text) + {sign!r}\n"
        )
        (site.root / "late_signs.py").write_text(f"def sign(text): return text.upper() + {sign!r}\n")
        site.put(f"{number}.json", {"id": number, "page": "p"})
        with Pipeline.load(site.root) as pipeline:
            assert pipeline.run().outcome == "completed"
    assert sorted(row["page"] for row in site.rows()) == ["P!!", "P??"]
    assert not (site.root / "__pycache__").exists()
