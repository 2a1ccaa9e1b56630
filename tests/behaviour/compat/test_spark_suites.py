"""What the suites of Spark's declarative pipelines rely on, in one pipeline of SQL and Python."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import deltalake
import pyarrow as pa
import pytest

from headrace.cli.main import run as run_command
from headrace.errors import PlanFailedError
from headrace.plan.explain import Explanation
from headrace.project.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("spark")

SPEC = "name: shop\nschema: test_db\nstorage: ./lake\nlibraries: [{glob: {include: t/**}}]\n"

FILES = {
    "a.sql": """
        CREATE STREAMING TABLE changes;
        CREATE FLOW first AS INSERT INTO ONCE changes BY NAME SELECT id, id * 10 AS amount FROM range(3);
        CREATE STREAMING TABLE latest FLOW AUTO CDC FROM STREAM changes KEYS (id) SEQUENCE BY amount;
        USE CATALOG bronze;
        USE SCHEMA raw;
        CREATE MATERIALIZED VIEW m AS SELECT * FROM range(4);
        USE NAMESPACE silver.sales;
        CREATE PRIVATE MATERIALIZED VIEW m AS SELECT id FROM bronze.raw.m WHERE id > 1;
        CREATE MATERIALIZED VIEW doubled AS SELECT 2 * id AS id FROM m;
    """,
    "B.SQL": """
        -- The catalog in use is that of each file.
        CREATE MATERIALIZED VIEW again AS SELECT max(id) AS id FROM silver.sales.doubled;
    """,
    "C.PY": """
        from pyspark import pipelines as dp

        READ = "read_files('landing', format => 'json', schema => 'id INT')"

        @dp.materialized_view
        def batch():
            return spark.sql(f"SELECT id FROM {READ}")

        @dp.table(temporary=True)
        def stream():
            return spark.sql(f"SELECT f.id FROM STREAM({READ}) AS f")

        @dp.materialized_view
        def counts():
            return spark.sql("SELECT s.id, count(*) AS n FROM LIVE.stream s GROUP BY ALL")
    """,
}


def write(root: Path, files: dict[str, str]) -> None:
    (root / "t").mkdir()
    (root / "landing").mkdir()
    (root / "landing" / "a.json").write_text('{"id": 1}\n{"id": 2}\n')
    (root / "spark-pipeline.yml").write_text(SPEC)
    for name, text in files.items():
        (root / "t" / name).write_text(dedent(text))


def rows(root: Path, table: str, columns: str = "*") -> list[tuple[int, ...]]:
    folder = deltalake.DeltaTable(root / "lake" / "tables" / table)
    found = deltalake.QueryBuilder().register("t", folder).execute(f"SELECT {columns} FROM t").read_all()
    return sorted(tuple(row.values()) for row in pa.table(found).to_pylist())


def test_names_and_functions_mean_what_they_mean_in_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, FILES)
    monkeypatch.chdir(tmp_path)  # Relative paths start where the command is typed.
    with Pipeline.load(tmp_path) as pipeline:
        result = pipeline.run()
        assert result.errors == ()
        assert not pipeline.verify().findings
        listed = Explanation(pipeline.plan()).to_text().splitlines()
        assert len([line for line in listed if "private" in line]) == 2
    assert rows(tmp_path, "test_db/latest", "id, amount") == [(0, 0), (1, 10), (2, 20)]
    assert rows(tmp_path, "silver__sales/m") == [(2,), (3,)]
    assert rows(tmp_path, "silver__sales/doubled") == [(4,), (6,)]
    assert rows(tmp_path, "test_db/again") == [(6,)]
    assert rows(tmp_path, "test_db/batch") == rows(tmp_path, "test_db/stream") == [(1,), (2,)]
    assert rows(tmp_path, "test_db/counts") == [(1, 1), (2, 1)]

    capsys.readouterr()
    statements = "SET table = batch; SHOW TABLES; SELECT id FROM ${table} WHERE id > :least"
    options = ["--project", str(tmp_path), "--set", "configuration.least=1", "--json"]
    assert run_command(["sql", "-e", statements, *options]) == 0
    printed = capsys.readouterr().out
    assert '"latest"' in printed and '"stream"' not in printed
    assert '{"id": 2}' in printed.splitlines()[-1]


def test_an_error_lists_the_datasets_that_were_not_checked(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a.sql": "CREATE MATERIALIZED VIEW one AS SELECT nope FROM range(1);\n"
            "CREATE MATERIALIZED VIEW two AS SELECT * FROM missing;\n"
            "CREATE MATERIALIZED VIEW below AS SELECT * FROM one;\n"
            "CREATE MATERIALIZED VIEW deeper AS SELECT * FROM below;\n"
        },
    )
    with Pipeline.load(tmp_path) as pipeline, pytest.raises(PlanFailedError) as caught:
        pipeline.plan()
    assert [error.code for error in caught.value.errors] == ["COLUMN_NOT_FOUND", "TABLE_NOT_FOUND"]
    assert caught.value.params["not_checked"] == ["test_db.below", "test_db.deeper"]
    assert "test_db.below (reads test_db.one)" in caught.value.facts[-1]
