"""`read_files`: what it passes on, and what it refuses before Spark is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.declare.loader import activate
from headrace.declare.registry import ActivePipeline
from headrace.declare.spec import load_project
from headrace.errors import (
    ArgumentInvalidError,
    FilesNotFoundError,
    KeptSchemaUnreadableError,
    NoActivePipelineError,
    StorageNewerError,
)
from headrace.model.folders import FileFolder
from headrace.state.kept_schemas import SchemaKey, keep_schema, load_schema
from headrace.storage.local import LocalFiles
from headrace.storage.location import Location

Write = Callable[..., Path]


def read(root: Path, path: Any = "landing", **arguments: Any) -> Any:
    with activate(ActivePipeline(load_project(root), lambda: "the session")):
        return hr.read_files(path, **arguments)


@pytest.fixture
def root(write: Write) -> Path:
    made = write({})
    (made / "landing").mkdir()
    return made


def test_the_folder_is_the_pipelines_and_arguments_are_passed_on(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "headrace.sources.files.read.read", lambda *given, **named: seen.append((given, named))
    )
    read(root, Path("landing"), format="text", recursive=True, glob="*.txt", max_files_per_trigger=3)
    read(root, (root / "landing").as_uri(), format="text", max_bytes_per_trigger=9)
    ((session, folder), named), ((_, by_uri), limited) = seen
    assert session == "the session"
    assert folder == FileFolder(
        storage=LocalFiles(), path=str(root / "landing"), recursive=True, glob="*.txt"
    )
    assert (named["limits"], limited["limits"]) == ({"maxFilesPerTrigger": "3"}, {"maxBytesPerTrigger": "9"})
    assert by_uri.path == folder.path


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"path": 5}, "path"),
        ({"path": " "}, "path"),
        ({"path": "gs://bucket/landing"}, "path"),
        ({"format": "jsno"}, "format"),
        ({"schema": "value STRING"}, "schema"),
        ({"schema": 5, "format": "json"}, "schema"),
        ({"recursive": "yes"}, "recursive"),
        ({"glob": "day=*/*.txt"}, "glob"),
        ({"max_files_per_trigger": 0}, "max_files_per_trigger"),
        ({"max_bytes_per_trigger": "1g"}, "max_bytes_per_trigger"),
        ({"max_files_per_trigger": 1, "max_bytes_per_trigger": 1}, "max_bytes_per_trigger"),
        ({"options": {"wholeText": True}}, "options"),
        ({"options": {"multiLine": "true"}}, "options"),
    ],
)
def test_a_wrong_argument_is_named_with_its_place(
    root: Path, arguments: dict[str, Any], argument: str
) -> None:
    with pytest.raises(ArgumentInvalidError) as caught:
        read(root, **{"format": "text", **arguments})
    assert caught.value.params["argument"] == argument
    assert caught.value.location is not None
    assert caught.value.location.path == __file__


def test_a_path_that_is_not_there_or_is_a_file_is_named(root: Path) -> None:
    for path in ("nowhere", "nowhere/*/x", "headrace.yml"):
        with pytest.raises(FilesNotFoundError) as caught:
            read(root, path, format="text")
        assert caught.value.location is not None


def test_outside_of_a_pipeline_it_says_so() -> None:
    with pytest.raises(NoActivePipelineError):
        hr.read_files("landing", format="text")


def test_a_schema_is_kept_once_for_each_way_of_reading(location: Location) -> None:
    key = SchemaKey(format="csv", path="/in/day prices", options={"header": "true"})
    assert load_schema(location, key) is None
    keep_schema(location, key, {"fields": [1]})
    keep_schema(location, key, {"fields": [2]})
    assert load_schema(location, key) == {"fields": [1]}
    assert load_schema(location, SchemaKey(format="csv", path="/in/day prices", options={})) is None
    path = key.file(location)
    assert path.name.startswith("day-prices-")
    path.replace('{"headrace": 99}')
    with pytest.raises(StorageNewerError):
        load_schema(location, key)
    path.replace("{")
    with pytest.raises(KeptSchemaUnreadableError):
        load_schema(location, key)
