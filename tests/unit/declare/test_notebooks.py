"""Notebooks exported as source files: cells declare what files declare, at the lines of the notebook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.declare.spec import load_project
from headrace.errors import (
    FeatureUnsupportedError,
    HeadraceError,
    PathUnmappedError,
    PipelineFileFailedError,
    PipelineValueUnsetError,
    SqlInvalidError,
)
from headrace.model.declarations import Declarations

Load = Callable[..., Declarations]

PYTHON = """# Databricks notebook source
# MAGIC %md
# MAGIC # Orders

# COMMAND ----------

# MAGIC %pip install tool
# MAGIC %pip install other

# COMMAND ----------

from __future__ import annotations
import dlt

display(spark)

# COMMAND ----------

# DBTITLE 1,Shared code
# MAGIC %run ./shared/names $day="x"

# COMMAND ----------

@dlt.table(name=bronze("orders"))
def orders():
    return spark.readStream.table("source")

# COMMAND ----------

# MAGIC %sql
# MAGIC -- the sum; of all
# MAGIC CREATE MATERIALIZED VIEW revenue AS
# MAGIC SELECT 'a;b' AS x FROM bronze_orders
# MAGIC ;
# MAGIC SELECT * FROM revenue

# COMMAND ----------

# MAGIC %sh
# MAGIC ls

# COMMAND ----------

# MAGIC %run ./nowhere
"""
SHARED = """# Databricks notebook source
def bronze(name):
    return f"bronze_{name}"
"""


def test_a_python_notebook_loads_as_it_is(load: Load) -> None:
    declared = load({"transformations/a.py": PYTHON, "transformations/shared/names.py": SHARED})
    assert [str(one.name) for one in declared.datasets] == ["default.bronze_orders", "default.revenue"]
    assert [str(one.location) for one in declared.datasets] == [
        "transformations/a.py:25",
        "transformations/a.py:32:34",
    ]
    assert [(note.text, note.location.line) for note in declared.notes] == [
        ("the cell `%pip` is not run", 7),
        ("the cell `%sh` is not run", 39),
        ("the statement SELECT is not run", 35),
        ("`%run ./nowhere` is not run: there is no such file", 44),
    ]


def test_a_mistake_in_an_sql_cell_has_the_line_and_column_of_the_notebook(load: Load) -> None:
    notebook = (
        "# Databricks notebook source\n# MAGIC %sql CREATE STREAMING TABLE a;\n"
        "# MAGIC CREATE STREAMING TABLE\n"
    )
    with pytest.raises(SqlInvalidError) as caught:
        load({"transformations/a.py": notebook})
    assert str(caught.value.location) == "transformations/a.py:3:31"


def test_an_exception_in_a_notebook_has_its_line(load: Load) -> None:
    run = "# Databricks notebook source\n# MAGIC %run ../shared\n\n# COMMAND ----------\nfine()\nfailing()\n"
    shared = "# Databricks notebook source\ndef fine(): ...\n\n\ndef failing():\n    raise ValueError('no')\n"
    with pytest.raises(PipelineFileFailedError) as caught:
        load({"transformations/a.py": run, "shared.py": shared})
    assert str(caught.value.location).startswith("shared.py:6")


def test_run_declares_a_file_once_and_gives_its_names_to_each_notebook(load: Load) -> None:
    header = "# Databricks notebook source\nimport dlt\n"
    shared = f"{header}@dlt.table\ndef shared(): ...\nNAME = __file__[-9:]\n"
    cell = "# COMMAND ----------\n"
    run = f"{cell}# MAGIC %run {{}}\n{cell}@dlt.table(name=NAME[:-3] + '{{}}')\ndef one(): ...\n"
    files = {
        "transformations/a.py": header
        + run.format("./b/shared.py", "a")
        + "assert __file__.endswith('a.py')\n",
        "transformations/b/shared.py": shared,
        "transformations/c.py": header + run.format('"../other/shared"', "c"),
        "other/shared.py": shared.replace("def shared", "def other"),
        "transformations/d.py": header + run.format("../other/shared", "d"),
    }
    declared = load(files)
    assert sorted(one.name.name for one in declared.datasets) == [
        "other",
        "shared",
        "shareda",
        "sharedc",
        "sharedd",
    ]


def test_run_of_an_sql_file_declares_its_tables(load: Load) -> None:
    notebook = "# Databricks notebook source\n# MAGIC %run ../more\n"
    declared = load({"transformations/a.py": notebook, "more.sql": "CREATE STREAMING TABLE t"})
    assert [str(one.location) for one in declared.datasets] == ["more.sql:1:24"]


def test_an_sql_notebook_loads_as_it_is(load: Load) -> None:
    notebook = """-- Databricks notebook source
-- MAGIC %md
-- MAGIC It's a notebook; with a quote

-- COMMAND ----------

-- DBTITLE 1,Bronze
CREATE STREAMING TABLE a AS SELECT * FROM STREAM source

-- COMMAND ----------

-- MAGIC %python
-- MAGIC print("x")

-- COMMAND ----------

CREATE MATERIALIZED VIEW b AS SELECT 1
"""
    declared = load({"transformations/a.sql": notebook})
    assert [(one.name.name, one.location.line) for one in declared.datasets] == [("a", 8), ("b", 17)]
    (note,) = declared.notes
    assert (note.text, note.location.line) == ("the cell `%python` is not run", 12)


# -- dbutils

UTILITIES = """
import headrace as hr
from pyspark.dbutils import DBUtils
from databricks.sdk.runtime import dbutils as same
assert DBUtils(spark) is same is dbutils
dbutils.widgets.text("day", "monday")
dbutils.widgets.dropdown("size", "small", ["small", "large"])
dbutils.library.restartPython()
name = dbutils.widgets.get("day") + "_" + dbutils.widgets.get("size")
comment = dbutils.secrets.get(scope="shop", key="password")
hr.create_streaming_table(name, comment=comment)
"""


def test_widgets_and_secrets_have_the_values_of_the_spec(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_LOGIN", "hunter2!")
    spec = "name: shop\nconfiguration: {size: large}\nsecrets: {shop/password: '${SHOP_LOGIN}'}\n"
    (table,) = load(UTILITIES, spec).datasets
    assert (table.name.name, table.comment) == ("monday_large", "hunter2!")


def test_secrets_are_replaced_in_output(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_LOGIN", "hunter2!")
    spec = "name: a\nsecrets: {shop/login: '${SHOP_LOGIN}', shop/plain: plainly}\n"
    settings = load_project(write({}, spec))
    assert settings.redactor("hunter2! and plainly") == "*** and ***"


def test_files_of_a_folder_are_listed_and_its_path_is_mapped(load: Load) -> None:
    spec = "name: shop\npaths: {/mnt/landing: ./landing}\n"
    code = """
import headrace as hr
for entry in dbutils.fs.ls("/mnt/landing"):
    folder, name, size, _ = entry
    assert folder.endswith("/landing/" + name) and entry.isDir() != entry.isFile()
    hr.create_streaming_table(name.strip("/"), comment=f"{name} {size}")
"""
    found = load({"transformations/a.py": code, "landing/x/1.json": "{}", "landing/y": "four"}, spec).datasets
    assert [one.comment for one in found] == ["x/ 0", "y 4"]


@pytest.mark.parametrize(
    ("code", "error", "name"),
    [
        ("dbutils.widgets.get('day')", PipelineValueUnsetError, "day"),
        ("dbutils.secrets.get('shop', 'login')", PipelineValueUnsetError, "shop/login"),
        ("dbutils.fs.ls('/mnt/a')", PathUnmappedError, None),
        ("dbutils.fs.rm('a')", FeatureUnsupportedError, None),
    ],
)
def test_what_dbutils_lacks_is_an_error_with_its_line(
    load: Load, code: str, error: type[HeadraceError], name: str | None
) -> None:
    with pytest.raises(error) as caught:
        load(f"\n{code}\n")
    assert str(caught.value.location) == "transformations/tables.py:2"
    assert caught.value.params.get("name") == name
