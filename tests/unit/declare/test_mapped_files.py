"""Python's own functions find mapped paths while files are loaded, and only then."""

from __future__ import annotations

import builtins
import glob
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
from pyspark import cloudpickle

from headrace.declare.loader import load_declarations
from headrace.declare.spec import load_project
from headrace.errors import PathUnmappedError, PipelineFileFailedError
from headrace.model.declarations import Declarations, StreamingTable
from headrace.model.project import PathMap
from headrace.storage.mapped_files import mapping_files

Load = Callable[..., Declarations]

SPEC = """
name: shop
paths:
  /Volumes/main/shop: ./volume
  /Workspace: ./workspace
  "dbfs:/": ./dbfs
"""
CODE = """
import glob, json, os, shutil
from pathlib import Path
import dlt

ROOT = "/Volumes/main/shop/conf"
found = []
with open(f"{ROOT}/a.json") as file:
    found.append(json.load(file)["name"])
found.append(json.loads(Path(ROOT, "a.json").read_text())["name"])
found.append(os.path.exists(f"{ROOT}/a.json") and os.path.isdir(ROOT) and not os.path.exists("/Volumes/x"))
found.append(os.listdir(ROOT) == [one.name for one in os.scandir(ROOT)] == ["a.json"])
found.append(glob.glob(f"{ROOT}/*.json") == [f"{ROOT}/a.json"])
found.append([str(one) for one in Path(ROOT).glob("*.json")] == [f"{ROOT}/a.json"])
found.append([(root, files) for root, _, files in os.walk(ROOT)] == [(ROOT, ["a.json"])])
found.append(Path("/Workspace/notes.txt").is_file() and os.path.getsize("/Workspace/notes.txt") == 2)
os.makedirs("/dbfs/copies", exist_ok=True)
shutil.copy(f"{ROOT}/a.json", "/dbfs/copies/b.json")
os.rename("/dbfs/copies/b.json", "/dbfs/copies/c.json")
shutil.copytree(ROOT, "/dbfs/tree", symlinks=True)
class Reader:
    entries = os.listdir
found.append(Reader().entries("/dbfs/tree") == ["a.json"])
dlt.create_streaming_table("t", comment=str(found))
"""


def test_files_are_found_by_mapped_paths_while_a_pipeline_is_loaded(load: Load, tmp_path: Path) -> None:
    for name, text in {
        "volume/conf/a.json": '{"name": "ada"}',
        "workspace/notes.txt": "ok",
        "dbfs/x": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    before = [builtins.open, io.open, os.stat, os.listdir, os.rename]
    (table,) = load(CODE, SPEC).datasets
    assert isinstance(table, StreamingTable)
    assert table.comment == str(["ada", "ada", True, True, True, True, True, True, True])
    assert (tmp_path / "dbfs/copies/c.json").read_text() == '{"name": "ada"}'
    assert [builtins.open, io.open, os.stat, os.listdir, os.rename] == before
    assert not Path("/Volumes/main/shop/conf").exists()


def test_other_threads_and_code_after_an_error_get_unchanged_paths(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    paths = PathMap({"/Volumes/main": str(tmp_path)})
    seen: list[bool] = []
    with pytest.raises(ZeroDivisionError), mapping_files(paths):
        assert Path("/Volumes/main/a").exists()
        with mapping_files(PathMap({"/Volumes/other": str(tmp_path)})):
            assert Path("/Volumes/other/a").exists() and not Path("/Volumes/main/a").exists()
        thread = Thread(target=lambda: seen.append(Path("/Volumes/main/a").exists()))
        thread.start()
        thread.join()
        _ = 1 / 0
    assert seen == [False]
    assert not Path("/Volumes/main/a").exists()
    assert not hasattr(os.stat, "__wrapped__")


def test_a_function_that_a_file_has_imported_reaches_workers_as_itself(tmp_path: Path) -> None:
    with mapping_files(PathMap({"/Volumes/main": "/elsewhere"})):
        from os import listdir
    (tmp_path / "a").write_text("x")
    assert pickle.loads(cloudpickle.dumps(listdir))(str(tmp_path)) == ["a"]


def test_the_globs_of_each_python_find_mapped_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Globber:  # as in Python 3.13
        scandir = staticmethod(os.scandir)

    (tmp_path / "a").write_text("x")
    monkeypatch.setattr(glob, "_StringGlobber", Globber, raising=False)
    with mapping_files(PathMap({"/Volumes/main": str(tmp_path)})):
        assert [one.name for one in Globber().scandir("/Volumes/main")] == ["a"]
    assert isinstance(vars(Globber)["scandir"], staticmethod)


def test_a_path_without_an_entry_is_named_with_the_entry(write: Callable[..., Path]) -> None:
    root = write({"transformations/a.py": 'import dlt\nx = open("/Workspace/Shared/config.yml")\n'})
    with pytest.raises(PathUnmappedError) as caught:
        load_declarations(load_project(root), lambda: None)  # type: ignore[arg-type,return-value]
    assert caught.value.location is not None and caught.value.location.line == 2
    assert "paths: {/Workspace: ./workspace}" in caught.value.remedies[0]
    (root / "transformations/a.py").write_text('open("missing.yml")\n')
    with pytest.raises(PipelineFileFailedError):
        load_declarations(load_project(root), lambda: None)  # type: ignore[arg-type,return-value]
