"""Which queries are known to give the same plan again, followed through all that they call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.declare.loader import load_declarations
from headrace.declare.spec import load_project
from headrace.plan.logical import code_files
from headrace.project.query_code import UnknownCode, describe_query
from headrace.project.template.files import template_files

HEAD = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F, types as T

"""

Describe = Callable[..., list[Any]]


@pytest.fixture
def describe(tmp_path: Path) -> Describe:
    """Describes the queries of a pipeline of one file, with other files beside it."""

    def work(code: str, **files: str) -> list[Any]:
        (tmp_path / "headrace.yml").write_text("name: shop\nlibraries: [{file: shop.py}]\n")
        (tmp_path / "shop.py").write_text(HEAD + code)
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        return load(tmp_path)

    return work


def load(root: Path) -> list[Any]:
    def session() -> Any:
        raise AssertionError("no session is needed")

    settings = load_project(root)
    declarations = load_declarations(settings, session)
    files = frozenset(code_files(settings.root, settings.storage.root))
    queries = [flow.query for flow in declarations.flows]
    queries += [dataset.query for dataset in declarations.datasets if hasattr(dataset, "query")]
    return [describe_query(query, files) for query in queries]


VIEW = """
@hr.materialized_view
def view():
    {body}
"""

KNOWN = {
    "columns": 'return spark.read.table("orders").where(F.col("n") > 1).select("n", F.lit(2).alias("m"))',
    "a column by its name": 'orders = spark.read.table("orders")\n    return orders.where(orders.amount > 1)',
    "sql": 'return spark.sql("SELECT count(*) FROM orders")',
    "a loop": 'return spark.read.table("orders").select(*[F.col(n).cast("int") for n in ("a", "b")])',
    "types": 'return spark.createDataFrame([(1,)], T.StructType([T.StructField("a", T.LongType())]))',
    "an import": 'from pyspark.sql import functions as G\n    return spark.read.table("a").select(G.lit(1))',
    "a stream": 'return spark.readStream.format("kafka").option("subscribe", "a").load().select("value")',
}


@pytest.mark.parametrize("body", KNOWN.values(), ids=list(KNOWN))
def test_a_query_of_columns_is_known(describe: Describe, body: str) -> None:
    assert describe(VIEW.format(body=body)) == describe(VIEW.format(body=body))


UNKNOWN = {
    "time": "import time\n    return spark.range(int(time.time()))",
    "an import of the file": ("return spark.range(os.getpid())", "import os"),
    "a function of a module": ("return spark.range(len(getenv('HOME')))", "from os import getenv"),
    "another name for it": ("return spark.range(int(now()))", "from time import time as now"),
    "date.today": ("return spark.range(date.today().year)", "from datetime import date"),
    "a date's class": (
        "return spark.range(START.today().year)",
        "import datetime\nSTART = datetime.date(2026, 1, 1)",
    ),
    "open": "return spark.range(len(open('x').read()))",
    "input": "return spark.range(len(input()))",
    "the settings of the session": "return spark.range(int(spark.conf.get('x')))",
    "the catalog": "return spark.range(len(spark.catalog.listTables()))",
    "the JVM": "return spark.range(spark._jvm.System.currentTimeMillis())",
    "a file's columns": "return spark.createDataFrame([(1,)], spark.read.json('x').columns)",
    "files": "return spark.read.format('json').load('x')",
    "files in SQL": "return spark.sql('SELECT * FROM json.`x`')",
    "a module of PySpark's": "return spark.range(F.sys.maxsize)",
    "a dunder": "return spark.range(len(().__class__.__mro__))",
    "eval": "return spark.range(eval('1'))",
    "getattr": "return getattr(spark, 'range')(1)",
    "random": ("return spark.range(random.randint(1, 9))", "import random"),
    "a global": "global n\n    n = 1\n    return spark.range(n)",
    "an object": ("return spark.range(THING.n)", "class Thing:\n    n = 1\nTHING = Thing()"),
    "a class": ("return spark.range(Thing().n)", "class Thing:\n    n = 1"),
    "a library": ("return spark.range(len(rich.get_console().file.name))", "import rich"),
    "a datetime": (
        "return spark.range(AT.now().year)",
        "import datetime\nAT = datetime.datetime(2026, 1, 1)",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN.values(), ids=list(UNKNOWN))
def test_a_query_that_may_give_another_plan_is_unknown(
    describe: Describe, case: str | tuple[str, str]
) -> None:
    body, before = (case, "") if isinstance(case, str) else case
    with pytest.raises(UnknownCode):
        describe(before + VIEW.format(body=body))


CLEANING = """
from pyspark.sql import functions as F
LEAST = 1
def clean(frame):
    return frame.where(F.col("n") > LEAST)
"""
DATED = """
from datetime import date
def clean(frame):
    return frame.where(f"day = {date.today()}")
"""


@pytest.mark.parametrize(
    ("line", "call"), [("import cleaning", "cleaning.clean"), ("from cleaning import clean", "clean")]
)
def test_helpers_in_other_files_are_followed(describe: Describe, line: str, call: str) -> None:
    code = line + VIEW.format(body=f'return {call}(spark.read.table("orders"))')
    first = describe(code, cleaning=CLEANING)
    assert describe(code, cleaning=CLEANING) == first
    assert describe(code, cleaning=CLEANING.replace("LEAST = 1", "LEAST = 2")) != first
    with pytest.raises(UnknownCode, match="date"):
        describe(code, cleaning=DATED)


def test_helpers_of_helpers_and_closures_are_followed(describe: Describe) -> None:
    code = """
def least():
    return {least}

def more(n):
    def inner(frame):
        return frame.where(f"n > {{n + least()}}")
    return inner

MORE = more({n})
"""
    view = VIEW.format(body='return spark.read.table("orders").transform(MORE)')
    first = describe(code.format(least=1, n=2) + view)
    assert first == describe(code.format(least=1, n=2) + view)
    assert first != describe(code.format(least=1, n=3) + view)
    with pytest.raises(UnknownCode):
        describe("import time\n" + code.format(least="time.time()", n=2) + view)


def test_a_decorator_is_followed_to_what_it_wraps(describe: Describe) -> None:
    code = "import time\ndef logged(f):\n    def inner():\n        return f()\n    return inner\n"
    view = "@hr.materialized_view\n@logged\ndef view():\n    return spark.range({})\n"
    assert describe(code + view.format(1)) == describe(code + view.format(1))
    with pytest.raises(UnknownCode):
        describe(code + view.format("int(time.time())"))


def test_a_python_udf_is_known(describe: Describe) -> None:
    code = "import time\nclock = F.udf(lambda n: time.time(), T.DoubleType())\n"
    view = VIEW.format(body='return spark.read.table("orders").select(clock("n"))')
    assert describe(code + view) == describe(code + view)


def test_a_value_of_the_environment_is_part_of_the_description(
    describe: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os\nTOPIC = os.environ['A_TOPIC']\n" + VIEW.format(body="return spark.read.table(TOPIC)")
    monkeypatch.setenv("A_TOPIC", "a")
    first = describe(code)
    monkeypatch.setenv("A_TOPIC", "b")
    assert describe(code) != first


def test_a_description_is_the_same_in_another_process(describe: Describe, tmp_path: Path) -> None:
    here = describe(
        VIEW.format(body='return spark.read.table("orders").where(F.col("a").isin({"x", "y", "z"}))')
    )
    code = f"from pathlib import Path; import test_query_code as t; print(t.load(Path({str(tmp_path)!r})))"
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    assert there.stdout.strip() == str(here)


def test_the_pipeline_of_init_is_known(tmp_path: Path) -> None:
    for name, text in template_files("shop").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert len(load(tmp_path)) == 3
