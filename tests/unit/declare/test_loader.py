"""Running a pipeline's files: which, in which order, and what becomes of what they raise."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from headrace.declare.loader import activate, load_declarations
from headrace.declare.registry import ActivePipeline, spark
from headrace.declare.spec import load_project
from headrace.errors import (
    ArgumentInvalidError,
    DuplicateNameError,
    FeatureUnsupportedError,
    HeadraceError,
    NoActivePipelineError,
    NothingDeclaredError,
    PathUnmappedError,
    PipelineFileFailedError,
    PipelineFilesMissingError,
    PipelineValueUnsetError,
    SqlInvalidError,
)
from headrace.model.declarations import AutoCdcFlow, Declarations, TemporaryView
from headrace.model.names import ChosenColumns
from headrace.plan.evaluate import loading
from waiting import until

Write = Callable[..., Path]
Load = Callable[..., Declarations]

TABLE = "import headrace as hr\n@hr.table\ndef {0}(): return spark\n"


def names(declared: Declarations) -> list[str]:
    return [dataset.name.name for dataset in declared.datasets]


def test_files_run_in_sorted_order_each_once(load: Load) -> None:
    spec = "name: a\nlibraries: [{glob: {include: t/**}}, {glob: {include: 't/*.py'}}, {file: t/b/c.py}]\n"
    files = {"t/z.py": TABLE.format("last"), "t/b/c.py": TABLE.format("first"), "t/readme.md": "#"}
    files |= {"t/.ipynb_checkpoints/z.py": "boom(", "t/__pycache__/x.py": "boom("}
    assert names(load(files, spec)) == ["first", "last"]


def test_files_import_modules_beside_the_spec_and_each_other(load: Load) -> None:
    declared = load(
        {
            "shapes.py": "NAME = 'from_shapes'\n",
            "transformations/a.py": "from transformations.b import two\n" + TABLE.format("one"),
            "transformations/b.py": "import shapes\nimport headrace as hr\n"
            "@hr.table(name=shapes.NAME)\ndef two(): return spark\n",
        }
    )
    assert names(declared) == ["from_shapes", "one"]
    # `spark` is there also in a file that another has imported first.
    assert all(flow.query.function.__globals__["spark"] is spark for flow in declared.flows)


def test_files_import_modules_of_their_own_folder_last(load: Load) -> None:
    table = "import headrace as hr\n@hr.table(name={0})\ndef {1}(): return spark\n"
    declared = load(
        {
            "names.py": "NAME = 'beside_the_spec'\n",
            "transformations/bronze/names.py": "NAME = 'hidden'\n",
            "transformations/bronze/other.py": "OTHER = 'beside_the_file'\n",
            "transformations/bronze/x.py": "import names, other\n"
            + table.format("names.NAME", "a")
            + table.format("other.OTHER", "b"),
        }
    )
    assert names(declared) == ["beside_the_spec", "beside_the_file"]


def test_files_import_modules_beside_the_folder_transformations(write: Write) -> None:
    spec = "name: shop\nlibraries: [{glob: {include: src/transformations/**}}]\n"
    files = {
        "headrace.yml": spec,
        "src/common.py": "NAME = 'from_common'\n",
        "src/utilities/more.py": "NAME = 'from_utilities'\n",
        "src/transformations/bronze/a.py": "from common import NAME\nimport utilities.more\n"
        "import headrace as hr\n@hr.table(name=NAME)\ndef a(): ...\n"
        "@hr.table(name=utilities.more.NAME)\ndef b(): ...\n",
    }
    settings = load_project(write(files, spec))
    assert names(load_declarations(settings, Session)) == ["from_common", "from_utilities"]  # type: ignore[arg-type]
    shop = "name: shop\nlibraries: [{glob: {include: ../src/transformations/**}}]\n"
    outside = load_project(write({"shop/headrace.yml": shop}) / "shop")
    assert names(load_declarations(outside, Session)) == ["from_common", "from_utilities"]  # type: ignore[arg-type]
    assert outside.code_folders == (outside.root, outside.root.parent / "src")


def test_a_second_load_sees_what_has_changed(load: Load) -> None:
    files = {
        "shapes.py": "NAME = 'one'\n",
        "transformations/a.py": "import shapes\nimport headrace as hr\n"
        "@hr.table(name=shapes.NAME)\ndef f(): ...\n",
    }
    assert names(load(files)) == ["one"]
    assert names(load({**files, "shapes.py": "NAME = 'two'\n"})) == ["two"]


def test_a_file_named_like_a_module_of_pythons_does_no_harm(load: Load) -> None:
    import json

    spec = "name: a\nlibraries: [{file: json.py}]\n"
    assert names(load({"json.py": TABLE.format("x")}, spec)) == ["x"]
    assert sys.modules["json"] is json


def test_the_import_path_has_the_folder_of_the_last_pipeline_once(load: Load, tmp_path: Path) -> None:
    before = [entry for entry in sys.path if type(entry) is str]
    folder = Path.cwd()
    for _ in range(2):
        load({"late.py": "value = 1", "transformations/a.py": TABLE.format("x")})
    assert sys.path == [str(tmp_path), *before, str(tmp_path / "transformations")]
    assert Path.cwd() == folder


def test_loading_needs_no_pyspark(write: Write) -> None:
    root = write({"transformations/a.py": TABLE.format("x")})
    code = (
        "import sys; from pathlib import Path; from headrace.declare.spec import load_project\n"
        "from headrace.declare.loader import load_declarations\n"
        f"assert load_declarations(load_project(Path({str(root)!r})), None).datasets\n"
        "assert not {'pyspark', 'py4j', 'deltalake', 'confluent_kafka'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reading_a_spec_loads_no_sources_and_no_decorators() -> None:
    """Each command reads one, also those that start no Spark."""
    code = (
        "import sys, headrace.declare.spec\n"
        "assert not {'headrace.sources', 'headrace.declare.python'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Session:
    """Stands for a Spark session."""

    version = "4"


def test_spark_at_module_level_asks_for_the_session(write: Write) -> None:
    root = write({"transformations/a.py": "assert spark.version == '4'\n" + TABLE.format("x")})
    asked: list[int] = []

    def session() -> Session:
        asked.append(1)
        return Session()

    assert names(load_declarations(load_project(root), session)) == ["x"]
    assert asked


@pytest.mark.parametrize(
    "call", ["SparkSession.active()", "SparkSession.getActiveSession()", "SparkSession.builder.getOrCreate()"]
)
def test_a_helper_module_that_asks_spark_for_a_session_gets_the_pipelines(write: Write, call: str) -> None:
    helper = f"from pyspark.sql import SparkSession\nsession = {call}\n"
    root = write({"shared.py": helper, "transformations/a.py": "import shared\n" + TABLE.format("x")})
    settings, given = load_project(root), Session()
    with loading(settings, lambda: given) as session:  # type: ignore[arg-type,return-value]
        assert names(load_declarations(settings, session)) == ["x"]
    assert sys.modules["shared"].session is given


NEEDS_SESSION = """
from pathlib import Path
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.functions import col
import headrace as hr

@hr.table
def first(): ...

if not Path("{marker}").exists():
    {call}

@hr.table
def second(): ...
"""


@pytest.mark.parametrize(
    "call",
    [
        # As PySpark does for F.udf("string").
        'raise PySparkRuntimeError(errorClass="SESSION_OR_CONTEXT_NOT_EXISTS", messageParameters={})',
        'col("id")',
    ],
)
def test_a_file_that_needs_spark_while_it_is_loaded_gets_it(write: Write, tmp_path: Path, call: str) -> None:
    marker = tmp_path / "started"
    root = write({"transformations/a.py": NEEDS_SESSION.format(marker=marker, call=call)})
    settings = load_project(root)
    assert names(load_declarations(settings, marker.touch)) == ["first", "second"]  # type: ignore[arg-type]
    marker.unlink()
    with pytest.raises(PipelineFileFailedError):
        load_declarations(settings, Session)  # type: ignore[arg-type]


def test_the_error_of_a_file_outside_of_the_folder_has_its_line(write: Write) -> None:
    spec = "name: shop\nlibraries: [{file: ../shared/a.py}]\n"
    root = write({"shop/headrace.yml": spec, "shared/a.py": "x = 1\n\nmissing.table()\n"})
    with pytest.raises(PipelineFileFailedError) as caught:
        load_declarations(load_project(root / "shop"), Session)  # type: ignore[arg-type]
    assert str(caught.value.location) == f"{root}/shared/a.py:3:1"


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ('@hr.table(clusterby=["a"])\ndef x(): ...', "did you mean `cluster_by`?"),
        ("@hr.tabel\ndef x(): ...", "did you mean `table`?"),
        ("from headrace import tabel", "did you mean `table`?"),
        ("from pyspark.sql import functions as F\nF.colunm", "did you mean `column`?"),
        ("RATE = 1\nprint(RATES)", "did you mean `RATE`?"),
        ("open('transformation/a.py')", "did you mean `transformations/a.py`?"),
        ("@hr.materialized_view(bogus=1)\ndef x(): ...", "its arguments: name, comment"),
        ('@hr.expect_drop("an id", "id > 0")\ndef x(): ...', "did you mean `expect_or_drop`?"),
    ],
)
def test_what_was_probably_meant_is_said(write: Write, line: str, remedy: str) -> None:
    root = write({"transformations/a.py": f"import headrace as hr\n{line}\n"})
    with pytest.raises((ArgumentInvalidError, PipelineFileFailedError)) as caught:
        load_declarations(load_project(root), Session)  # type: ignore[arg-type]
    assert caught.value.remedies[0].startswith(remedy)


def test_functions_of_a_pipeline_reach_workers_that_cannot_import_them(write: Write) -> None:
    root = write(
        {
            "shapes.py": "import functools\n@functools.cache\n"
            "def double(x): return 2 + double(x - 1) if x else 0\n",
            "transformations/a.py": "import pyspark\nimport shapes\nfrom functools import lru_cache\n"
            "@lru_cache(maxsize=9)\n"
            "def quadruple(x): return shapes.double(shapes.double(x))\n" + TABLE.format("t"),
        }
    )
    code = (
        "import sys; from pathlib import Path; from headrace.declare.spec import load_project\n"
        "from headrace.declare.loader import load_declarations\n"
        f"load_declarations(load_project(Path({str(root)!r})), None)\n"
        "from pyspark import cloudpickle\n"
        "sys.stdout.write(cloudpickle.dumps(sys.modules['transformations.a'].quadruple).hex())"
    )
    sent = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    worker = (
        f"import pickle; found = pickle.loads(bytes.fromhex({sent!r})); assert found(3) == found(3) == 12\n"
        "assert (found.__name__, found.cache_info().hits, found.cache_info().maxsize) == ('quadruple', 1, 9)"
    )
    subprocess.run([sys.executable, "-c", worker], check=True)


IN_BODY = """
import pyspark

def scaled(x):
    from lib.shapes import double
    import numbers_of_shops as numbers
    def inner():
        from lib import tax
        return tax.RATE
    return double(x) * numbers.FACTOR + inner()

import headrace as hr

@hr.table
def shops():
    def one_more(x):
        from beyond import ONE
        return x + ONE
    return one_more

def named(x):
    import importlib
    from importlib import import_module

    factor = importlib.import_module("lib.by_name").FACTOR
    return x * factor + import_module("by_name").ONE
"""
MANY = "".join(f"    v{number} = x.a{number} if x is None else {number}.5\n" for number in range(300))
BIG = f"def big(x):\n{MANY}    import beyond\n    return beyond.ONE\n"
"""Its import is named beyond the constants and names that one byte can number."""


def test_modules_that_a_function_imports_in_its_body_go_to_workers_as_they_were_loaded(write: Write) -> None:
    root = write(
        {
            "lib/shapes.py": "from . import more\ndef double(x): return more.TWO * x\n",
            "lib/more.py": "TWO = 2\n",
            "lib/tax.py": "RATE = 0.5\n",
            "numbers_of_shops.py": "import json\nFACTOR = 10\n",
            "beyond.py": "ONE = 1\n",
            "by_name.py": "ONE = 1\n",
            "lib/by_name.py": "FACTOR = 10\n",
            "transformations/a.py": IN_BODY + BIG,
        }
    )
    code = (
        "import sys; from pathlib import Path; from headrace.declare.spec import load_project\n"
        "from headrace.declare.loader import load_declarations\n"
        f"flow, = load_declarations(load_project(Path({str(root)!r})), None).flows\n"
        "from pyspark import cloudpickle\n"
        f"for file in Path({str(root)!r}).rglob('*.py'): file.write_text('boom(')\n"
        "module = sys.modules['transformations.a']\n"
        "sys.stdout.write(cloudpickle.dumps((module.scaled, module.big, module.named, "
        "flow.query.function())).hex())"
    )
    sent = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    worker = (
        "import pickle, sys; sys.modules['headrace'] = None  # A cluster's worker may lack it.\n"
        f"scaled, big, named, one_more = pickle.loads(bytes.fromhex({sent!r}))\n"
        "assert (scaled(3), big(1), named(2), one_more(6)) == (60.5, 1, 21, 7)"
    )
    subprocess.run([sys.executable, "-c", worker], check=True)


def test_a_worker_that_lives_on_gets_the_changed_text_of_a_module(write: Write) -> None:
    taxed = "import pyspark\ndef taxed(x):\n    import rate\n    return x * rate.RATE\n"
    root = write({"rate.py": "RATE = 1\n", "transformations/a.py": taxed + TABLE.format("t")})
    code = (
        "import sys; from pathlib import Path; from headrace.declare.spec import load_project\n"
        "from headrace.declare.loader import load_declarations\n"
        "from pyspark import cloudpickle\n"
        f"settings = load_project(Path({str(root)!r}))\n"
        "def sent():\n"
        "    load_declarations(settings, None)\n"
        "    return cloudpickle.dumps(sys.modules['transformations.a'].taxed).hex()\n"
        "first = sent()\n"
        "Path(settings.root, 'rate.py').write_text('RATE = 2\\n')\n"
        "print(first, sent(), first)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    worker = (
        "import pickle\n"
        f"got = [pickle.loads(bytes.fromhex(one))(5) for one in {done.stdout.split()!r}]\n"
        "assert got == [5, 10, 5], got"
    )
    subprocess.run([sys.executable, "-c", worker], check=True)


def test_two_threads_may_load_a_pipeline(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lock:
        """The lock of loads, which counts the threads that have asked for it."""

        asked = 0
        own = threading.RLock()

        def __enter__(self) -> None:
            Lock.asked += 1
            self.own.acquire()

        def __exit__(self, *_: object) -> None:
            self.own.release()

    gate = ModuleType("gate")
    gate.__dict__["wait"] = lambda: until(lambda: Lock.asked == 2, "the other thread loads the pipeline, too")
    monkeypatch.setitem(sys.modules, "gate", gate)
    monkeypatch.setattr("headrace.declare.loader._LOADING", Lock())
    settings = load_project(write({"transformations/a.py": "import gate\ngate.wait()\n" + TABLE.format("t")}))
    with ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(load_declarations, settings, Session) for _ in range(2)]  # type: ignore[arg-type]
        assert [names(one.result()) for one in loads] == [["t"]] * 2


LATE = """
import headrace as hr

@hr.table
def late():
    import shapes
    return shapes.double
"""


def test_a_module_that_only_a_query_imports_reaches_workers_and_is_read_from_its_source(write: Write) -> None:
    root = write({"shapes.py": "def double(x): return 2 * x\n", "transformations/a.py": LATE})
    code = (
        "import sys; from pathlib import Path; from headrace.declare.spec import load_project\n"
        "from headrace.declare.loader import load_declarations\n"
        "from pyspark import cloudpickle\n"
        f"settings = load_project(Path({str(root)!r}))\n"
        "def double(): return load_declarations(settings, None).flows[0].query.function()\n"
        "assert double()(3) == 6\n"
        "Path(settings.root, 'shapes.py').write_text('def double(x): return 4 * x\\n')\n"
        "sys.stdout.write(cloudpickle.dumps(double()).hex())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    sent = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    worker = f"import pickle; assert pickle.loads(bytes.fromhex({sent!r}))(3) == 12"
    subprocess.run([sys.executable, "-c", worker], check=True)
    assert not (root / "__pycache__").exists()


def test_spark_is_the_session_of_the_active_pipeline(write: Write) -> None:
    settings = load_project(write({}))
    with pytest.raises(NoActivePipelineError):
        _ = spark.version
    active = ActivePipeline(settings, Session)
    with activate(active):
        assert spark.version == "4"
        clone = Session()
        clone.version = "clone"
        with activate(replace(active, session=lambda: clone)):
            assert spark.version == "clone"
        assert spark.version == "4"


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"transformations/a.py": "x = 1\ny = x / 0\n"}, "transformations/a.py:2:5"),
        ({"transformations/a.py": "def f(:\n"}, "transformations/a.py:1:7"),
        ({"transformations/a.py": "import sys\nsys.exit(3)\n"}, "transformations/a.py:2:1"),
        # The innermost frame in the user's own files, under what the library did with it.
        (
            {
                "transformations/a.py": "import deep\ndeep.go('{')\n",
                "deep.py": "import json\ndef go(x):\n    é = json.loads(x)\n",
            },
            "deep.py:3:9",
        ),
    ],
)
def test_a_file_that_raises_is_named_with_its_line(load: Load, files: dict[str, str], place: str) -> None:
    with pytest.raises(PipelineFileFailedError) as caught:
        load(files)
    assert str(caught.value.location) == place
    assert caught.value.params["path"] == "transformations/a.py"
    assert caught.value.__cause__ is not None


def test_a_module_that_is_missing_is_named_in_the_remedy(load: Load) -> None:
    with pytest.raises(PipelineFileFailedError) as caught:
        load("import no_such_module\n")
    assert any("no_such_module" in remedy for remedy in caught.value.remedies)


def test_a_table_that_is_read_while_a_file_is_loaded_belongs_into_a_query_function(load: Load) -> None:
    text = "[TABLE_OR_VIEW_NOT_FOUND] The table `orders` cannot be found.\\nNamedStreamingRelation(..)"
    with pytest.raises(PipelineFileFailedError) as caught:
        load(f"raise RuntimeError('{text}')\n")
    assert not caught.value.facts and "inside of a query function" in caught.value.remedies[0]


def test_libraries_lead_out_of_the_folder_and_files_run_in_it(load: Load, tmp_path: Path) -> None:
    shared = tmp_path.with_name(f"{tmp_path.name}_shared")
    (shared / "more").mkdir(parents=True)
    (shared / "more" / "a.py").write_text(
        f"from pathlib import Path\nassert Path('headrace.yml').exists()\n{TABLE.format('a')}"
    )
    (shared / "one.py").write_text(TABLE.format("b"))
    before = Path.cwd()
    libraries = f"[{{glob: {{include: ../{shared.name}/more/**}}}}, {{file: ../{shared.name}/one.py}}]"
    declared = load({"x.py": ""}, f"name: a\nlibraries: {libraries}\n")
    assert [str(one.name) for one in declared.datasets] == ["default.a", "default.b"]
    assert Path.cwd() == before


@pytest.mark.parametrize(
    "libraries",
    ["{glob: {include: nothing/**}}", "{file: a.py}", "{file: transformations}", "{file: ../a.py}"],
)
def test_no_files_is_an_error(load: Load, libraries: str) -> None:
    with pytest.raises(PipelineFilesMissingError) as caught:
        load({"transformations/a.py": TABLE.format("x")}, f"name: a\nlibraries:\n- {libraries}\n")
    assert caught.value.location is not None and caught.value.location.line == 3


def test_nothing_declared_is_an_error(load: Load) -> None:
    with pytest.raises(NothingDeclaredError) as caught:
        load("x = 1\n")
    assert caught.value.params["paths"] == ["transformations/tables.py"]


def test_a_flow_whose_table_is_declared_nowhere_is_told_so_later(load: Load) -> None:
    """With its place and the table that was meant: not that nothing is declared."""
    declared = load('import headrace as hr\n@hr.append_flow(target="nope")\ndef a(): ...\n')
    assert [flow.name for flow in declared.flows] == ["a"]


SPARKS = """
from pyspark import pipelines as dp

@dp.table(cluster_by=["a"])
def one(): ...

@dp.table(name="s.two", comment="c")
def two(): ...

@dp.materialized_view(table_properties={"a": "b"})
def view(): ...

@dp.temporary_view
def temporary(): ...

dp.create_streaming_table("three")

@dp.append_flow(target="three")
def into_three(): ...
"""


def test_files_of_sparks_declarative_pipelines_declare_the_same(load: Load) -> None:
    ours = SPARKS.replace("from pyspark import pipelines as dp", "import headrace as dp")
    theirs, expected = load(SPARKS), load(ours)
    assert [(type(d), d.name) for d in theirs.datasets] == [(type(d), d.name) for d in expected.datasets]
    assert [(f.name, f.target) for f in theirs.flows] == [(f.name, f.target) for f in expected.flows]
    assert all(f.location.path == "transformations/tables.py" for f in theirs.flows)


@pytest.mark.parametrize("first", ["import pyspark.pipelines", "import pyspark", "import headrace"])
def test_pyspark_pipelines_is_imported_by_its_whole_name(write: Write, first: str) -> None:
    """In a process of its own: PySpark has not been imported before the file."""
    text = f"{first}\nimport pyspark.pipelines\nimport pyspark.dbutils\npyspark.dbutils.DBUtils\n"
    root = write({"transformations/a.py": text + "@pyspark.pipelines.table\ndef orders(): ...\n"})
    code = (
        "import sys; from pathlib import Path; from headrace.declare.spec import load_project\n"
        "from headrace.declare.loader import load_declarations\n"
        f"settings = load_project(Path({str(root)!r}))\n"
        "assert 'pyspark' not in sys.modules\n"
        "for _ in range(2):\n"
        "    one, = load_declarations(settings, None).datasets\n"
        "    assert one.name.short == 'orders'\n"
        "    assert 'pyspark.pipelines' not in sys.modules\n"
        "    assert not hasattr(sys.modules['pyspark'], 'pipelines')\n"
        "from headrace.declare import lakeflow\n"
        "assert lakeflow.__spec__.name == 'headrace.declare.lakeflow'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_auto_cdc_flow_of_spark_is_one_of_ours(load: Load) -> None:
    flow = """dp.create_streaming_table("t")
dp.create_auto_cdc_flow("t", "s", ["k"], "n", apply_as_deletes="op = 'd'", except_column_list=["op"])
"""
    (theirs,) = load(f"from pyspark import pipelines as dp\n{flow}").flows
    (ours,) = load(f"import headrace as dp\n{flow}").flows
    assert isinstance(theirs, AutoCdcFlow) and isinstance(ours, AutoCdcFlow)
    assert (theirs.name, theirs.target, theirs.keys, theirs.sequence_by) == ("t", ours.target, ("k",), "n")
    assert theirs.location == ours.location


HISTORY = """import headrace as hr
hr.create_streaming_table("t")
hr.create_auto_cdc_flow("t", "s", ["k"], "n", except_column_list=["op"], stored_as_scd_type="2"{more})
"""


def test_a_history_has_tracked_columns(load: Load) -> None:
    for more, expected in (
        ("", ChosenColumns()),
        (', track_history_column_list=["a"]', ChosenColumns(included=("a",))),
        (', track_history_except_column_list=["a", "b"]', ChosenColumns(excluded=("a", "b"))),
    ):
        (flow,) = load(HISTORY.replace("{more}", more)).flows
        assert isinstance(flow, AutoCdcFlow) and flow.history == expected
    assert ChosenColumns(included=("A",)).of(["a", "b"]) == ["a"]
    assert ChosenColumns(excluded=("A",)).of(["a", "b"]) == ["b"]


@pytest.mark.parametrize(
    ("code", "argument"),
    [
        (HISTORY.replace("{more}", ', apply_as_truncates="true"'), "apply_as_truncates"),
        (
            HISTORY.replace(
                "{more}", ', track_history_column_list=["a"], track_history_except_column_list=["b"]'
            ),
            "track_history_column_list",
        ),
        (
            HISTORY.replace('"2"{more}', '1, track_history_except_column_list=["b"]'),
            "track_history_except_column_list",
        ),
        (HISTORY.replace('"2"{more}', "3"), "stored_as_scd_type"),
    ],
)
def test_arguments_of_a_history_that_do_not_fit_are_refused(load: Load, code: str, argument: str) -> None:
    with pytest.raises(ArgumentInvalidError) as caught:
        load(code)
    assert caught.value.params["argument"] == argument


PARTIAL = HISTORY.replace('stored_as_scd_type="2"{more}', "{more}")


def test_a_null_can_leave_columns_as_they_are(load: Load) -> None:
    for more, expected in (
        ("", None),
        ("ignore_null_updates=True", ChosenColumns()),
        ('ignore_null_updates_column_list=["a"]', ChosenColumns(included=("a",))),
        (
            'ignore_null_updates=True, ignore_null_updates_except_column_list=["a"]',
            ChosenColumns(excluded=("a",)),
        ),
    ):
        (flow,) = load(PARTIAL.replace("{more}", more)).flows
        assert isinstance(flow, AutoCdcFlow) and flow.kept_if_null == expected
    (flow,) = load(HISTORY.replace("{more}", ", ignore_null_updates=True")).flows
    assert isinstance(flow, AutoCdcFlow) and flow.history is not None
    assert flow.kept_if_null == ChosenColumns()
    with pytest.raises(FeatureUnsupportedError) as caught:
        load(PARTIAL.replace("{more}", 'ignore_null_updates=True, apply_as_truncates="true"'))
    assert caught.value.params["what"] == "ignore_null_updates"


def test_names_taken_twice_are_found_across_both_ways_of_declaring(load: Load) -> None:
    with pytest.raises(DuplicateNameError):
        load(
            "from pyspark import pipelines as dp\nimport headrace as hr\n"
            "@dp.table\ndef x(): ...\n@hr.table\ndef X(): ...\n"
        )


LIVE_TABLES = """
import dlt
from databricks import pipelines as db
from pyspark import pipelines as dp

@dlt.table(private=True, temporary=False)
@dlt.expect_or_drop("an id", "id > 0")
def one(): ...

@dlt.view
def two(): ...

@db.materialized_view(cluster_by_auto=True)
def three(): ...

dlt.create_streaming_live_table("four", expect_all={"an id": "id > 0"})

@dp.append_flow(target="four", comment="all of one")
def into_four():
    return dlt.read_stream("one")

dlt.create_target_table("five")
dlt.apply_changes(target="five", source="two", keys=["id"], sequence_by="at", stored_as_scd_type="2")
"""


def test_files_of_delta_live_tables_and_lakeflow_declare_the_same(load: Load) -> None:
    declared = load(LIVE_TABLES)
    kinds = [(type(one).__name__, one.name.name) for one in declared.datasets]
    assert kinds == [
        ("StreamingTable", "one"),
        ("TemporaryView", "two"),
        ("MaterializedView", "three"),
        ("StreamingTable", "four"),
        ("StreamingTable", "five"),
    ]
    assert [len(one.expectations) for one in declared.datasets] == [1, 0, 0, 1, 0]
    assert [flow.name for flow in declared.flows] == ["one", "default.three", "into_four", "five"]
    notes = [(note.text.partition(" has")[0], note.location.line) for note in declared.notes]
    assert next(one.is_private for one in declared.datasets if not isinstance(one, TemporaryView))
    assert notes == [("@db.materialized_view: `cluster_by_auto`", 13)]
    assert "dlt" not in sys.modules and "databricks.pipelines" not in sys.modules


@pytest.mark.parametrize(
    "call",
    [
        '@dlt.table(row_filter="f")\ndef x(): ...',
        '@dlt.table(replace_using=["f"])\ndef x(): ...',
        'dlt.create_streaming_table("t", row_filter="f")',
        'dlt.replace_flow(target="t")',
        'dlt.apply_changes("t", "s", ["a"], "b", system_sequence_by="c")',
        'dlt.apply_changes("t", "s", ["a"], "b", columns_to_update=["c"])',
        'dlt.apply_changes("t", "s", ["a"], "b", stored_as_scd_type="bitemporal")',
        'dlt.update_flow(target="t")',
    ],
)
def test_what_would_change_results_on_databricks_and_is_not_supported_is_refused(
    load: Load, call: str
) -> None:
    with pytest.raises(FeatureUnsupportedError) as caught:
        load(f"import dlt\n\n{call}\n")
    assert caught.value.location is not None and caught.value.location.line == 3


@pytest.mark.parametrize(
    "code",
    [
        "import databricks.pipelines\n@databricks.pipelines.table\n",
        "from databricks.pipelines import table\n@table\n",
        "import pyspark\nfrom pyspark import pipelines\n@pyspark.pipelines.table\n",
    ],
)
def test_modules_of_pipelines_are_imported_in_each_form(load: Load, code: str) -> None:
    assert names(load(f"{code}def a(): ...\n")) == ["a"]


def test_the_path_of_a_table_is_noted_unless_it_is_the_folder_of_the_table(load: Load) -> None:
    spec = "name: shop\nstorage: ./lake\npaths: {/mnt/gold: ./lake/tables/default}\n"
    calls = 'import dlt\n@dlt.table(path="/mnt/gold/x")\ndef x(): ...\n'
    calls += 'dlt.create_streaming_table("y", path="/mnt/silver/y")\n'
    (note,) = load(calls, spec).notes
    assert (note.level, note.location.line) == ("warning", 4)
    assert "`y` is stored in tables/default/y" in note.text


@pytest.mark.parametrize(
    ("call", "problem", "remedy"),
    [
        ("dp.create_auto_cdc_flow('t', 's', ['k'], 'n', apply_as_delete_when='x')", "", "`apply_as_deletes`"),
        ("dp.apply_changes('t', 's', ['k'], 'n', aply='x')", "dp.apply_changes has no argument `aply`", ""),
        ("dp.create_streaming_table('t', expect_all_or_dropp={})", "", "`expect_all_or_drop`"),
        ("@dp.view(coment='x')\ndef v(): ...", "@dp.view has no argument `coment`", "`comment`"),
        ("dp.expect('a')", "dp.expect: missing 1 required positional argument: 'condition'", ""),
    ],
)
def test_a_misspelt_argument_is_an_error_that_names_the_right_one(
    load: Load, call: str, problem: str, remedy: str
) -> None:
    with pytest.raises(ArgumentInvalidError) as caught:
        load(f"from databricks import pipelines as dp\n{call}\n")
    assert problem in caught.value.summary
    assert remedy in "".join(caught.value.remedies)
    location = caught.value.location
    assert location is not None and location.line == 2
    if location.column is not None:
        # The location is that of the argument.
        assert call.splitlines()[0][location.column - 1 :].split("=")[0] in caught.value.summary


def test_a_misspelt_function_of_a_module_is_named(load: Load) -> None:
    with pytest.raises(PipelineFileFailedError) as caught:
        load("from databricks import pipelines as dp\ndp.streaming_table('t')\n")
    assert "`create_streaming_table`" in caught.value.remedies[0]


@pytest.mark.parametrize(
    "flow", ["replace_flow(target='t', replace_using=['a'], sequence_by='b')", "update_flow()"]
)
def test_flows_of_databricks_that_are_not_supported_are_refused_by_name(load: Load, flow: str) -> None:
    with pytest.raises(FeatureUnsupportedError) as caught:
        load(f"from pyspark import pipelines as dp\n@dp.{flow}\ndef f(): ...\n")
    assert caught.value.params["what"] == f"dp.{flow.partition('(')[0]}"
    assert str(caught.value.location) == "transformations/tables.py:2"


Load_of_notebooks = Callable[..., Declarations]

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


def test_a_python_notebook_loads_as_it_is(load: Load_of_notebooks) -> None:
    declared = load({"transformations/a.py": PYTHON, "transformations/shared/names.py": SHARED})
    assert [str(one.name) for one in declared.datasets] == ["default.bronze_orders", "default.revenue"]
    assert [str(one.location) for one in declared.datasets] == [
        "transformations/a.py:25",
        "transformations/a.py:32:34",
    ]
    assert [(note.text, note.location.line) for note in declared.notes] == [
        ("the cell `%pip` is not run", 7),
        ("the cell `%pip` is not run", 8),
        ("the cell `%sh` is not run", 39),
        ("the statement SELECT is not run", 35),
        ("`%run ./nowhere` is not run: there is no such file", 44),
    ]


BARE = """# Databricks notebook source
%pip install tool \\
  other

# COMMAND ----------

# DBTITLE 1,Shared code
%run ./shared/names

# COMMAND ----------

import dlt
!ls
TEXT = '''
%sql
'''
%pip install -r requirements.txt
@dlt.table(name=bronze("orders"), comment=TEXT)
def orders():
    return spark.readStream.table("source")

# COMMAND ----------

%sql
CREATE MATERIALIZED VIEW revenue AS
SELECT * FROM bronze_orders
"""


def test_commands_of_a_python_notebook_need_no_magic_comments(load: Load_of_notebooks) -> None:
    declared = load({"transformations/a.py": BARE, "transformations/shared/names.py": SHARED})
    assert {one.name.name: one.location.line for one in declared.datasets} == {
        "bronze_orders": 19,
        "revenue": 25,
    }
    assert next(one.comment for one in declared.datasets if one.name.name == "bronze_orders") == "\n%sql\n"
    assert [(note.text, note.location.line) for note in declared.notes] == [
        ("the cell `%pip` is not run", 2),
        ("the cell `%sh` is not run", 13),
        ("the cell `%pip` is not run", 17),
    ]


def test_a_mistake_in_an_sql_cell_has_the_line_and_column_of_the_notebook(load: Load_of_notebooks) -> None:
    notebook = (
        "# Databricks notebook source\n# MAGIC %sql CREATE STREAMING TABLE a;\n"
        "# MAGIC CREATE STREAMING TABLE\n"
    )
    with pytest.raises(SqlInvalidError) as caught:
        load({"transformations/a.py": notebook})
    assert str(caught.value.location) == "transformations/a.py:3:31"


def test_an_exception_in_a_notebook_has_its_line(load: Load_of_notebooks) -> None:
    run = "# Databricks notebook source\n# MAGIC %run ../shared\n\n# COMMAND ----------\nfine()\nfailing()\n"
    shared = "# Databricks notebook source\ndef fine(): ...\n\n\ndef failing():\n    raise ValueError('no')\n"
    with pytest.raises(PipelineFileFailedError) as caught:
        load({"transformations/a.py": run, "shared.py": shared})
    assert str(caught.value.location).startswith("shared.py:6")


def test_run_declares_a_file_once_and_gives_its_names_to_each_notebook(load: Load_of_notebooks) -> None:
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


def test_run_of_an_sql_file_declares_its_tables(load: Load_of_notebooks) -> None:
    notebook = "# Databricks notebook source\n# MAGIC %run ../more\n"
    declared = load({"transformations/a.py": notebook, "more.sql": "CREATE STREAMING TABLE t"})
    assert [str(one.location) for one in declared.datasets] == ["more.sql:1:24"]


def test_an_sql_notebook_loads_as_it_is(load: Load_of_notebooks) -> None:
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


def test_widgets_and_secrets_have_the_values_of_the_spec(
    load: Load_of_notebooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_LOGIN", "hunter2!")
    spec = "name: shop\nconfiguration: {size: large}\nsecrets: {shop/password: '${SHOP_LOGIN}'}\n"
    (table,) = load(UTILITIES, spec).datasets
    assert (table.name.name, table.comment) == ("monday_large", "hunter2!")


def test_secrets_are_replaced_in_output(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_LOGIN", "hunter2!")
    spec = "name: a\nsecrets: {shop/login: '${SHOP_LOGIN}', shop/plain: plainly}\n"
    settings = load_project(write({}, spec))
    assert settings.redactor("hunter2! and plainly") == "*** and ***"


def test_files_of_a_folder_are_listed_and_its_path_is_mapped(load: Load_of_notebooks) -> None:
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


CONTEXT = """
import getpass, json
import headrace as hr
context = dbutils.notebook.entry_point.getDbutils().notebook().getContext()
path = context.notebookPath().get()
assert path == dbutils.notebook.getContext().notebookPath().getOrElse(None)
assert json.loads(context.safeToJson())["attributes"]["notebook_path"] == path
assert json.loads(context.toJson())["tags"]["user"] == getpass.getuser()
assert context.userName().get() == context.tags().get("user").get() == context.tags().apply("user")
assert context.tags().get("jobId").isEmpty() and context.clusterId().getOrElse("none") == "none"
assert dbutils.jobs.taskValues.get("task", "key", debugValue=3) == 3
assert [one.key for one in dbutils.secrets.list("shop")] == ["login"]
assert [one.name for one in dbutils.secrets.listScopes()] == ["shop"]
hr.create_streaming_table("t", comment=path)
"""


def test_a_notebook_knows_its_path_and_user(load: Load_of_notebooks, tmp_path: Path) -> None:
    (table,) = load(CONTEXT, "name: shop\nsecrets: {shop/login: hunter2!}\n").datasets
    assert table.comment == str(tmp_path / "transformations" / "tables")


@pytest.mark.parametrize(
    ("code", "error", "name"),
    [
        ("dbutils.widgets.get('day')", PipelineValueUnsetError, "day"),
        ("dbutils.secrets.get('shop', 'login')", PipelineValueUnsetError, "shop/login"),
        ("dbutils.fs.ls('/mnt/a')", PathUnmappedError, None),
        ("dbutils.fs.rm('a')", FeatureUnsupportedError, None),
        ("dbutils.fs.mount('a', '/mnt/a')", FeatureUnsupportedError, None),
        ("dbutils.notebook.run('a', 60)", FeatureUnsupportedError, None),
        ("dbutils.notebook.exit('done')", FeatureUnsupportedError, None),
        ("dbutils.widgets.slider('a')", FeatureUnsupportedError, None),
        ("dbutils.library.installPyPI('a')", FeatureUnsupportedError, None),
        ("dbutils.jobs.taskValues.get('task', 'key')", FeatureUnsupportedError, None),
        ("dbutils.notebook.getContext().apiToken().get()", FeatureUnsupportedError, None),
        ("dbutils.notebook.getContext().tags().get('jobId').get()", FeatureUnsupportedError, None),
    ],
)
def test_what_dbutils_lacks_is_an_error_with_its_line(
    load: Load_of_notebooks, code: str, error: type[HeadraceError], name: str | None
) -> None:
    with pytest.raises(error) as caught:
        load(f"\n{code}\n")
    assert str(caught.value.location) == "transformations/tables.py:2"
    assert caught.value.params.get("name") == name
    assert ("mount" in code) == ("give mounted paths their folder" in caught.value.remedies[0])
