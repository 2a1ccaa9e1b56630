"""Notebooks in Jupyter's format are read as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.output import _source_line
from headrace.declare.outside_names import find_outside
from headrace.errors import PipelineFileFailedError, SourceLocation, SqlInvalidError
from headrace.model.declarations import Declarations
from headrace.plan.validate import check_declarations
from headrace.syntax.ipynb import find_line, parse_notebook

Load = Callable[..., Declarations]


def notebook(*cells: str, language: str | None = None) -> str:
    """Cells with code; a text that begins with ``#`` and a space is a text cell."""
    metadata: dict[str, Any] = {} if language is None else {"language_info": {"name": language}}
    found = [
        {
            "cell_type": "markdown" if cell.startswith("# ") else "code",
            "source": cell.splitlines(keepends=True),
        }
        for cell in cells
    ]
    return json.dumps({"cells": found, "metadata": metadata, "nbformat": 4})


CELLS = (
    "# Orders",
    "%pip install shop\n\nimport dlt\nfrom pyspark.sql import functions as F",
    "%run ./common",
    "%%sql\nCREATE MATERIALIZED VIEW big AS\nSELECT * FROM orders WHERE amount > 1",
    "!ls\n@dlt.table(comment=COMMENT)\ndef orders():\n    return spark.read.table('a.b.c')",
    "%sh\nls",
    "display(1)\nif __name__ == '__main__':\n    @dlt.table\n    def guarded():\n        return None",
)


def test_the_cells_of_a_notebook_declare_its_tables(load: Load) -> None:
    found = load(
        {
            "transformations/orders.ipynb": notebook(*CELLS),
            "transformations/common.ipynb": notebook("COMMENT = 'all'"),
        }
    )
    places = {one.name.name: str(one.location) for one in found.datasets}
    assert places == {
        "big": "transformations/orders.ipynb#cell4:2:26",
        "orders": "transformations/orders.ipynb#cell5:3",
        "guarded": "transformations/orders.ipynb#cell7:4",
    }
    assert next(one for one in found.datasets if one.name.name == "orders").comment == "all"  # type: ignore[union-attr]
    notes = {(str(one.location), one.text) for one in found.notes}
    assert notes == {
        ("transformations/orders.ipynb#cell2:1", "the line `%pip install shop` is not run"),
        ("transformations/orders.ipynb#cell5:1", "the line `!ls` is not run"),
        ("transformations/orders.ipynb#cell6:1", "the cell `%sh` is not run"),
    }


@pytest.mark.parametrize(
    ("cell", "place", "shown"),
    [
        ("x = 1\ny = x / 0", "transformations/n.ipynb#cell2:2:5", "y = x / 0"),
        ("def f(:", "transformations/n.ipynb#cell2:1:7", "def f(:"),
        ("%sql\nCREATE STREAMING VIEWW x", "transformations/n.ipynb#cell2:2:18", "CREATE STREAMING VIEWW x"),
    ],
)
def test_a_mistake_has_the_cell_and_the_line(
    load: Load, tmp_path: Path, cell: str, place: str, shown: str
) -> None:
    with pytest.raises((PipelineFileFailedError, SqlInvalidError)) as caught:
        load({"transformations/n.ipynb": notebook("# Title", cell)})
    assert str(caught.value.location) == place
    assert caught.value.location is not None
    assert _source_line(caught.value.location, [tmp_path]) == shown


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("n.ipynb", notebook("%sql\nCREATE STREAMING TABLE orders")),
        ("n.py", "# Databricks notebook source\n# MAGIC %sql\n# MAGIC CREATE STREAMING TABLE orders\n"),
        ("n.sql", "CREATE STREAMING TABLE orders"),
    ],
)
def test_a_mistake_in_sql_has_advice_in_sql(load: Load, file: str, text: str) -> None:
    (error,) = check_declarations(load({f"transformations/{file}": text}))
    flow = "CREATE FLOW add_rows AS INSERT INTO orders BY NAME SELECT * FROM STREAM source_table;"
    assert error.remedies == (f"write a flow below it:   {flow}", "or remove the table")


def test_a_file_that_is_not_a_notebook_is_named(load: Load) -> None:
    with pytest.raises(PipelineFileFailedError, match="is not a valid notebook"):
        load({"transformations/n.ipynb": "import dlt\n"})


def test_the_language_of_a_notebook_is_that_of_its_cells() -> None:
    (cell,) = parse_notebook(notebook("SELECT 1", language="sql"))
    assert (cell.magic, cell.source) == ("sql", "SELECT 1")
    (cell,) = parse_notebook(notebook("%python\nx = 1", language="sql"))
    assert (cell.magic, cell.source) == ("python", "\nx = 1")
    (cell,) = parse_notebook(notebook("x = (9\n% 2)\n"))
    assert cell.skipped == ()


def test_lines_of_strings_that_look_like_commands_are_kept() -> None:
    text = '%pip install shop \\\n  faker\nQUERY = """\n%sql\n"""\n!ls'
    (cell,) = parse_notebook(notebook(text))
    assert cell.source == '\n\nQUERY = """\n%sql\n"""\n'
    assert cell.skipped == ((1, "%pip install shop faker"), (6, "!ls"))


def test_the_lines_of_a_cell_are_found_in_the_notebook(tmp_path: Path) -> None:
    file = tmp_path / "n.ipynb"
    file.write_text(notebook("# T", "a = 1\nb = 2"))
    assert find_line(tmp_path / "n.ipynb#cell2", 2) == "b = 2"
    assert find_line(tmp_path / "n.ipynb#cell2", 9) is None
    assert find_line(file, 1) is None


def test_names_of_other_systems_in_cells_are_found(tmp_path: Path) -> None:
    file = tmp_path / "n.ipynb"
    file.write_text(notebook("x = spark.read.table('a.b.c')", "%sql\nSELECT * FROM d.e.f"))
    found = {one.text: one.location for one in find_outside([file], tmp_path)}
    assert found == {"a.b.c": SourceLocation("n.ipynb#cell1", 1), "d.e.f": SourceLocation("n.ipynb#cell2", 2)}
